"""The shallowest trees, and the quick exact check whether they alone are optimal.

On a switch, or a socket's shared memory, they are: one-hop stars for allreduce, at most two hops
from a root. Finding that out takes whole-number arithmetic only, no solver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.planner.certificate import total_price
from blinkrun.planner.network import Column, Network, levels, shallow_tree
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True, order=True)
class Rooted:
    """A tree with the rank that it hangs from."""

    depth: int
    root: Rank
    column: Column


@dataclass(frozen=True, slots=True)
class Packed:
    """Trees, a positive rate for each, and resource prices that prove a bound."""

    trees: tuple[Rooted, ...]
    rates: tuple[Fraction, ...]
    prices: tuple[Fraction, ...]
    bound: Fraction

    @property
    def rate(self) -> Fraction:
        """Sum of the rates."""
        return sum(self.rates, Fraction(0))


def rooted(network: Network, root: Rank | None, column: Column) -> Rooted:
    """Return the tree hung from `root`, or where it is shallowest if any root will do."""
    at = network.centre(column) if root is None else root
    return Rooted(network.depth(column, at), at, column)


def starts(network: Network, root: Rank | None) -> list[tuple[Rank | None, Rank, Rank]]:
    """Return (root, where to start, hub) of the trees to begin with.

    Where all ranks are roots each is its own hub; a tree from one through another hub is left to
    the linear program.
    """
    if network.flow.is_joint:
        return [(rank, rank, rank) for rank in range(network.size)]
    return [(root, hub if root is None else root, hub) for hub in range(network.size)]


def arc_order(network: Network, root: Rank | None, hub: Rank) -> list[int]:
    """Return which arcs to prefer among equals: those close to `hub`.

    At equal distance ``rank ^ hub`` decides, so that hubs do not all favour the same ranks.
    """
    start = hub if root is None else root
    hops = levels(network.parents(shallow_tree(network, start, hub), hub))
    keys = [
        (min(hops[arc.parent], hops[arc.child]), arc.parent ^ hub, arc.child ^ hub, index)
        for index, arc in enumerate(network.arcs)
    ]
    return [key[-1] for key in sorted(keys)]


def shallow_trees(network: Network, root: Rank | None) -> list[Rooted]:
    """Return the shallowest tree of every hub, without repeats.

    An undirected tree hangs from its hub where that is one of its centres, so that two ranks give
    two trees: half the data turns round at each.
    """
    trees = []
    for own_root, start, hub in starts(network, root):
        column = shallow_tree(network, start, hub)
        trees.append(_hung(network, own_root, start, column))
    return list(dict.fromkeys(trees))


def sparing_trees(
    network: Network, root: Rank | None, hubs: Collection[Rank] | None = None
) -> list[Rooted]:
    """Return trees that take least of the resources, relative to capacities, near each hub.

    Every rank is a hub unless `hubs` are given.
    """
    scale = max(network.capacities) * 1000
    weights = network.weights([scale // capacity for capacity in network.capacities])
    trees = []
    for own_root, start, hub in starts(network, root):
        if hubs is None or hub in hubs:
            column = cheapest_tree(network, own_root, weights, arc_order(network, own_root, hub))
            trees.append(_hung(network, own_root, start, column))
    return list(dict.fromkeys(trees))


def _hung(network: Network, root: Rank | None, hub: Rank, column: Column) -> Rooted:
    best = rooted(network, root, column)
    depth = network.depth(column, hub)
    return Rooted(depth, hub, column) if depth == best.depth else best


def certified(network: Network, root: Rank | None, trees: Sequence[Rooted]) -> Packed | None:
    """Return an optimal packing with equal rates of some of `trees`, if there is an obvious one.

    Tried are all trees of one depth, shallow ones first. The proof prices the resources that are
    full equally: those are the cut, if the packing is optimal.
    """
    if network.flow.is_joint:
        return _equal_rates(network, root, trees)
    for depth in sorted({tree.depth for tree in trees}):
        packed = _equal_rates(network, root, [tree for tree in trees if tree.depth == depth])
        if packed is not None:
            return packed
    return None


def single_tree(network: Network, root: Rank, packed: Packed, trees: Sequence[Rooted]) -> Packed:
    """Return the shallowest one of `trees` if it alone is optimal, else `packed`, which is.

    (For allreduce several trees are kept: they share the work of turning the data round.)
    """
    sparing = sparing_trees(network, root, hubs=(root,))
    for tree in sorted((*trees, *sparing)):
        rate, _ = common_rate(network, [tree])
        if rate == packed.bound:
            return Packed((tree,), (rate,), packed.prices, packed.bound)
    return packed


def _equal_rates(network: Network, root: Rank | None, trees: Sequence[Rooted]) -> Packed | None:
    rate, full = common_rate(network, trees)
    weights = network.weights(full)
    least = 0
    for number, own in enumerate(network.roots if root is None else (root,)):
        cost = sum(weights[arc] for arc in cheapest_tree(network, own, weights))
        if network.flow.is_joint and cost < sum(weights[arc] for arc in trees[number].column):
            return None  # full resources are not the cut: this root can go round them
        least += cost
    if least == 0:
        return None
    many = network.size if network.flow.is_joint else 1
    prices = tuple(Fraction(at * many, least) for at in full)
    bound = total_price(prices, network.capacities)
    if bound != rate * len(trees):
        return None
    return Packed(tuple(trees), (rate,) * len(trees), prices, bound)


def common_rate(network: Network, trees: Sequence[Rooted]) -> tuple[Fraction, list[bool]]:
    """Return the rate that all trees can have at once, and which resources are full then."""
    load: Counter[int] = Counter()
    for tree in trees:
        load.update(network.use(tree.column))
    room = {at: Fraction(network.capacities[at], times) for at, times in load.items()}
    rate = min(room.values())
    return rate, [room.get(at) == rate for at in range(len(network.capacities))]
