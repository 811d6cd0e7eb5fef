"""The parts that all lowerings share: flags, slots and channels, handed out rank by rank."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise

from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Step,
    Wait,
)
from blinkrun.types import Collective, Rank

SLOT_DEPTH = 4  # chunks per slot: one being filled, one reduced, one taken, one to spare
WINDOW = 2  # chunks that a rank may be ahead of those it hands them to, or takes them from
MAX_SHARES = 1 << 20  # times a count below 2**40 this stays inside 64 bits


class Phase(IntEnum):
    """Order in which a rank's scheduler looks at its channels: what feeds others comes first."""

    POST = 0  # where messages are to arrive
    PUT = 1
    UP = 2
    DOWN = 3
    LEAVE = 4


class Builder:
    """Collects the channels of a program; flags and slots are numbered per rank.

    Parameters
    ----------
    size : int
        Number of ranks.
    slot_depth : int
        Chunks that a SCRATCH slot holds, and messages of a stream that are under way at a time.
    hosts : tuple of int
        The host of every rank; empty: all are on one.
    """

    def __init__(
        self, size: int, slot_depth: int = SLOT_DEPTH, hosts: tuple[int, ...] = ()
    ) -> None:
        self.size = size
        self.slot_depth = slot_depth
        self.hosts = hosts
        self._flags = [0] * size
        self._slots = [0] * size
        self._streams: dict[tuple[Rank, Rank], int] = {}
        self._channels: list[list[tuple[Phase, int, Channel]]] = [[] for _ in range(size)]

    def flag(self, rank: Rank) -> int:
        """Return a new flag of `rank`."""
        self._flags[rank] += 1
        return self._flags[rank] - 1

    def slot(self, rank: Rank) -> Operand:
        """Return a new SCRATCH slot of `rank`."""
        self._slots[rank] += 1
        return Operand(rank, Buffer.SCRATCH, self._slots[rank] - 1)

    def stream(self, src: Rank, dst: Rank) -> int:
        """Return a new stream of messages from `src` to `dst`, on another host."""
        number = self._streams.get((src, dst), 0)
        self._streams[src, dst] = number + 1
        return number

    def is_far(self, rank: Rank, other: Rank) -> bool:
        """Return whether the two are on different hosts."""
        return bool(self.hosts) and self.hosts[rank] != self.hosts[other]

    def add(self, rank: Rank, phase: Phase, root: Rank, part: Part, steps: Iterable[Step]) -> None:
        """Give `rank` a channel, unless `steps` is empty; `root` is that of the tree it serves."""
        channel_steps = tuple(steps)
        if channel_steps:
            # Each rank starts with the tree next to its own, so that not all meet at one peer.
            turn = (root - rank) % self.size
            self._channels[rank].append((phase, turn, Channel(part, channel_steps)))

    def build(
        self,
        collective: Collective,
        addressing: Addressing,
        *,
        shares: int,
        depth: int,
        root: Rank = 0,
    ) -> Program:
        """Return the program; `depth` is that of the deepest tree."""
        ranks = tuple(
            RankProgram(channels=tuple(c for _, _, c in sorted(own, key=lambda e: e[:2])))
            for own in self._channels
        )
        slots = max(self._slots)
        return Program(
            collective,
            root,
            addressing,
            shares,
            ranks,
            slots=slots,
            slot_depth=self.slot_depth if slots else 1,
            # Over hosts always, so that all cut alike, however each addresses its own memory.
            pipelined=bool(self.hosts)
            or depth > 1
            or (addressing is not Addressing.DIRECT and self.size > 1),
            name="stars" if depth <= 1 else "trees",
            hosts=self.hosts,
        )


def waits(flags: Iterable[tuple[Rank, int]], lag: int = 0) -> list[Step]:
    """Return a `Wait` for each (rank, flag), in the given order."""
    return [Wait(rank, flag, lag) for rank, flag in flags]


def in_rank_order(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return the operands by rank: the order of additions that every run repeats."""
    return tuple(sorted(operands, key=lambda operand: operand.rank))


def shares_of(packing: PlannedPacking, channels: int = 1) -> int:
    """Return into how many shares a program cuts a block, with so many channels per tree."""
    return min(packing.shares * channels, MAX_SHARES)


def parts_of(
    tree: PlannedTree, packing: PlannedPacking, shares: int, channels: int = 1
) -> list[Part]:
    """Return the tree's part in units of `shares`, cut for so many channels.

    None where it is too thin to be seen there, fewer where it is too thin for all.
    """
    start = tree.start * shares // packing.shares
    stop = tree.stop * shares // packing.shares
    cuts = [start + (stop - start) * at // channels for at in range(channels + 1)]
    return [Part(low, high) for low, high in pairwise(cuts) if low < high]
