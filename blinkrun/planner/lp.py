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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from blinkrun.errors import InternalError
from blinkrun.planner.certificate import total_price, tree_cost
from blinkrun.planner.folding import Folding
from blinkrun.planner.master import Exact, Master, equal_totals
from blinkrun.planner.network import Column, Network
from blinkrun.planner.seeds import arc_order
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.types import Rank

__all__ = ["UNIT", "Exact", "Master", "Optimum", "fitting_rates", "solve_packing"]

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


def solve_packing(
    network: Network,
    root: Rank | None,
    columns: Iterable[Column],
    *,
    folding: Folding | None = None,
    enough: Callable[[Fraction], Fraction] | None = None,
) -> Optimum:
    """Return the optimum over all trees.

    Parameters
    ----------
    network : Network
    root : Rank or None
    columns : iterable of Column
        Trees to start from, at least one per root.
    folding : Folding, optional
        What of the machine is alike, to be quicker; there are then as many trees as renamings for
        each one that the program finds.
    enough : callable, optional
        From the bound to the rate that is wanted, if less: of a folded machine some trees are then
        left out.
    """
    master = Master(network, root, dict.fromkeys(columns), folding=folding)
    orders = _orders(network, root, folding)
    for _ in range(_MAX_ROUNDS):
        master.solve()
        new = _improving(master, orders)
        if not new:
            found = _settled(master, orders)
            if isinstance(found, Exact):
                return _optimum(master, found, folding, enough)
            new = found
        if not new:
            return _rounded(master, folding)
        for column in new:
            master.add(column)
    raise InternalError(f"packing has not converged after {_MAX_ROUNDS} rounds")


def _optimum(
    master: Master,
    exact: Exact,
    folding: Folding | None,
    enough: Callable[[Fraction], Fraction] | None,
) -> Optimum:
    network = master.network
    bound = total_price(exact.prices, network.capacities)
    if folding is None:
        return Optimum(exact.rates, tuple(master), exact.prices, bound)
    rates = exact.rates
    if enough is not None:
        rates = _fewer(Master(network, master.root, rates, folding=folding), enough(bound)) or rates
    whole = folding.turned(network, rates)
    if network.flow.is_joint:
        whole = equal_totals(network, whole)
    return Optimum(whole, tuple(whole), exact.prices, bound)


def _fewer(master: Master, least: Fraction) -> dict[Column, Fraction]:
    """Return trees that reach `least` without those that can be spared; maybe none."""
    for column in tuple(master):
        without = master.copy()
        without.remove(column)
        if without.solve() >= least:
            master = without
    exact = master.exact()
    return exact.rates if exact is not None and sum(exact.rates.values()) >= least else {}


_Orders = Sequence[tuple[Rank | None, list[int]]]


def _orders(network: Network, root: Rank | None, folding: Folding | None) -> _Orders:
    """Return the roots of trees to look for, and which arcs to prefer among equals."""
    if network.flow.is_joint:
        ranks = range(network.size) if folding is None else sorted(set(folding.ranks))
        return [(rank, arc_order(network, rank, rank)) for rank in ranks]
    step = -(-network.size // _MAX_HUBS)
    return [(root, arc_order(network, root, hub)) for hub in range(0, network.size, step)]


def _improving(master: Master, orders: _Orders) -> list[Column]:
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


def _settled(master: Master, orders: _Orders) -> Exact | list[Column]:
    """Return the optimum, or trees that improve it by less than floating point can see.

    No trees at all mean that floating point does not lead to a vertex.
    """
    network = master.network
    exact = master.exact()
    if exact is None:
        return []
    scale = lcm(*(price.denominator for price in exact.prices))
    weights = network.weights([int(price * scale) for price in exact.prices])
    trees = {at: cheapest_tree(network, at, weights) for at, _ in orders}
    cheaper = [
        tree
        for at, tree in trees.items()
        if sum(weights[arc] for arc in tree) < exact.allowed[at] * scale
    ]
    return cheaper or exact


def _rounded(master: Master, folding: Folding | None) -> Optimum:
    """Return what floating point says, made to fit; its rate is a little below its bound."""
    network = master.network
    prices = [Fraction(price) for price in master.prices()[0]]
    cost = tree_cost(network, master.root, prices)
    if cost == 0:
        raise InternalError("no resource prices prove a bound on the packing")
    proof = tuple(price / cost for price in prices)
    rates = {c: Fraction(rate) for c, rate in master.rates().items() if rate > 0}
    whole = rates if folding is None else folding.turned(network, rates)
    return Optimum(
        rates=fitting_rates(network, whole),
        columns=tuple(master) if folding is None else tuple(whole),
        prices=proof,
        bound=total_price(proof, network.capacities),
    )


def fitting_rates(network: Network, rates: Mapping[Column, Fraction]) -> dict[Column, Fraction]:
    """Return `rates`, slowed down as far as the fullest resource asks.

    Where every rank is a root, those roots are slowed down first that have more than others.
    """
    equal = equal_totals(network, rates) if network.flow.is_joint else dict(rates)
    load = [Fraction(0)] * len(network.capacities)
    for column, rate in equal.items():
        for at, times in network.use(column).items():
            load[at] += times * rate
    over = max(taken / room for taken, room in zip(load, network.capacities, strict=True))
    return {column: rate / max(over, Fraction(1)) for column, rate in equal.items()}
