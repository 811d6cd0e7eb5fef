"""Rings as programs: what a library of rings does on the links that `ring_peer` finds.

A ring that is used in both directions is two *directed rings*. Each directed ring carries a share
of the data by its width. Broadcast and reduce run along it as a chain from or to the root,
allgather and reducescatter as such chains of all ranks at once; those are trees and go the way of
trees. Allreduce passes every byte round the ring twice [1]_: the share is cut into a block per
rank, block j is summed from the rank behind the j-th all the way round to the j-th, where it is
whole, and then handed on round the ring.

References
----------
.. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
   workstations", J. Parallel Distrib. Comput. 69, 2009; NCCL, src/collectives/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

from blinkrun.errors import ProgramError
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.planner.rings import RingPeer
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Program, Reduce, Signal, Step
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.lower_builder import MAX_SHARES, Builder, Phase, in_rank_order, waits
from blinkrun.topology.graph import Topology
from blinkrun.types import Collective, Rank

NAME = "ring"
_FEW_SHARES = 4096  # widths that are no small ratios are rounded to so many parts
_CHAINS = {
    Collective.BROADCAST: True,
    Collective.ALLGATHER: True,
    Collective.REDUCE: False,
    Collective.REDUCESCATTER: False,
}  # whether chains lead away from their root


@dataclass(frozen=True, slots=True)
class DirectedRing:
    """A ring that is used in one direction.

    Attributes
    ----------
    order : tuple of Rank
        Data runs from each to the next, and from the last to the first.
    kinds : tuple of str
        Kind of the link from each rank of `order` to the next, as in `LinkKind`.
    width : Fraction
        What it carries per second, in the topology's unit: its part of the data.
    """

    order: tuple[Rank, ...]
    kinds: tuple[str, ...]
    width: Fraction


def directed_rings(peer: RingPeer, topology: Topology) -> tuple[DirectedRing, ...]:
    """Return the rings of `peer` by direction, the onward ones first.

    Rings with the same hops over the same links (lanes to one switch, the lanes between two
    ranks) are given as one: what shares all links runs no faster apart.

    Examples
    --------
    >>> from blinkrun.planner.packing import Flow
    >>> from blinkrun.planner.rings import ring_peer
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1, dgx2 = machine("dgx-1v"), machine("dgx-2")
    >>> len(directed_rings(ring_peer(dgx1, Flow.BOTH), dgx1))  # 3 rings, 2 directions
    6
    >>> [ring.width for ring in directed_rings(ring_peer(dgx2, Flow.BOTH), dgx2)]
    [Fraction(6, 1)]
    """
    widths: dict[tuple[tuple[Rank, ...], tuple[int, ...]], Fraction] = {}
    onward = [(ring.order, ring.links, ring.width) for ring in peer.rings]
    backward = [
        # hop i of `back` leads from order[i + 1] to order[i]
        ((ring.order[0], *reversed(ring.order[1:])), tuple(reversed(ring.back)), ring.width)
        for ring in peer.rings
        if ring.back
    ]
    for order, links, width in (*onward, *backward):
        widths[order, links] = widths.get((order, links), Fraction(0)) + width
    return tuple(
        DirectedRing(order, tuple(topology.links[at].kind.value for at in links), width)
        for (order, links), width in widths.items()
    )


def lower_rings(
    peer: RingPeer,
    topology: Topology,
    collective: Collective,
    root: Rank = 0,
    channels_per_ring: int = 1,
) -> Program:
    """Return the program that carries out `collective` along the rings of `peer`.

    Parameters
    ----------
    peer : RingPeer
        As `ring_peer` gives it for these ranks.
    topology : Topology
        The one that `peer` was made for.
    collective : Collective
        Broadcast, reduce, allreduce, allgather or reducescatter.
    root : Rank, default 0
        Of broadcast and reduce; ignored elsewhere.
    channels_per_ring : int, default 1
        Into how many channels of equal parts the share of a directed ring is cut.

    Returns
    -------
    Program
        Named ``ring``; buffers are addressed directly. It passes `verify`, also with no links but
        those of the rings.

    Raises
    ------
    ProgramError
        If there is no ring, the root is none of the ranks, there is less than one channel per
        ring, or rings know no such collective.
    """
    size = topology.size
    rings = directed_rings(peer, topology)
    if not rings:
        raise ProgramError(f"{topology.name}: no ring joins the {size} ranks")
    if not 0 <= root < size:
        raise ProgramError(f"root {root} is none of the {size} ranks")
    if channels_per_ring < 1:
        raise ProgramError(f"{channels_per_ring} channels per ring, need at least 1")
    if collective is Collective.ALLREDUCE:
        return _lower_allreduce(rings, size, channels_per_ring)
    if collective not in _CHAINS:
        raise ProgramError(f"{collective.label} is nothing that rings do")
    joint = not collective.is_rooted
    program = lower_packing(
        _chains(rings, range(size) if joint else (root,), away=_CHAINS[collective], joint=joint),
        collective,
        root=root,
        channels_per_tree=channels_per_ring,
    )
    return replace(program, name=NAME, pipelined=True)


def _lower_allreduce(rings: Sequence[DirectedRing], size: int, channels: int) -> Program:
    builder = Builder(size)
    bounds = _bounds(rings)
    shares = min(bounds[-1] * size * channels, MAX_SHARES)
    for ring, (start, stop) in zip(rings, pairwise(bounds), strict=True):
        for piece in range(size * channels):
            cuts = (
                (start * size * channels + (stop - start) * at)
                * shares
                // (bounds[-1] * size * channels)
                for at in (piece, piece + 1)
            )
            low, high = cuts
            if low < high:  # else too thin to be seen
                _add_block(builder, ring, piece // channels, Part(low, high))
    program = builder.build(
        Collective.ALLREDUCE, Addressing.DIRECT, shares=shares, depth=2 * (size - 1)
    )
    return replace(program, name=NAME, pipelined=True)


def _add_block(builder: Builder, ring: DirectedRing, owner: int, part: Part) -> None:
    """Add the channels that sum `part` round the ring to its `owner`-th rank, and hand it on.

    Every rank pulls from the one before it. Nobody leaves while the next one still reads: the sum
    that comes round tells that it has read what was there on the first pass, and its own flag
    that it has taken the result.
    """
    size = len(ring.order)
    at = [(owner + 1 + hop) % size for hop in range(size)]  # the owner comes last
    line = [ring.order[place] for place in at]
    kinds = [ring.kinds[place] for place in at]  # of the link to the next of `line`
    flow_root = line[-1]
    summed = [-1, *(builder.flag(rank) for rank in line[1:])]
    taken = [builder.flag(rank) for rank in line[:-1]]
    for hop in range(1, size):
        before, rank = line[hop - 1], line[hop]
        held = Operand(before, Buffer.INPUT if hop == 1 else Buffer.OUTPUT)
        srcs = in_rank_order([held, Operand(rank, Buffer.INPUT)])
        via = ("", *(kinds[hop - 1] if src is held else "" for src in srcs))
        ready = waits([(before, summed[hop - 1])]) if hop > 1 else []
        add = Reduce((Operand(rank, Buffer.OUTPUT),), srcs, final=hop == size - 1, via=via)
        builder.add(rank, Phase.UP, flow_root, part, [*ready, add, Signal(summed[hop])])
    for hop in range(size - 1):
        before = line[hop - 1]  # that of the first is the owner
        ready = waits([(before, taken[hop - 1] if hop else summed[-1])])
        copy = Reduce(
            (Operand(line[hop], Buffer.OUTPUT),),
            (Operand(before, Buffer.OUTPUT),),
            via=("", kinds[hop - 1]),
        )
        builder.add(line[hop], Phase.DOWN, flow_root, part, [*ready, copy, Signal(taken[hop])])
        leave: list[Step] = waits([(line[hop], taken[hop])])
        builder.add(before, Phase.LEAVE, flow_root, part, leave)


def _chains(
    rings: Sequence[DirectedRing], roots: Sequence[Rank], *, away: bool, joint: bool
) -> PlannedPacking:
    """Return every directed ring as a chain from (`away`) or to each root."""
    bounds = _bounds(rings)
    trees = [
        _chain(ring, root, away=away, start=start, stop=stop)
        for root in roots
        for ring, (start, stop) in zip(rings, pairwise(bounds), strict=True)
        if start < stop
    ]
    width = sum((ring.width for ring in rings), Fraction(0))
    return PlannedPacking(bounds[-1], tuple(trees), width, width, "", joint=joint)


def _chain(ring: DirectedRing, root: Rank, *, away: bool, start: int, stop: int) -> PlannedTree:
    """Return the ring without the hop that leads to the root, or from it."""
    size = len(ring.order)
    parents = [-1] * size
    kinds = [""] * size
    for place, rank in enumerate(ring.order):
        after = ring.order[(place + 1) % size]
        parent, child = (rank, after) if away else (after, rank)
        if child != root:
            parents[child] = parent
            kinds[child] = ring.kinds[place]
    none = ("",) * size
    up, down = (none, tuple(kinds)) if away else (tuple(kinds), none)
    return PlannedTree(root, tuple(parents), start, stop, up, down)


def _bounds(rings: Sequence[DirectedRing]) -> list[int]:
    """Return where the shares of the rings begin, by their widths; at the end how many there are.

    >>> _bounds([DirectedRing((0, 1), ("", ""), Fraction(width)) for width in (20, 40)])
    [0, 1, 3]
    """
    total = sum((ring.width for ring in rings), Fraction(0))
    parts = [ring.width / total for ring in rings]
    whole = lcm(*(part.denominator for part in parts))
    shares = whole if whole <= _FEW_SHARES else _FEW_SHARES
    ends = [int(sum(parts[: at + 1], Fraction(0)) * shares) for at in range(len(parts))]
    return [0, *ends]
