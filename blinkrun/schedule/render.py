"""A program as text, to be read by people."""

from __future__ import annotations

from collections.abc import Iterator

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Buffer,
    Channel,
    Operand,
    Program,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Step,
    Wait,
)
from blinkrun.types import Rank

_SHORT = {Buffer.INPUT: "in", Buffer.OUTPUT: "out", Buffer.SCRATCH: "slot"}


def render(program: Program, rank: Rank | None = None) -> str:
    """Return the listing of `program`, or of one rank of it, ending with a newline.

    ``r1.in`` is INPUT of rank 1, ``r1.out[2]`` block 2 of its OUTPUT, ``r1.slot[0]`` a SCRATCH
    slot; ``wait r1 f0`` waits for flag 0 of rank 1, ``-4`` after it for its state four chunks ago.
    Between hosts ``send r1.out to r2 s0`` and ``recv r2.out from r1 s0`` start the next message of
    stream 0 from rank 1 to rank 2; ``sent r2 s0`` and ``arrived r1 s0`` hold until it is through.

    Raises
    ------
    ProgramError
        If `rank` is none of the program's.

    Examples
    --------
    >>> from blinkrun.schedule.lower import lower_eager
    >>> from blinkrun.types import Collective
    >>> print(render(lower_eager(Collective.ALLREDUCE, 2), rank=0), end="")
    allreduce, 2 ranks, staged, one-shot: 1 share, 1 slot of depth 1, 0 flags, eager
    rank 0
      prologue 0, shares [0, 1)
        r0.slot[0] <- r0.in
      channel 0, shares [0, 1)
        r0.out <- op(r0.slot[0], r1.slot[0]), final
    """
    if rank is not None and not 0 <= rank < program.size:
        raise ProgramError(f"rank {rank} is none of the program's {program.size}")
    shown = range(program.size) if rank is None else [rank]
    lines = [_headline(program)]
    for each in shown:
        lines += _rank_lines(program, each)
    return "\n".join(lines) + "\n"


def _headline(program: Program) -> str:
    root = f", root {program.root}" if program.collective.is_rooted else ""
    hosts = f" on {_counted(len(set(program.hosts)), 'host')}" if program.hosts else ""
    notes = [
        _counted(program.shares, "share"),
        f"{_counted(program.slots, 'slot')} of depth {program.slot_depth}",
        _counted(program.flags, "flag"),
        *(["eager"] if program.eager else []),
        *(["pipelined"] if program.pipelined else []),
    ]
    return (
        f"{program.collective.label}{root}, {_counted(program.size, 'rank')}{hosts}, "
        f"{program.addressing.name.lower()}, {program.name}: {', '.join(notes)}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _rank_lines(program: Program, rank: Rank) -> Iterator[str]:
    yield f"rank {rank}{f' on host {program.hosts[rank]}' if program.hosts else ''}"
    steps = program.ranks[rank]
    for kind, channels in (("prologue", steps.prologue), ("channel", steps.channels)):
        for number, channel in enumerate(channels):
            yield from _channel_lines(program, f"{kind} {number}", channel)


def _channel_lines(program: Program, name: str, channel: Channel) -> Iterator[str]:
    yield f"  {name}, shares [{channel.part.start}, {channel.part.stop})"
    yield from (f"    {_step(program, step)}" for step in channel.steps)


def _step(program: Program, step: Step) -> str:
    match step:
        case Wait(rank, flag, lag):
            return f"wait r{rank} f{flag}{_behind(lag)}"
        case Signal(flag):
            return f"signal f{flag}"
        case Reduce():
            return _reduce(program, step)
        case Send(operand, rank, stream):
            return f"send {_operand(program, operand)} to r{rank} s{stream}"
        case Recv(operand, rank, stream):
            return f"recv {_operand(program, operand)} from r{rank} s{stream}"
    held = "sent" if isinstance(step, Sent) else "arrived"
    return f"{held} r{step.rank} s{step.stream}{_behind(step.lag)}"


def _behind(lag: int) -> str:
    return f" -{lag}" if lag else ""


def _reduce(program: Program, step: Reduce) -> str:
    targets = ", ".join(_operand(program, dst) for dst in step.dsts)
    sources = ", ".join(_operand(program, src) for src in step.srcs)
    value = sources if len(step.srcs) == 1 else f"op({sources})"
    return f"{targets} <- {value}{', final' if step.final else ''}"


def _operand(program: Program, operand: Operand) -> str:
    blocks = {Buffer.INPUT: program.input_blocks, Buffer.OUTPUT: program.output_blocks}
    index = "" if blocks.get(operand.buffer) == 1 else f"[{operand.index}]"
    return f"r{operand.rank}.{_SHORT[operand.buffer]}{index}"
