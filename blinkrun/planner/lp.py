"""The best packing, exactly: a linear program over all trees, by column generation.

Maximise the sum of rates such that no resource carries more than its capacity. There are far too
many trees to list, so the program (see `simplex`) knows only some; its prices say what each
resource is worth, and the cheapest tree at these prices is the tree to add. When none costs less
than 1 the solution is optimal over all trees, and the prices are the proof. The last word is
spoken in fractions: rate and bound are then equal, not only close.

Where all ranks are roots with equal rates [3]_, a further variable is the rate of every root, and a
row per root keeps it from exceeding what the root's trees carry. The price of that row is what a
tree of the root may cost.

The columns start as the shallowest tree of every rank, and only trees that improve are added: on
a switch the one-hop stars are already optimal.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020.
.. [2] F. Barahona, "Packing spanning trees", Mathematics of Operations Research 20(1), 1995.
.. [3] L. Zhao et al., "ForestColl: Efficient Collective Communications on Heterogeneous Network
   Fabrics", arXiv 2402.06787, 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from blinkrun.errors import InternalError
from blinkrun.planner.certificate import total_price, tree_cost
from blinkrun.planner.network import Column, Network
from blinkrun.planner.seeds import arc_order
from blinkrun.planner.simplex import Simplex
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.types import Rank

UNIT = 10**9  # whole-number weight of price 1
_ENOUGH = 1 - 1e-7  # a tree that costs this part of what it may does not improve the program
_MAX_ROUNDS = 2000
_MAX_HUBS = 8  # ranks near which trees are looked for in one round


@dataclass(frozen=True, slots=True)
class Optimum:
    """The solution over all trees.

    Attributes
    ----------
    rates : dict of Column to Fraction
        Trees that reach `bound` together, unless rounding has cost a little.
    columns : tuple of Column
        All trees that were met on the way.
    prices : tuple of Fraction
        Of the resources: the proof of `bound`.
    bound : Fraction
    """

    rates: Mapping[Column, Fraction]
    columns: tuple[Column, ...]
    prices: tuple[Fraction, ...]
    bound: Fraction

    @property
    def rate(self) -> Fraction:
        """Sum of the rates."""
        return sum(self.rates.values(), Fraction(0))


@dataclass(frozen=True, slots=True)
class Exact:
    """A solution of the program in fractions, and what a tree of each root may cost."""

    rates: dict[Column, Fraction]
    prices: tuple[Fraction, ...]
    allowed: dict[Rank | None, Fraction]


class Master:
    """The program over the trees that are known so far.

    Resources that the same arcs take equally often are one row, with the least of the capacities.
    """

    def __init__(self, network: Network, root: Rank | None, columns: Iterable[Column] = ()) -> None:
        self.network = network
        self.root = root
        self._resources, self._rows = _distinct_rows(network)
        limits = [network.capacities[at] for at in self._resources]
        joint = network.size if network.flow.is_joint else 0
        self._row_of = {rank: len(limits) + rank for rank in range(joint)}
        self._simplex = Simplex([*limits, *[0] * joint])
        self._numbers: dict[Column, int] = {}
        if joint:
            self._simplex.add(dict.fromkeys(self._row_of.values(), 1), joint)
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
        other._resources, other._rows = self._resources, self._rows
        other._row_of = self._row_of
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
            for row, times in self._rows[index]:
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
        for at, price in zip(self._resources, found, strict=False):
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
        for at, price in zip(self._resources, vertex.prices, strict=False):
            prices[at] = price
        if not self._row_of:
            return Exact(rates, tuple(prices), {self.root: Fraction(1)})
        allowed: dict[Rank | None, Fraction] = {
            rank: vertex.prices[row] for rank, row in self._row_of.items()
        }
        return Exact(_equal_totals(self.network, rates), tuple(prices), allowed)


def _distinct_rows(network: Network) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Return the resources that matter, and what each arc takes of them, by row."""
    takers: list[list[tuple[int, int]]] = [[] for _ in network.capacities]
    for index, arc in enumerate(network.arcs):
        for at, times in arc.use:
            takers[at].append((index, times))
    least: dict[tuple[tuple[int, int], ...], int] = {}
    for at, taken in enumerate(map(tuple, takers)):
        if taken and network.capacities[at] < network.capacities[least.setdefault(taken, at)]:
            least[taken] = at
    rows: list[list[tuple[int, int]]] = [[] for _ in network.arcs]
    for row, taken in enumerate(least):
        for index, times in taken:
            rows[index].append((row, times))
    return list(least.values()), rows


def _equal_totals(network: Network, rates: Mapping[Column, Fraction]) -> dict[Column, Fraction]:
    """Return `rates` with those roots slowed down that have more than others."""
    totals = [Fraction(0)] * network.size
    for column, rate in rates.items():
        totals[network.root_of(column)] += rate
    least = min(totals)
    if not least:
        return {}
    return {
        column: rate * least / totals[network.root_of(column)] for column, rate in rates.items()
    }


def solve_packing(network: Network, root: Rank | None, columns: Iterable[Column]) -> Optimum:
    """Return the optimum over all trees, starting from `columns` (at least one per root)."""
    master = Master(network, root, dict.fromkeys(columns))
    orders = _orders(network, root)
    for _ in range(_MAX_ROUNDS):
        master.solve()
        new = _improving(master, orders)
        if not new:
            found = _settled(master)
            if isinstance(found, Optimum):
                return found
            new = found
        for column in new:
            master.add(column)
    raise InternalError(f"packing has not converged after {_MAX_ROUNDS} rounds")


def _orders(network: Network, root: Rank | None) -> list[tuple[Rank | None, list[int]]]:
    """Return the roots of trees to look for, and which arcs to prefer among equals."""
    if network.flow.is_joint:
        return [(rank, arc_order(network, rank, rank)) for rank in range(network.size)]
    step = -(-network.size // _MAX_HUBS)
    return [(root, arc_order(network, root, hub)) for hub in range(0, network.size, step)]


def _improving(master: Master, orders: Sequence[tuple[Rank | None, list[int]]]) -> list[Column]:
    """Return trees that cost less than they may."""
    prices, allowed = master.prices()
    weights = master.network.weights([round(price * UNIT) for price in prices])
    found = []
    for root, order in orders:
        column = cheapest_tree(master.network, root, weights, order)
        cost = sum(weights[arc] for arc in column)
        if cost < allowed[root] * UNIT * _ENOUGH and column not in master:
            found.append(column)
    return list(dict.fromkeys(found))


def _settled(master: Master) -> Optimum | list[Column]:
    """Return the optimum, or trees that improve it by less than floating point can see."""
    network = master.network
    exact = master.exact()
    if exact is None:
        return _rounded(master)
    scale = lcm(*(price.denominator for price in exact.prices))
    weights = network.weights([int(price * scale) for price in exact.prices])
    trees = {at: cheapest_tree(network, at, weights) for at in exact.allowed}
    cheaper = [
        tree
        for at, tree in trees.items()
        if sum(weights[arc] for arc in tree) < exact.allowed[at] * scale
    ]
    return cheaper or _proven(master, exact.rates, exact.prices)


def _rounded(master: Master) -> Optimum:
    """Return what floating point says, made to fit; its rate is a little below its bound."""
    prices, _ = master.prices()
    rates = {c: Fraction(rate) for c, rate in master.rates().items() if rate > 0}
    if master.network.flow.is_joint:
        rates = _equal_totals(master.network, rates)
    load = [Fraction(0)] * len(master.network.capacities)
    for column, rate in rates.items():
        for at, times in master.network.use(column).items():
            load[at] += times * rate
    over = max(taken / room for taken, room in zip(load, master.network.capacities, strict=True))
    fitted = {column: rate / over for column, rate in rates.items()}
    return _proven(master, fitted, [Fraction(price) for price in prices])


def _proven(
    master: Master, rates: Mapping[Column, Fraction], prices: Sequence[Fraction]
) -> Optimum:
    """Return the optimum with prices at which trees cost 1."""
    cost = tree_cost(master.network, master.root, prices)
    if cost == 0:
        raise InternalError("no resource prices prove a bound on the packing")
    scaled = tuple(price / cost for price in prices)
    bound = total_price(scaled, master.network.capacities)
    return Optimum(rates, tuple(master), scaled, bound)
