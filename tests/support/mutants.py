"""Programs with one fault each, and which of them are no fault at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Arrived,
    Buffer,
    Channel,
    Part,
    Program,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Step,
    Wait,
)


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield (what was done, program) for every single fault; those that ir refuses are left out."""
    for rank, steps in enumerate(program.ranks):
        for kind in ("prologue", "channels"):
            channels: tuple[Channel, ...] = getattr(steps, kind)
            for number, channel in enumerate(channels):
                where = f"rank {rank} {kind}[{number}]"
                for what, changed in _channel_mutants(program, channel):
                    mutant = _replaced(program, rank, kind, number, changed)
                    if mutant is not None and mutant != program:
                        yield f"{where}: {what}", mutant


def _replaced(
    program: Program, rank: int, kind: str, number: int, changed: Channel | None
) -> Program | None:
    steps = program.ranks[rank]
    channels = list(getattr(steps, kind))
    channels[number : number + 1] = [] if changed is None else [changed]
    other: RankProgram = replace(steps, **{kind: tuple(channels)})
    ranks = (*program.ranks[:rank], other, *program.ranks[rank + 1 :])
    try:
        return replace(program, ranks=ranks)
    except ProgramError:
        return None  # cannot even be built


def _channel_mutants(program: Program, channel: Channel) -> Iterator[tuple[str, Channel | None]]:
    yield "drop channel", None
    start, stop = channel.part.start, channel.part.stop
    if stop - start > 1:
        yield "shorten part", replace(channel, part=Part(start, stop - 1))
    steps = channel.steps
    for i, step in enumerate(steps):
        rest = (*steps[:i], *steps[i + 1 :])
        yield f"drop {step}", replace(channel, steps=rest) if rest else None
        if i + 1 < len(steps):
            swapped = (*steps[:i], steps[i + 1], step, *steps[i + 2 :])
            yield f"swap {step} and {steps[i + 1]}", replace(channel, steps=swapped)
        for what, changed in _step_mutants(program, step):
            yield what, replace(channel, steps=(*steps[:i], changed, *steps[i + 1 :]))


def _step_mutants(program: Program, step: Step) -> Iterator[tuple[str, Step]]:
    match step:
        case Wait(rank, flag, lag):
            yield f"later lag of {step}", replace(step, lag=lag + 1)
            yield f"other rank of {step}", replace(step, rank=(rank + 1) % program.size)
            yield f"other flag of {step}", replace(step, flag=flag + 1)
            if lag:
                yield f"no lag of {step}", replace(step, lag=0)
        case Signal(flag):
            yield f"other flag of {step}", replace(step, flag=flag + 1)
        case Reduce():
            yield from _reduce_mutants(program, step)
        case Send() | Recv() | Sent() | Arrived():
            yield from _message_mutants(program, step)


def _message_mutants(
    program: Program, step: Send | Recv | Sent | Arrived
) -> Iterator[tuple[str, Step]]:
    for away in range(1, program.size):
        rank = (step.rank + away) % program.size
        yield f"other rank of {step}", replace(step, rank=rank)
    yield f"other stream of {step}", replace(step, stream=step.stream + 1)
    if step.stream:
        yield f"first stream of {step}", replace(step, stream=0)
    if isinstance(step, (Sent, Arrived)):
        yield f"later lag of {step}", replace(step, lag=step.lag + 1)
        if step.lag:
            yield f"no lag of {step}", replace(step, lag=0)
        return
    operand = step.operand
    yield f"other index of {step}", replace(step, operand=replace(operand, index=operand.index + 1))
    for buffer in Buffer:
        if buffer is not operand.buffer:
            other = replace(operand, buffer=buffer, index=0)
            yield f"{buffer.name} in {step}", replace(step, operand=other)
    turned = Recv if isinstance(step, Send) else Send
    yield f"other way of {step}", turned(operand, step.rank, step.stream)


def _reduce_mutants(program: Program, step: Reduce) -> Iterator[tuple[str, Reduce]]:
    yield f"flip final of {step}", replace(step, final=not step.final)
    for field in ("dsts", "srcs"):
        operands = getattr(step, field)
        for i, operand in enumerate(operands):
            if len(operands) > 1:
                fewer = (*operands[:i], *operands[i + 1 :])
                yield f"drop {operand} of {field}", replace(step, **{field: fewer}, via=())
            others = [
                replace(operand, rank=(operand.rank + 1) % program.size),
                replace(operand, index=operand.index + 1),
                *(replace(operand, buffer=b, index=0) for b in Buffer if b is not operand.buffer),
            ]
            for other in others:
                redirected = (*operands[:i], other, *operands[i + 1 :])
                if len(set(redirected)) == len(redirected):
                    yield f"{operand} to {other}", replace(step, **{field: redirected})
