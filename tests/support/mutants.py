"""Programs with one fault each, and which of them are no fault at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Arrived,
    Buffer,
    Channel,
    Operand,
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
from blinkrun.schedule.promise import location, moves_only
from blinkrun.schedule.streams import operands_of, written_by
from blinkrun.schedule.verify import verify

HOLDS = (Wait, Sent, Arrived)
STARTS = (Send, Recv)


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


def is_accepted(program: Program, **how) -> bool:
    try:
        verify(program, **how)
    except ProgramError:
        return False
    return True


def is_no_fault(program: Program, what: str, mutant: Program) -> bool:
    """Whether a mutant is as right as the program, by rules that do not ask the verifier."""
    if "lag=" in what and only_paces(*changed_steps(program, mutant)):
        return True
    if " swap " in what:
        old, new = changed_steps(program, mutant)
        rank = [a != b for a, b in zip(program.ranks, mutant.ranks, strict=True)].index(True)
        return any(
            (b, a) == (new[i], new[i + 1])
            and (commute(program, a, b) or any(only_tells_pace(program, rank, x) for x in (a, b)))
            for i, (a, b) in enumerate(pairwise(old))
            if new[i] != old[i]
        )
    if program.eager and moves_only(program.collective):
        # A rank may take its own block from its slot, where it has put it for the others.
        old, new = changed_steps(program, mutant)
        differing = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        return len(old) == len(new) and all(
            step.srcs[0].rank == step.dsts[0].rank for pair in differing for step in pair
        )
    if " to Operand(" in what and takes_own_input(*changed_steps(program, mutant)):
        return True
    # A later flag of another rank may say as much, by way of others.
    return " other rank of Wait" in what or " other flag of Wait" in what


def takes_own_input(old: Sequence[Step], new: Sequence[Step]) -> bool:
    """Whether INPUT is read where a slot holds no more than a copy of it."""
    copies = {
        step.dsts[0]: step.srcs[0]
        for step in old
        if isinstance(step, Reduce) and len(step.dsts) == len(step.srcs) == 1
    }
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    return all(
        isinstance(a, Reduce)
        and isinstance(b, Reduce)
        and a.dsts == b.dsts
        and all(x == y or copies.get(x) == y for x, y in zip(a.srcs, b.srcs, strict=True))
        for a, b in changed
    )


def changed_steps(program: Program, mutant: Program) -> tuple[Sequence[Step], Sequence[Step]]:
    """The (old, new) steps of the one channel that differs."""
    for old, new in zip(program.ranks, mutant.ranks, strict=True):
        for kind in ("prologue", "channels"):
            for a, b in zip(getattr(old, kind), getattr(new, kind), strict=False):
                if a != b:
                    return a.steps, b.steps
    raise AssertionError("nothing differs")


def commute(program: Program, one: Step, other: Step) -> bool:
    """Whether two steps that follow each other may change places."""
    kinds = [isinstance(step, HOLDS) for step in (one, other)]
    if all(kinds):
        return True
    starts = [isinstance(step, STARTS) for step in (one, other)]
    if program.eager and any(kinds) and any(starts):
        return True  # all others start all their messages before they wait for any
    if any(starts) and Signal in (type(one), type(other)):
        return True  # that a message has been started is nothing to anybody on its own host
    if any(kinds) and any(is_own_sum(program, step) for step in (one, other)):
        return True  # of the host, for which the rank has waited before, or of INPUT alone
    if not any(kinds) and Signal not in (type(one), type(other)):
        touched = [
            {location(o, program.collective, in_place=True) for o in operands}
            for step in (one, other)
            for operands in (written_by(step), operands_of(step))
        ]
        return not (touched[0] & touched[3] or touched[1] & touched[2])
    # The root's copy to its own OUTPUT, which nobody else reads, may as well come after a wait.
    copy = one if isinstance(one, Reduce) else other
    return (
        isinstance(copy, Reduce)
        and not isinstance(one, Signal)
        and not isinstance(other, Signal)
        and moves_only(program.collective)
        and {o.buffer for o in (*copy.dsts, *copy.srcs)} == {Buffer.INPUT, Buffer.OUTPUT}
        and len({o.rank for o in (*copy.dsts, *copy.srcs)}) == 1
    )


def is_own_sum(program: Program, step: Step) -> bool:
    """Whether a step stores a sum for a later step of its channel alone."""
    return any(
        isinstance(step, Reduce) and step in channel.steps and {*step.dsts} <= kept(channel.steps)
        for steps in program.ranks
        for channel in steps.channels
    )


def kept(steps: Sequence[Step]) -> set[Operand]:
    """The slots that a channel fills and reads again itself."""
    reduces = [step for step in steps if isinstance(step, Reduce)]
    return {o for step in reduces for o in step.dsts} & {o for step in reduces for o in step.srcs}


def only_paces(old: Sequence[Step], new: Sequence[Step]) -> bool:
    """Whether what was moved, dropped or loosened guards no slot but only keeps pace."""
    gone = Counter(old) - Counter(new)
    moved = {a for a, b in zip(old, new, strict=False) if a != b}
    loose = set(gone) or moved
    paces = {step for step in loose if keeps_pace(old, step)}
    return bool(paces) and (loose == paces or not gone)


def keeps_pace(steps: Sequence[Step], step: Step) -> bool:
    """Whether a step of a channel holds it only so that it is not far ahead."""
    if not isinstance(step, HOLDS) or not step.lag:
        return False
    guarded = {operand for each in steps for operand in written_by(each)} - kept(steps)
    if not isinstance(step, Wait):
        kind = Send if isinstance(step, Sent) else Recv
        guarded = {
            each.operand
            for each in steps
            if isinstance(each, kind) and (each.rank, each.stream) == (step.rank, step.stream)
        }
    return all(operand.buffer is not Buffer.SCRATCH for operand in guarded)


def only_tells_pace(program: Program, rank: int, step: Step) -> bool:
    """Whether nobody waits for a signal of `rank` but to keep pace."""
    return isinstance(step, Signal) and all(
        keeps_pace(channel.steps, wait)
        for steps in program.ranks
        for channel in steps.channels
        for wait in channel.steps
        if isinstance(wait, Wait) and (wait.rank, wait.flag) == (rank, step.flag)
    )
