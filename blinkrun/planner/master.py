"""The linear program over the trees that are known so far, in terms of trees and resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.planner.folding import Folding
from blinkrun.planner.network import Column, Network
from blinkrun.planner.simplex import Simplex
from blinkrun.types import Rank

_Uses = tuple[tuple[int, int], ...]  # what, and how often


@dataclass(frozen=True, slots=True)
class Exact:
    """A solution of the program in fractions, and what a tree of each root may cost."""

    rates: dict[Column, Fraction]
    prices: tuple[Fraction, ...]
    allowed: dict[Rank | None, Fraction]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The resources as rows of the program.

    Attributes
    ----------
    limits : tuple of int
    priced : tuple of tuple of int
        Per row the resources that have its price.
    arcs : tuple of _Uses
        Per arc what it takes of each row.
    """

    limits: tuple[int, ...]
    priced: tuple[tuple[int, ...], ...]
    arcs: tuple[_Uses, ...]


class Master:
    """The program over the trees that are known so far.

    Resources that the same arcs take equally often are one row, with the least of the capacities;
    of a folded machine, all that are alike are one row, with all their capacity.

    Parameters
    ----------
    network : Network
    root : Rank or None
    columns : iterable of Column
        Trees to begin with, no two alike.
    folding : Folding, optional
        What is alike. The solution is then that of the whole machine, but for its trees, which are
        still to be turned round.
    """

    def __init__(
        self,
        network: Network,
        root: Rank | None,
        columns: Iterable[Column] = (),
        *,
        folding: Folding | None = None,
    ) -> None:
        self.network = network
        self.root = root
        self._rows = _distinct_rows(network) if folding is None else _folded_rows(network, folding)
        self._is_folded = folding is not None
        self._numbers: dict[Column, int] = {}
        self._row_of: dict[Rank, int] = {}
        whole: dict[int, int] = {}  # rows of roots, and how many roots each stands for
        if network.flow.is_joint:
            alike = range(network.size) if folding is None else folding.ranks
            first = {rank: at for at, rank in enumerate(dict.fromkeys(alike))}
            self._row_of = {
                rank: len(self._rows.limits) + first[same] for rank, same in enumerate(alike)
            }
            for row in self._row_of.values():
                whole[row] = whole.get(row, 0) + 1
        self._simplex = Simplex([*self._rows.limits, *[0] * len(whole)])
        if whole:
            self._simplex.add(whole, network.size)
        for column in columns:
            self.add(column)

    def __contains__(self, column: Column) -> bool:
        return column in self._numbers

    def __iter__(self) -> Iterator[Column]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def copy(self) -> Master:
        """Return one to try something with."""
        other = object.__new__(Master)
        other.network, other.root = self.network, self.root
        other._rows, other._row_of = self._rows, self._row_of
        other._is_folded = self._is_folded
        other._simplex = self._simplex.copy()
        other._numbers = dict(self._numbers)
        return other

    def add(self, column: Column) -> None:
        """Add a tree that is not known yet."""
        self._numbers[column] = self._simplex.add(self._use(column), 0 if self._row_of else 1)

    def promising(self, columns: Sequence[Column], count: int) -> list[Column]:
        """Return those few of `columns` that gain most at first sight."""
        if len(columns) <= count:
            return list(columns)
        gains = self._simplex.steps([self._use(column) for column in columns], not self._row_of)
        order = sorted(range(len(columns)), key=lambda at: (-gains[at], at))
        return [columns[at] for at in order[:count]]

    def _use(self, column: Column) -> dict[int, int]:
        use: dict[int, int] = {}
        for index in column:
            for row, times in self._rows.arcs[index]:
                use[row] = use.get(row, 0) + times
        if self._row_of:
            use[self._row_of[self.network.root_of(column)]] = -1
        return use

    def remove(self, column: Column) -> None:
        """Take a tree out."""
        self._simplex.remove(self._numbers.pop(column))

    def solve(self) -> float:
        """Return the best total rate of the known trees."""
        return self._simplex.solve()

    def rates(self) -> dict[Column, float]:
        """Return what each tree carries in the last solution."""
        values = self._simplex.values()
        return {column: values.get(number, 0.0) for column, number in self._numbers.items()}

    def prices(self) -> tuple[list[float], dict[Rank | None, float]]:
        """Return the price of each resource, and what a tree of each root may cost."""
        found = self._simplex.prices()
        prices = [0.0] * len(self.network.capacities)
        for alike, price in zip(self._rows.priced, found, strict=False):
            for at in alike:
                prices[at] = price
        if not self._row_of:
            return prices, {self.root: 1.0}
        return prices, {rank: found[row] for rank, row in self._row_of.items()}

    def exact(self) -> Exact | None:
        """Return the solution in fractions; None where that fails."""
        vertex = self._simplex.vertex()
        if vertex is None:
            return None
        rates = {c: vertex.values[n] for c, n in self._numbers.items() if vertex.values.get(n)}
        prices = [Fraction(0)] * len(self.network.capacities)
        for alike, price in zip(self._rows.priced, vertex.prices, strict=False):
            for at in alike:
                prices[at] = price
        allowed: dict[Rank | None, Fraction] = {self.root: Fraction(1)}
        if self._row_of:
            allowed = {rank: vertex.prices[row] for rank, row in self._row_of.items()}
            rates = rates if self._is_folded else equal_totals(self.network, rates)
        return Exact(rates, tuple(prices), allowed)


def equal_totals(network: Network, rates: Mapping[Column, Fraction]) -> dict[Column, Fraction]:
    """Return `rates` with those roots slowed down that have more than others; all if one has none.

    (A vertex may have more trees at a root than the rate of every root asks for.)
    """
    totals = [Fraction(0)] * network.size
    for column, rate in rates.items():
        totals[network.root_of(column)] += rate
    least = min(totals)
    return {
        column: rate * least / totals[network.root_of(column)]
        for column, rate in rates.items()
        if least
    }


def _takers(network: Network) -> list[_Uses]:
    """Return which arcs take each resource, and how often."""
    takers: list[list[tuple[int, int]]] = [[] for _ in network.capacities]
    for index, arc in enumerate(network.arcs):
        for at, times in arc.use:
            takers[at].append((index, times))
    return list(map(tuple, takers))


def _distinct_rows(network: Network) -> _Rows:
    least: dict[_Uses, int] = {}
    for at, taken in enumerate(_takers(network)):
        if taken and network.capacities[at] < network.capacities[least.setdefault(taken, at)]:
            least[taken] = at
    arcs: list[list[tuple[int, int]]] = [[] for _ in network.arcs]
    for row, taken in enumerate(least):
        for index, times in taken:
            arcs[index].append((row, times))
    return _Rows(
        limits=tuple(network.capacities[at] for at in least.values()),
        priced=tuple((at,) for at in least.values()),
        arcs=tuple(map(tuple, arcs)),
    )


def _folded_rows(network: Network, folding: Folding) -> _Rows:
    alike: dict[int, list[int]] = {}
    for at, first in enumerate(folding.resources):
        alike.setdefault(first, []).append(at)
    row_of = {at: row for row, members in enumerate(alike.values()) for at in members}
    arcs = []
    for arc in network.arcs:
        use: dict[int, int] = {}
        for at, times in arc.use:
            use[row_of[at]] = use.get(row_of[at], 0) + times
        arcs.append(tuple(use.items()))
    return _Rows(
        limits=tuple(sum(network.capacities[at] for at in same) for same in alike.values()),
        priced=tuple(map(tuple, alike.values())),
        arcs=tuple(arcs),
    )
