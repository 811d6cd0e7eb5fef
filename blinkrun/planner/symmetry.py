"""Which roots look the same, so that one solution serves them all.

A renaming of the ranks under which all arcs and resources fall onto one another carries packings
and certificates with it. On most machines the roots fall into one or two classes, and reduce is
broadcast with every link turned round; so a plan needs few solutions, and equal roots get equal
trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blinkrun.planner.network import Network
from blinkrun.types import Rank

Renaming = tuple[Rank, ...]  # where each rank goes
_Taken = tuple[tuple[int, int], ...]  # arcs that take a resource, and how often each


@dataclass(frozen=True, slots=True)
class Shape:
    """A network prepared for comparison with others.

    Attributes
    ----------
    network : Network
    arcs : dict
        Arc by its ends, by what tells it from parallel ones whatever its resources are called, and
        by the kinds of its links.
    takers : tuple
        Per resource the arcs that take it.
    alike : dict
        How many resources have this capacity and these takers.
    """

    network: Network
    arcs: dict[tuple[Rank, Rank, _Taken, tuple[str, ...]], int]
    takers: tuple[_Taken, ...]
    alike: dict[tuple[int, _Taken], int]


def shape_of(network: Network) -> Shape:
    """Return `network` prepared for `find_renaming`."""
    arcs = {}
    takers: list[list[tuple[int, int]]] = [[] for _ in network.capacities]
    for index, arc in enumerate(network.arcs):
        width = tuple(sorted((network.capacities[at], times) for at, times in arc.use))
        arcs[arc.parent, arc.child, width, arc.kinds] = index
        for at, times in arc.use:
            takers[at].append((index, times))
    alike: dict[tuple[int, _Taken], int] = {}
    for capacity, taken in zip(network.capacities, takers, strict=True):
        key = (capacity, tuple(taken))
        alike[key] = alike.get(key, 0) + 1
    return Shape(network, arcs, tuple(map(tuple, takers)), alike)


def find_renaming(source: Shape, target: Shape, from_root: Rank, root: Rank) -> Renaming | None:
    """Return a renaming of the ranks that takes one network to another and `from_root` to `root`.

    Only simple ones are tried; None does not mean that there is none.
    """
    for ranks in _candidates(source.network.size, from_root, root):
        if _fits(source, target, ranks):
            return ranks
    return None


def is_symmetry(shape: Shape, ranks: Renaming) -> bool:
    """Whether a renaming takes the network to itself."""
    return _fits(shape, shape, ranks)


def _candidates(size: int, from_root: Rank, root: Rank) -> Iterator[Renaming]:
    """Yield permutations of the ranks: a swap, a bit flip (cube meshes), a rotation."""
    swap = {from_root: root, root: from_root}
    for ranks in (
        tuple(swap.get(rank, rank) for rank in range(size)),
        tuple(rank ^ from_root ^ root for rank in range(size)),
        tuple((rank + root - from_root) % size for rank in range(size)),
    ):
        if max(ranks) < size:
            yield ranks


def _fits(source: Shape, target: Shape, ranks: Renaming) -> bool:
    """Whether arcs and resources of `source` fall onto those of `target`, one to one."""
    whole = len(source.network.arcs)
    if not whole == len(target.network.arcs) == len(source.arcs) == len(target.arcs):
        return False
    arcs: list[int] = [0] * whole
    for (parent, child, width, kinds), index in source.arcs.items():
        found = target.arcs.get((ranks[parent], ranks[child], width, kinds))
        if found is None:
            return False
        arcs[index] = found
    return _alike(source, arcs) == target.alike


def _alike(source: Shape, arcs: Sequence[int]) -> dict[tuple[int, _Taken], int]:
    alike: dict[tuple[int, _Taken], int] = {}
    for capacity, taken in zip(source.network.capacities, source.takers, strict=True):
        key = (capacity, tuple(sorted((arcs[index], times) for index, times in taken)))
        alike[key] = alike.get(key, 0) + 1
    return alike
