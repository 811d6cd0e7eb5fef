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

from collections.abc import Iterable, Mapping, Sequence
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

_UNIT = 10**9  # whole-number weight of price 1
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


class Master:
    """The program over the trees that are known so far."""

    def __init__(self, network: Network, root: Rank | None, columns: Iterable[Column] = ()) -> None:
        self.network = network
        self.root = root
        self.numbers: dict[Column, int] = {}
        resources = len(network.capacities)
        joint = network.size if network.flow.is_joint else 0
        self._simplex = Simplex((*network.capacities, *[0] * joint), scale=min(network.capacities))
        self._row_of = {rank: resources + rank for rank in range(joint)}
        if joint:
            self._simplex.add(dict.fromkeys(self._row_of.values(), 1), joint)
        for column in columns:
            self.add(column)

    def add(self, column: Column) -> None:
        """Add a tree that is not known yet."""
        use: dict[int, int] = dict(self.network.use(column))
        if self._row_of:
            use[self._row_of[self.network.root_of(column)]] = -1
        self.numbers[column] = self._simplex.add(use, 0 if self._row_of else 1)

    def solve(self) -> float:
        """Return the best total rate of the known trees."""
        return self._simplex.solve() * min(self.network.capacities)

    @property
    def rates(self) -> dict[Column, float]:
        """What each tree carries in the last solution."""
        values = self._simplex.values
        return {column: values[number] for column, number in self.numbers.items()}

    def prices(self) -> tuple[list[float], dict[Rank | None, float]]:
        """Return the price of each resource, and what a tree of each root may cost."""
        prices = self._simplex.prices
        if not self._row_of:
            return prices, {self.root: 1.0}
        return prices[: len(self.network.capacities)], {
            rank: prices[row] for rank, row in self._row_of.items()
        }

    def exact(
        self,
    ) -> tuple[dict[Column, Fraction], list[Fraction], dict[Rank | None, Fraction]] | None:
        """Return rates, prices and what trees may cost in fractions; None where that fails."""
        vertex = self._simplex.vertex()
        if vertex is None:
            return None
        rates = {c: vertex.values[n] for c, n in self.numbers.items() if vertex.values[n]}
        prices = list(vertex.prices[: len(self.network.capacities)])
        if not self._row_of:
            return rates, prices, {self.root: Fraction(1)}
        rates = _equal_totals(self.network, rates)
        return rates, prices, {rank: vertex.prices[row] for rank, row in self._row_of.items()}


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
    weights = master.network.weights([round(price * _UNIT) for price in prices])
    found = []
    for root, order in orders:
        column = cheapest_tree(master.network, root, weights, order)
        cost = sum(weights[arc] for arc in column)
        if cost < allowed[root] * _UNIT * _ENOUGH and column not in master.numbers:
            found.append(column)
    return list(dict.fromkeys(found))


def _settled(master: Master) -> Optimum | list[Column]:
    """Return the optimum, or trees that improve it by less than floating point can see."""
    network = master.network
    exact = master.exact()
    if exact is None:
        return _rounded(master)
    rates, prices, allowed = exact
    scale = lcm(*(price.denominator for price in prices))
    weights = network.weights([int(price * scale) for price in prices])
    trees = {at: cheapest_tree(network, at, weights) for at in allowed}
    cheaper = [
        tree
        for at, tree in trees.items()
        if sum(weights[arc] for arc in tree) < allowed[at] * scale and tree not in master.numbers
    ]
    return cheaper or _proven(master, rates, prices)


def _rounded(master: Master) -> Optimum:
    """Return what floating point says, made to fit; its rate is a little below its bound."""
    prices, _ = master.prices()
    rates = {c: Fraction(rate) for c, rate in master.rates.items() if rate > 0}
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
    return Optimum(rates, tuple(master.numbers), scaled, bound)
