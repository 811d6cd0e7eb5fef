"""Solutions carried over from one root to another that looks the same.

A renaming of the ranks under which all arcs and resources fall onto one another carries packings
and certificates with it. On most machines the roots fall into one or two classes, and reduce is
broadcast with every link turned round; so a plan needs few solutions, and equal roots get equal
trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blinkrun.planner.network import Network
from blinkrun.planner.seeds import Packed, Rooted
from blinkrun.types import Rank

_ArcKey = tuple[Rank, Rank, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Renaming:
    """Where each rank, arc and resource of one network is found in another."""

    ranks: tuple[int, ...]
    arcs: tuple[int, ...]
    resources: tuple[int, ...]

    def carry(self, packed: Packed) -> Packed:
        """Return the same packing with the other network's names."""
        trees = [
            Rooted(
                tree.depth,
                self.ranks[tree.root],
                tuple(sorted(self.arcs[index] for index in tree.column)),
            )
            for tree in packed.trees
        ]
        rate_of = dict(zip(trees, packed.rates, strict=True))
        prices = list(packed.prices)
        for at, price in zip(self.resources, packed.prices, strict=True):
            prices[at] = price
        trees.sort()
        return Packed(
            tuple(trees), tuple(rate_of[tree] for tree in trees), tuple(prices), packed.bound
        )


def find_renaming(source: Network, target: Network, from_root: Rank, root: Rank) -> Renaming | None:
    """Return a renaming from `source` to `target` that takes `from_root` to `root`.

    Only simple ones are tried; None does not mean that there is none.
    """
    for ranks in _candidates(source.size, from_root, root):
        renaming = _renaming(source, target, ranks)
        if renaming is not None:
            return renaming
    return None


def _candidates(size: int, from_root: Rank, root: Rank) -> Iterator[tuple[int, ...]]:
    """Yield permutations of the ranks: a swap, a bit flip (cube meshes), a rotation."""
    swap = {from_root: root, root: from_root}
    seen = set()
    for ranks in (
        tuple(swap.get(rank, rank) for rank in range(size)),
        tuple(rank ^ from_root ^ root for rank in range(size)),
        tuple((rank + root - from_root) % size for rank in range(size)),
    ):
        if max(ranks) < size and ranks not in seen:
            seen.add(ranks)
            yield ranks


def _renaming(source: Network, target: Network, ranks: tuple[int, ...]) -> Renaming | None:
    """Return the renaming that moves ranks like this, if the rest can follow."""
    by_key = _arcs_by_key(target)
    if len(by_key) != len(source.arcs) or len(target.arcs) != len(source.arcs):
        return None
    arcs = []
    for index in range(len(source.arcs)):
        parent, child, width = _arc_key(source, index)
        found = by_key.get((ranks[parent], ranks[child], width))
        if found is None:
            return None
        arcs.append(found)
    takers: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = {}
    for at, taken in enumerate(_takers(target, range(len(arcs)))):
        takers.setdefault((target.capacities[at], taken), []).append(at)
    resources = []
    for at, taken in enumerate(_takers(source, arcs)):
        alike = takers.get((source.capacities[at], taken))
        if not alike:
            return None
        resources.append(alike.pop())
    return Renaming(ranks, tuple(arcs), tuple(resources))


def _arc_key(network: Network, index: int) -> _ArcKey:
    """Return what tells an arc from parallel ones whatever its resources are called."""
    arc = network.arcs[index]
    width = tuple(sorted((network.capacities[at], times) for at, times in arc.use))
    return arc.parent, arc.child, width


def _arcs_by_key(network: Network) -> dict[_ArcKey, int]:
    return {_arc_key(network, index): index for index in range(len(network.arcs))}


def _takers(network: Network, names: range | list[int]) -> list[tuple[tuple[int, int], ...]]:
    """Return for every resource which arcs (by their new names) take it, and how often."""
    takers: list[list[tuple[int, int]]] = [[] for _ in network.capacities]
    for name, arc in zip(names, network.arcs, strict=True):
        for at, times in arc.use:
            takers[at].append((name, times))
    return [tuple(sorted(taken)) for taken in takers]
