"""One-shot programs for small blocks: copy into shared memory, meet, read what the others left.

They need no flags: every prologue comes before every channel, and the executor alternates
between two copies of the scratch area, so a rank may fill one while others still read the other.
"""

from __future__ import annotations

from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Reduce,
)
from blinkrun.types import Collective, Rank

_WHOLE = Part(0, 1)
_SPLIT = (Collective.REDUCESCATTER, Collective.ALLTOALL)  # a block of INPUT for every rank


def lower_eager(collective: Collective, size: int, root: Rank = 0) -> Program:
    """Return the one-shot program of `collective`, for blocks that fit one slot.

    It needs no plan and serves private and arena buffers alike.

    Raises
    ------
    ProgramError
        If `root` is none of the `size` ranks.
    """
    ranks = tuple(
        RankProgram(_channels(_puts(collective, size, rank, root)),
                    _channels(_takes(collective, size, rank, root)))
        for rank in range(size)
    )  # fmt: skip
    return Program(
        collective,
        root if collective.is_rooted else 0,
        Addressing.STAGED,
        shares=1,
        ranks=ranks,
        slots=size if collective in _SPLIT else 1,
        eager=True,
        name="one-shot",
    )


def _channels(steps: list[Reduce]) -> tuple[Channel, ...]:
    return (Channel(_WHOLE, tuple(steps)),) if steps else ()


def _puts(collective: Collective, size: int, rank: Rank, root: Rank) -> list[Reduce]:
    """Return the copies that make `rank`'s INPUT visible to the ranks that need it."""
    put = Reduce((Operand(rank, Buffer.SCRATCH),), (Operand(rank, Buffer.INPUT),))
    if collective in _SPLIT:
        return [
            Reduce((Operand(rank, Buffer.SCRATCH, b),), (Operand(rank, Buffer.INPUT, b),))
            for b in range(size)
            if b != rank
        ]
    needed = {
        Collective.ALLREDUCE: True,
        Collective.ALLGATHER: size > 1,
        Collective.BROADCAST: size > 1 and rank == root,
        Collective.REDUCE: rank != root,
    }
    return [put] if needed.get(collective, False) else []


def _takes(collective: Collective, size: int, rank: Rank, root: Rank) -> list[Reduce]:
    """Return the steps that make `rank`'s OUTPUT from what lies in SCRATCH.

    Allreduce reads its own contribution from SCRATCH too: there it is rounded as the others see
    it, so all ranks get the same bits.
    """
    output = Operand(rank, Buffer.OUTPUT)
    slots = [Operand(r, Buffer.SCRATCH) for r in range(size)]
    mine = [
        _own_or(r, r == rank, Operand(r, Buffer.SCRATCH, rank), rank) for r in range(size)
    ]  # the blocks for this rank, where INPUT has one for each
    match collective:
        case Collective.ALLREDUCE:
            return [Reduce((output,), tuple(slots), final=True)]
        case Collective.BROADCAST:
            return [Reduce((output,), (_own_or(rank, rank == root, slots[root]),))]
        case Collective.REDUCE:
            srcs = tuple(_own_or(r, r == rank, slots[r]) for r in range(size))
            return [Reduce((output,), srcs, final=True)] if rank == root else []
        case Collective.REDUCESCATTER:
            return [Reduce((output,), tuple(mine), final=True)]
    blocks = [_own_or(r, r == rank, slots[r]) for r in range(size)]
    if collective is Collective.ALLTOALL:
        blocks = mine
    return [Reduce((Operand(rank, Buffer.OUTPUT, r),), (block,)) for r, block in enumerate(blocks)]


def _own_or(rank: Rank, own: bool, other: Operand, block: int = 0) -> Operand:
    """Return `rank`'s INPUT if it is the reader's own, else the slot where others find it."""
    return Operand(rank, Buffer.INPUT, block) if own else other
