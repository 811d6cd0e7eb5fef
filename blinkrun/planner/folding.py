"""What looks alike counts once: linear programs of large machines, folded along their symmetry.

Where a renaming of the ranks takes a machine to itself, it takes an optimum to an optimum, and the
mean of the two is one as well. So some optimum gives equal shares to all resources that renamings
exchange, and the program needs one row for all of these together [1]_: a handful instead of the
hundreds of a rack behind a switch. Its trees are then turned round by every renaming, each at the
same part of the rate, and together load what is alike alike.

The renamings are those that turn exchangeable blocks of ranks round (see `orbits`): the GPUs of a
host, and the hosts.

References
----------
.. [1] R. Bödi, T. Grundhöfer, K. Herr, "Symmetries of linear programs", Note di Matematica 30
   (2010), 129-132.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from blinkrun.planner.network import Column, Network, network_of
from blinkrun.planner.orbits import Block, blocks_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.symmetry import Renaming, Shape, shape_of
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

_MAX_TURNS = 512

_Key = tuple[Rank, Rank, tuple[tuple[int, int], ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Folding:
    """Renamings that take a machine to itself, and what they make equal.

    Attributes
    ----------
    resources : tuple of int
        Per resource the first one that it is exchanged with.
    ranks : tuple of Rank
        The same for ranks.
    turns : tuple of tuple of Rank
        The renamings, a group: turning by all of them makes equal what is alike.
    shape : Shape
        Of the machine's links.
    """

    resources: tuple[int, ...]
    ranks: tuple[Rank, ...]
    turns: tuple[Renaming, ...]
    shape: Shape

    def turned(self, network: Network, rates: Mapping[Column, Fraction]) -> dict[Column, Fraction]:
        """Return the trees turned round by every renaming, each with its part of the rate."""
        arc_of = {arc.links: index for index, arc in enumerate(network.arcs)}
        taken = sorted({index for column in rates for index in column})
        links = {link for index in taken for link in network.arcs[index].links}
        arcs = {key: index for key, index in self.shape.arcs.items() if index in links}
        found: dict[Column, Fraction] = {}
        for ranks in self.turns:
            goes = _links(self.shape, arcs, ranks)
            where = {
                index: arc_of[tuple(sorted(goes[link] for link in network.arcs[index].links))]
                for index in taken
            }
            for column, rate in rates.items():
                image = tuple(sorted(where[index] for index in column))
                found[image] = found.get(image, Fraction(0)) + rate / len(self.turns)
        return found


def folding_of(topology: Topology, root: Rank | None) -> Folding | None:
    """Return how the machine can be folded with `root` in its place, or None if it is lopsided.

    Parameters
    ----------
    topology : Topology
        Without relays.
    root : Rank or None
        Of broadcast and reduce.
    """
    # without relays, the arcs of this flow are the links, in their order
    shape = shape_of(network_of(topology, Flow.ALL_DOWN))
    blocks = blocks_of(shape, root)
    if not 1 < prod(len(block.ranks) for block in blocks) <= _MAX_TURNS:
        return None
    steps = [
        _renaming(topology.size, [(block, order)]) for block in blocks for order in _steps(block)
    ]
    turns = [
        _renaming(topology.size, list(zip(blocks, orders, strict=True)))
        for orders in product(*(list(_orders(block)) for block in blocks))
    ]
    moved = [_resources(shape, _links(shape, shape.arcs, ranks)) for ranks in steps]
    return Folding(
        resources=_merged(len(topology.resources), moved),
        ranks=_merged(topology.size, steps),
        turns=tuple(turns),
        shape=shape,
    )


def _renaming(size: int, orders: Sequence[tuple[Block, tuple[Rank, ...]]]) -> Renaming:
    """Return the renaming that puts the ranks of some blocks into other orders."""
    ranks = list(range(size))
    for block, order in orders:
        for rank, goes in zip(block.ranks, order, strict=True):
            ranks[rank] = goes
    return tuple(ranks)


def _orders(block: Block) -> Iterator[tuple[Rank, ...]]:
    """Yield the ranks of a block with its parts turned round, and theirs, all parts alike."""
    if not block.parts:
        yield block.ranks
        return
    for inner in zip(*map(_orders, block.parts), strict=True):
        for turn in range(len(inner)):
            yield tuple(rank for part in (*inner[turn:], *inner[:turn]) for rank in part)


def _steps(block: Block) -> Iterator[tuple[Rank, ...]]:
    """Yield those of the orders of which all others are made: one depth turned by one part."""
    if block.parts:
        first, *others = block.parts
        yield tuple(rank for part in (*others, first) for rank in part.ranks)
        for inner in zip(*map(_steps, block.parts), strict=True):
            yield tuple(rank for part in inner for rank in part)


def _links(shape: Shape, arcs: Mapping[_Key, int], ranks: Renaming) -> dict[int, int]:
    """Return where links go; the arcs of `shape` are single links, with equal numbers."""
    return {
        index: shape.arcs[(ranks[parent], ranks[child], width, kinds)]
        for (parent, child, width, kinds), index in arcs.items()
    }


def _resources(shape: Shape, links: Mapping[int, int]) -> list[int]:
    """Return where each resource goes; which of several with equal takers makes no difference."""
    capacities = shape.network.capacities
    place: dict[object, int] = {}
    for at, taken in enumerate(shape.takers):
        place.setdefault((capacities[at], taken), at)
    return [
        place[capacities[at], tuple(sorted((links[link], times) for link, times in taken))]
        for at, taken in enumerate(shape.takers)
    ]


def _merged(size: int, renamings: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the least thing that each one goes to or comes from, by any chain of renamings."""
    least = list(range(size))
    changed = True
    while changed:
        changed = False
        for goes in renamings:
            for at, to in enumerate(goes):
                if least[at] != least[to]:
                    least[at] = least[to] = min(least[at], least[to])
                    changed = True
    return tuple(least)
