"""What can be said about a program without running it: names, flags, parts, privacy, links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Buffer,
    Channel,
    Message,
    Operand,
    Part,
    Program,
    Recv,
    Reduce,
    Send,
    Signal,
    Step,
    Wait,
)
from blinkrun.schedule.promise import Location, location, moves_only, promises
from blinkrun.schedule.streams import Stream, operands_of, stream_of, written_by
from blinkrun.types import Collective, Rank

Links = Collection[tuple[Rank, Rank]]

MAX_STREAMS = 8192  # between two ranks, see csrc/mpi.hpp


@dataclass(frozen=True, slots=True)
class Lane:
    """One channel of a rank; `number` counts the rank's channels, or prologue channels."""

    rank: Rank
    number: int
    channel: Channel
    prologue: bool = False

    def at(self, step: int, chunk: int) -> str:
        """Return where that step is, for messages.

        >>> from blinkrun.schedule.ir import Signal
        >>> Lane(2, 0, Channel(Part(0, 1), (Signal(0),))).at(step=0, chunk=3)
        'rank 2, channel 0, step 0, chunk 3'
        """
        kind = "prologue channel" if self.prologue else "channel"
        return f"rank {self.rank}, {kind} {self.number}, step {step}, chunk {chunk}"


def lanes(program: Program) -> list[Lane]:
    """Return all channels of all ranks, prologues first."""
    prologues = [
        Lane(rank, number, channel, prologue=True)
        for rank, steps in enumerate(program.ranks)
        for number, channel in enumerate(steps.prologue)
    ]
    channels = [
        Lane(rank, number, channel)
        for rank, steps in enumerate(program.ranks)
        for number, channel in enumerate(steps.channels)
    ]
    return prologues + channels


def independent_groups(program: Program) -> list[list[Lane]]:
    """Return the channels in groups that share neither flags, streams nor memory, in order.

    Parts of a block are apart and flags stay within a part, see `check_static`.
    """
    groups: list[list[Lane]] = []
    group_of: dict[object, int] = {}
    for lane in lanes(program):
        keys = set(_shared_by(program, lane))
        met = sorted({group_of[key] for key in keys if key in group_of})
        target = met[0] if met else len(groups)
        if not met:
            groups.append([])
        for other in met[1:]:
            groups[target] += groups[other]
            groups[other] = []
            group_of = {k: target if g == other else g for k, g in group_of.items()}
        groups[target].append(lane)
        group_of.update((key, target) for key in keys)
    return [group for group in groups if group]


def _shared_by(program: Program, lane: Lane) -> Iterator[object]:
    """Yield names for the flags, streams and memory that `lane` uses."""
    part = lane.channel.part
    for step in lane.channel.steps:
        match step:
            case Wait(rank, flag):
                yield rank, flag
            case Signal(flag):
                yield lane.rank, flag
            case Reduce():
                pass
            case _:
                yield stream_of(lane.rank, step)
        for operand in operands_of(step):
            yield part, location(operand, program.collective, in_place=True)


def check_static(program: Program, links: Links | None) -> None:
    """Raise ProgramError if a step can be seen to be wrong by itself."""
    every_lane = lanes(program)
    for lane in every_lane:
        for number, step in enumerate(lane.channel.steps):
            if isinstance(step, Reduce):
                _check_reduce(program, lane, number, step)
            elif lane.prologue:
                raise ProgramError(
                    f"{lane.at(number, 0)}: a prologue runs before ranks meet, it cannot use flags "
                    "or messages"
                )
            elif isinstance(step, (Send, Recv)):
                _check_message(program, lane, number, step)
            for peer in _peers(lane, step):
                if links is not None and (lane.rank, peer) not in links:
                    raise ProgramError(
                        f"{lane.at(number, 0)}: addresses rank {peer}, but no link "
                        f"{lane.rank}->{peer} is given; plan over linked ranks only"
                    )
    _check_flags(every_lane)
    _check_streams(every_lane)
    _check_parts(program, every_lane)


def _peers(lane: Lane, step: Step) -> Iterator[Rank]:
    """Yield the other ranks that `step` addresses."""
    ranks = [operand.rank for operand in operands_of(step)]
    if not isinstance(step, (Reduce, Signal)):
        ranks.append(step.rank)
    yield from (rank for rank in ranks if rank != lane.rank)


def _check_reduce(program: Program, lane: Lane, number: int, step: Reduce) -> None:
    where = lane.at(number, 0)
    if program.collective is Collective.BARRIER:
        raise ProgramError(f"{where}: a barrier moves nothing")
    if step.final and moves_only(program.collective):
        raise ProgramError(f"{where}: {program.collective.label} has no result to finish")
    for dst in step.dsts:
        if dst.buffer is Buffer.INPUT:
            raise ProgramError(f"{where}: writes INPUT of rank {dst.rank}; write OUTPUT or SCRATCH")
    for operand in (*step.dsts, *step.srcs):
        if lane.prologue and operand.rank != lane.rank:
            raise ProgramError(
                f"{where}: touches memory of rank {operand.rank} before ranks have met"
            )
        _check_given(program, operand, where)


def _check_message(program: Program, lane: Lane, number: int, step: Send | Recv) -> None:
    where, operand = lane.at(number, 0), step.operand
    if program.collective is Collective.BARRIER:
        raise ProgramError(f"{where}: a barrier moves nothing")
    if step.stream >= MAX_STREAMS:
        raise ProgramError(f"{where}: stream {step.stream} of at most {MAX_STREAMS} between two")
    if operand.buffer is Buffer.INPUT and isinstance(step, Recv):
        raise ProgramError(
            f"{where}: receives into INPUT of rank {operand.rank}; write OUTPUT or SCRATCH"
        )
    if operand.buffer is Buffer.INPUT and not moves_only(program.collective):
        raise ProgramError(
            f"{where}: sends INPUT of rank {operand.rank} unscaled; reduce it to SCRATCH before"
        )
    _check_given(program, operand, where)


def _check_given(program: Program, operand: Operand, where: str) -> None:
    if not _is_given(program, operand):
        raise ProgramError(
            f"{where}: rank {operand.rank} gives no {operand.buffer.name} to "
            f"{program.collective.label} with root {program.root}"
        )


def _is_given(program: Program, operand: Operand) -> bool:
    """Return whether the caller on that rank passes such a buffer at all."""
    if operand.rank == program.root:
        return True
    absent = {Collective.BROADCAST: Buffer.INPUT, Collective.REDUCE: Buffer.OUTPUT}
    return operand.buffer is not absent.get(program.collective)


def _check_flags(every_lane: list[Lane]) -> None:
    """Each flag has one place where it is set; who waits for it counts the same chunks."""
    parts: dict[tuple[Rank, int], Part] = {}
    for lane in every_lane:
        for number, step in enumerate(lane.channel.steps):
            if isinstance(step, Signal):
                if (lane.rank, step.flag) in parts:
                    raise ProgramError(
                        f"{lane.at(number, 0)}: flag {step.flag} is signalled in two places; "
                        "give each its own"
                    )
                parts[lane.rank, step.flag] = lane.channel.part
    for lane in every_lane:
        for number, step in enumerate(lane.channel.steps):
            if isinstance(step, Wait):
                part = parts.get((step.rank, step.flag))
                if part is None:
                    raise ProgramError(
                        f"{lane.at(number, 0)}: waits for flag {step.flag} of rank {step.rank}, "
                        "which nothing signals"
                    )
                if part != lane.channel.part:
                    raise ProgramError(
                        f"{lane.at(number, 0)}: waits for flag {step.flag} of rank {step.rank}, "
                        f"which counts the chunks of [{part.start}, {part.stop}), not of "
                        f"[{lane.channel.part.start}, {lane.channel.part.stop})"
                    )


def _check_streams(every_lane: list[Lane]) -> None:
    """Each stream has one sender and one receiver; all that use it count the same chunks."""
    ends: dict[tuple[type[Message], Stream], Part] = {}
    for lane, number, step in _messages(every_lane):
        if isinstance(step, (Send, Recv)):
            stream = stream_of(lane.rank, step)
            if (type(step), stream) in ends:
                raise ProgramError(
                    f"{lane.at(number, 0)}: {stream} is used in two places; give each its own"
                )
            ends[type(step), stream] = lane.channel.part
    for lane, number, step in _messages(every_lane):
        stream = stream_of(lane.rank, step)
        for end, does in ((Send, "sends"), (Recv, "receives")):
            part = ends.get((end, stream))
            if part is None:
                raise ProgramError(f"{lane.at(number, 0)}: {stream}, which nobody {does}")
            if part != lane.channel.part:
                raise ProgramError(
                    f"{lane.at(number, 0)}: {stream} carries the chunks of [{part.start}, "
                    f"{part.stop}), not of [{lane.channel.part.start}, {lane.channel.part.stop})"
                )


def _messages(every_lane: list[Lane]) -> Iterator[tuple[Lane, int, Message]]:
    for lane in every_lane:
        for number, step in enumerate(lane.channel.steps):
            if not isinstance(step, (Wait, Reduce, Signal)):
                yield lane, number, step


def _check_parts(program: Program, every_lane: list[Lane]) -> None:
    """Parts of a block are equal or apart; a slot serves one part; OUTPUTs are fully written."""
    used: dict[Location, set[Part]] = defaultdict(set)
    written: dict[Operand, set[Part]] = defaultdict(set)
    for lane in every_lane:
        part = lane.channel.part
        for step in lane.channel.steps:
            for operand in operands_of(step):
                used[location(operand, program.collective, in_place=True)].add(part)
            for dst in written_by(step):
                written[dst].add(part)
    for (rank, buffer, index), parts in used.items():
        ordered = sorted(parts, key=lambda part: (part.start, part.stop))
        apart = all(a.stop <= b.start for a, b in pairwise(ordered))
        if not apart or (buffer is Buffer.SCRATCH and len(parts) > 1):
            ranges = ", ".join(f"[{part.start}, {part.stop})" for part in ordered)
            raise ProgramError(
                f"{buffer.name}[{index}] of rank {rank} is used by overlapping parts {ranges}"
                if not apart
                else f"slot {index} of rank {rank} is shared by parts {ranges}; give each its own"
            )
    for output in promises(program):
        covered = sum(part.stop - part.start for part in written[output])
        if covered != program.shares:
            raise ProgramError(
                f"OUTPUT[{output.index}] of rank {output.rank} gets {covered} of "
                f"{program.shares} shares; some part of the block is written by no channel"
            )
