"""What each collective promises, in symbols: whose contributions end where."""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun.schedule.ir import Buffer, Operand, Program
from blinkrun.types import Collective, Rank

Location = tuple[Rank, Buffer, int]
"""A block of a rank's memory: rank, buffer, index. Aliased blocks have one location."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The end state of one OUTPUT block.

    Attributes
    ----------
    contributions : int
        Bit r is set if rank r's INPUT is in the result, exactly once.
    block : int
        The INPUT block that they come from.
    final : bool
        Whether the result has been through a `final` step: AVERAGE and postscale are applied.
    """

    contributions: int
    block: int
    final: bool


def moves_only(collective: Collective) -> bool:
    """Return whether the collective only moves data: no operation, no scales."""
    return collective in (Collective.BROADCAST, Collective.ALLGATHER, Collective.ALLTOALL)


def promises(program: Program) -> dict[Operand, Promise]:
    """Return what every promised OUTPUT block holds at the end; other blocks stay untouched."""
    size = program.size
    everyone = (1 << size) - 1
    outputs = [Operand(rank, Buffer.OUTPUT) for rank in range(size)]
    match program.collective:
        case Collective.ALLREDUCE:
            return {output: Promise(everyone, 0, True) for output in outputs}
        case Collective.BROADCAST:
            return {output: Promise(1 << program.root, 0, False) for output in outputs}
        case Collective.REDUCE:
            return {outputs[program.root]: Promise(everyone, 0, True)}
        case Collective.ALLGATHER | Collective.ALLTOALL:
            split = program.collective is Collective.ALLTOALL
            return {
                Operand(rank, Buffer.OUTPUT, block): Promise(1 << block, rank * split, False)
                for rank in range(size)
                for block in range(size)
            }
        case Collective.REDUCESCATTER:
            return {output: Promise(everyone, output.rank, True) for output in outputs}
    return {}


def location(operand: Operand, collective: Collective, *, in_place: bool) -> Location:
    """Return where `operand` lies; in place, INPUT and OUTPUT share locations (see `Buffer`)."""
    if not in_place or operand.buffer is Buffer.SCRATCH:
        return operand.rank, operand.buffer, operand.index
    if collective is Collective.REDUCESCATTER:
        index = operand.rank if operand.buffer is Buffer.OUTPUT else operand.index
        return operand.rank, Buffer.INPUT, index
    index = operand.index
    if collective is Collective.ALLGATHER and operand.buffer is Buffer.INPUT:
        index = operand.rank
    return operand.rank, Buffer.OUTPUT, index


def input_block(where: Location, program: Program, *, in_place: bool) -> int | None:
    """Return which INPUT block of its rank lies at `where` when the call starts, None if none."""
    rank, buffer, index = where
    if buffer is Buffer.INPUT:
        return index
    if not in_place or buffer is Buffer.SCRATCH:
        return None
    if program.collective is Collective.ALLGATHER:
        return 0 if index == rank else None
    return 0
