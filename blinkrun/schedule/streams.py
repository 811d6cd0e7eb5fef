"""Which stream a message step is about, and which memory any step touches."""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun.schedule.ir import (
    Message,
    Operand,
    Recv,
    Reduce,
    Send,
    Sent,
    Step,
)
from blinkrun.types import Rank

__all__ = ["Stream", "operands_of", "stream_of", "written_by"]


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """The messages from `src` to `dst`, one per chunk, that go by this `number`."""

    src: Rank
    dst: Rank
    number: int

    def __str__(self) -> str:
        return f"stream {self.number} from rank {self.src} to rank {self.dst}"


def stream_of(rank: Rank, step: Message) -> Stream:
    """Return the stream that a step of `rank` starts or waits for a message of.

    >>> print(stream_of(0, Sent(rank=2, stream=1)))
    stream 1 from rank 0 to rank 2
    """
    if isinstance(step, (Send, Sent)):
        return Stream(rank, step.rank, step.stream)
    return Stream(step.rank, rank, step.stream)


def operands_of(step: Step) -> tuple[Operand, ...]:
    """Return the memory that a step touches, what it writes first."""
    match step:
        case Reduce(dsts, srcs):
            return (*dsts, *srcs)
        case Send(operand) | Recv(operand):
            return (operand,)
    return ()


def written_by(step: Step) -> tuple[Operand, ...]:
    """Return the memory that a step writes, or lets a message write."""
    match step:
        case Reduce(dsts):
            return dsts
        case Recv(operand):
            return (operand,)
    return ()
