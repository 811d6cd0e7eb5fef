"""Trees that carry whole numbers of equal shares, to start the search for few trees from.

Where no two arcs share a resource, theorems say how many unit trees fit side by side and how to
find them (see `forests` and `branchings`). Most machines have such a part: the NVLinks of a
mesh beside its PCIe tree. Where it reaches the wanted rate by itself, its trees are few and plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from blinkrun.errors import UnreachableRankError
from blinkrun.planner.branchings import pack_branchings
from blinkrun.planner.certificate import total_price
from blinkrun.planner.forests import pack_forests
from blinkrun.planner.network import Column, Network, shallow_tree
from blinkrun.types import Rank

_MAX_SHARES = 24


def whole_trees(
    network: Network, root: Rank | None, prices: Sequence[Fraction], target: Fraction
) -> list[Column]:
    """Return trees that reach `target` at rates that are multiples of one another, if any do.

    Parameters
    ----------
    network : Network
        Of allreduce, broadcast or reduce, without relays.
    root : Rank or None
    prices : sequence of Fraction
        Of the network's resources, at which every tree costs at least 1.
    target : Fraction
        The wanted rate.
    """
    part, arcs, resources = separate_part(network)
    if root is None:
        found = _forests(part, [prices[at] for at in resources], target)
    else:
        found = _branchings(part, root, target)
    return [tuple(sorted(arcs[index] for index in column)) for column in found]


def separate_part(network: Network) -> tuple[Network, list[int], list[int]]:
    """Return arcs that share nothing, and what they and their resources are in the whole.

    Of parallel arcs and others that do share something, the first and widest stays; arcs that take
    more resources than others are not looked at.
    """
    fewest = min(sum(times for _, times in arc.use) for arc in network.arcs)
    simple = [
        index for index, arc in enumerate(network.arcs) if sum(n for _, n in arc.use) == fewest
    ]
    kept: list[int] = []
    taken: dict[int, int] = {}  # resources, and their numbers in the part
    for index in sorted(simple, key=lambda index: (-_width(network, index), index)):
        use = [at for at, _ in network.arcs[index].use]
        if not any(at in taken for at in use):
            kept.append(index)
            taken |= {at: len(taken) + place for place, at in enumerate(use)}
    kept.sort()
    part = Network(
        network.flow,
        network.size,
        tuple(network.capacities[at] for at in taken),
        tuple(
            replace(arc, use=tuple((taken[at], times) for at, times in arc.use))
            for arc in (network.arcs[index] for index in kept)
        ),
    )
    return part, kept, list(taken)


def _width(network: Network, index: int) -> Fraction:
    return min(Fraction(network.capacities[at], n) for at, n in network.arcs[index].use)


def _forests(part: Network, prices: Sequence[Fraction], target: Fraction) -> list[Column]:
    """Return the least number of spanning trees with equal rates, each once."""
    for shares in range(1, _MAX_SHARES + 1):
        room = [int(capacity * shares / target) for capacity in part.capacities]
        can_fit = total_price(prices, room) >= shares
        trees = pack_forests(part, room, shares) if can_fit else []
        if trees:
            return list(dict.fromkeys(trees))
    return []


def _branchings(part: Network, root: Rank, target: Fraction) -> list[Column]:
    """Return unit arborescences, each once."""
    try:
        shallow_tree(part, root, root)
    except UnreachableRankError:
        return []
    packed = pack_branchings(part, root, Fraction(0))
    if packed is None or packed.rate < target:
        return []
    return [tree.column for tree in packed.trees]
