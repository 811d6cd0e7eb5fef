"""What of a program devices can run, where not all of them can address each other's memory.

`reach[a][b]` says whether the device of rank a can address that of rank b, among all ranks of the
program; what it says of ranks on different hosts is not looked at. An operand that a plan sends
through the host's memory (`Reduce.via`) is out of reach whatever the devices can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkrun.schedule.ir import Buffer, Operand, Program, Reduce, Signal, Step, Wait
from blinkrun.topology.graph import LinkKind
from blinkrun.types import Rank

Reach = Sequence[Sequence[bool]]
Slot = tuple[Rank, int]


def fits(program: Program, reach: Reach) -> bool:
    """Return whether each rank can address the INPUT and OUTPUT that `program` lets it touch.

    SCRATCH may be out of reach: such slots are hosted, see `hosted_slots`.
    """
    return all(operand.buffer is Buffer.SCRATCH for operand in _out_of_reach(program, reach))


def hosted_slots(program: Program, reach: Reach) -> frozenset[Slot]:
    """Return the SCRATCH slots, as (rank, slot), that must lie in pinned memory of the host.

    They are those that some rank touches whose device cannot address the slot's.

    >>> from blinkrun.schedule.lower import lower_alltoall
    >>> from blinkrun.schedule.ir import Addressing
    >>> staged = lower_alltoall(2, Addressing.STAGED)
    >>> sorted(hosted_slots(staged, [[True, True], [False, True]]))
    [(0, 0)]
    """
    return frozenset(
        (operand.rank, operand.index)
        for operand in _out_of_reach(program, reach)
        if operand.buffer is Buffer.SCRATCH
    )


def waiting_ranks(program: Program) -> dict[tuple[Rank, int], tuple[Rank, ...]]:
    """Return for each flag that is signalled, as (rank, flag), the ranks that wait for it."""
    found: dict[tuple[Rank, int], set[Rank]] = {}
    for rank, step in _steps(program):
        if isinstance(step, Signal):
            found.setdefault((rank, step.flag), set())
        elif isinstance(step, Wait):
            found.setdefault((step.rank, step.flag), set()).add(rank)
    return {flag: tuple(sorted(ranks)) for flag, ranks in found.items()}


def _out_of_reach(program: Program, reach: Reach) -> Iterator[Operand]:
    """Yield what ranks touch through memory of the host; messages are of a rank's own memory."""
    for rank, step in _steps(program):
        if not isinstance(step, Reduce):
            continue
        for operand, kind in zip((*step.dsts, *step.srcs), step.via, strict=True):
            if kind == LinkKind.STAGED or not reach[rank][operand.rank]:
                yield operand


def _steps(program: Program) -> Iterator[tuple[Rank, Step]]:
    for rank, own in enumerate(program.ranks):
        for channel in (*own.prologue, *own.channels):
            for step in channel.steps:
                yield rank, step
