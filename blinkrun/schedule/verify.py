"""Prove that a program does what its collective promises, under every interleaving.

The program is replayed once with symbols for data and vector clocks for time. That covers every
schedule: a flag is set in one place and only counts up, so a wait at chunk k is sure to come
after exactly the signal of chunk k - lag, whichever way ranks run. If any two accesses to the same
memory, one of them a write, are ordered by such certainties alone, each read finds the same value
in every run, and the one replay speaks for all.

A few chunks speak for any number. All certainties lead from a chunk to the same or a later one, and
depend only on how far the two are apart; memory is shared only between chunks that are a
multiple of `slot_depth` apart. So `slot_depth` + 1 chunks show every collision that there is.

Over several hosts a message takes part as an actor of its own, see `verify_messages`.

One call speaks for a sequence of calls. A rank enters a call only when all have left the one
before, so nothing of two calls meets but a prologue with the channels of the call before; those
lie in the other copy of the one-shot scratch area, and INPUT and OUTPUT are left alone by then.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import NoReturn

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import Arrived, Program, Recv, Reduce, Send, Sent, Signal, Step, Wait
from blinkrun.schedule.promise import Promise, promises
from blinkrun.schedule.streams import stream_of, written_by
from blinkrun.schedule.verify_memory import Access, Broken, Clock, Memory, Value, ranks_in
from blinkrun.schedule.verify_messages import Events, Messages
from blinkrun.schedule.verify_static import Lane, Links, check_static, independent_groups
from blinkrun.types import Collective, Rank


def verify(
    program: Program,
    *,
    chunks: Sequence[int] | None = None,
    in_place: Sequence[bool] = (False, True),
    links: Links | None = None,
) -> None:
    """Return if `program` is right; say what is wrong with it otherwise.

    Right means, for each number of chunks and both ways of aliasing: every promised OUTPUT ends
    with each contribution exactly once, scaled once before and finished once after; nothing else of
    the caller's is written; no two conflicting accesses can meet; every wait ends; no rank's INPUT
    or OUTPUT is touched once it may have left.

    Parameters
    ----------
    program : Program
        What to check.
    chunks : sequence of int, optional
        Chunks per part to replay. By default as many as can tell a difference: 1, and
        `slot_depth` + 1 where parts are cut into chunks.
    in_place : sequence of bool
        Whether INPUT and OUTPUT are the same memory, see `Buffer`.
    links : collection of (rank, rank), optional
        Pairs (who, whose memory) that may address each other, data and flags alike; by default all.

    Raises
    ------
    ProgramError
        The message names rank, channel, step and chunk, and what collides or is missing.
    """
    check_static(program, links)
    if program.collective is Collective.ALLTOALL:
        in_place = (False,)  # there is no such call
    if program.eager:
        chunks = (1,)
    elif chunks is None:
        chunks = (1, program.slot_depth + 1) if program.pipelined else (1,)
    for group in independent_groups(program):
        for num_chunks in sorted(set(chunks)):
            for aliased in in_place:
                _Replay(program, group, num_chunks, aliased).run()


class _Replay:
    """One symbolic run of a group of channels, all of one part."""

    def __init__(
        self, program: Program, group: list[Lane], num_chunks: int, in_place: bool
    ) -> None:
        self.program = program
        self.part = group[0].channel.part
        self.prologue = [lane for lane in group if lane.prologue]
        self.lanes = [lane for lane in group if not lane.prologue]
        self.num_chunks = num_chunks
        self.in_place = in_place
        self.memory = Memory(program, in_place=in_place)
        self.events: Events = defaultdict(list)
        streams = {
            stream_of(lane.rank, step)
            for lane in self.lanes
            for step in lane.channel.steps
            if isinstance(step, Send)
        }
        self.messages = Messages(sorted(streams), len(self.lanes), self.memory, self.events)
        actors = len(self.lanes) + self.messages.num_actors
        self.before_all: Clock = [0] * max(actors, 1)
        self.clocks: list[Clock] = [self.before_all.copy() for _ in self.lanes]

    def run(self) -> None:
        for lane in self.prologue:
            self._run_prologue(lane)
        self._run_channels()
        self._check_exits()
        self._check_promises()

    def _run_prologue(self, lane: Lane) -> None:
        reduces = [step for step in lane.channel.steps if isinstance(step, Reduce)]
        for number, step in enumerate(reduces):  # there is nothing else, see verify_static
            try:
                self.memory.carry_out(step, 0, actor=0, clock=self.before_all)
            except Broken as err:
                self._fail(f"{lane.at(number, 0)}: {err}", err)

    def _run_channels(self) -> None:
        """Run each channel as far as it gets, again whenever what it waits for moves."""
        ready = deque(range(len(self.lanes)))
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        while ready:
            number = ready.popleft()
            blocker = self._advance(number, ready, waiting)
            if blocker is not None:
                waiting[blocker].append(number)
        for number, lane in enumerate(self.lanes):
            if self._time(number) < self.num_chunks * len(lane.channel.steps):
                self._report_deadlock(number)

    def _time(self, number: int) -> int:
        return self.clocks[number][number]

    def _advance(
        self, number: int, ready: deque[int], waiting: dict[Hashable, list[int]]
    ) -> Hashable | None:
        """Run one channel until it ends (None) or is held by what is returned."""
        lane, clock = self.lanes[number], self.clocks[number]
        steps = lane.channel.steps
        while clock[number] < self.num_chunks * len(steps):
            chunk, index = divmod(clock[number], len(steps))
            step = steps[index]
            if isinstance(step, (Wait, Sent, Arrived)):
                held_by = self._pass(step, chunk, number)
                if held_by is not None:
                    return held_by
            clock[number] += 1
            for moved in self._carry_out(step, chunk, number):
                ready.extend(waiting.pop(moved, ()))
        return None

    def _pass(self, step: Wait | Sent | Arrived, chunk: int, number: int) -> Hashable | None:
        """Return what holds a channel at `step`; if nothing does, what has happened is known."""
        if chunk < step.lag:
            return None
        if isinstance(step, Wait):
            key: Hashable = (step.rank, step.flag)
        else:
            key = (type(step), stream_of(self.lanes[number].rank, step))
        seen = self.events[key]
        if len(seen) <= chunk - step.lag:
            return key
        clock = self.clocks[number]
        clock[:] = map(max, clock, seen[chunk - step.lag])
        return None

    def _carry_out(self, step: Step, chunk: int, number: int) -> list[Hashable]:
        """Do what `step` does, and return what that moves."""
        rank, clock = self.lanes[number].rank, self.clocks[number]
        if isinstance(step, Reduce):
            self._reduce(step, chunk, number, clock)
        elif isinstance(step, Signal):
            self.events[rank, step.flag].append(clock.copy())
            return [(rank, step.flag)]
        elif isinstance(step, (Send, Recv)):
            return self._start(step, number)
        return []

    def _start(self, step: Send | Recv, number: int) -> list[Hashable]:
        """Start one end of a message."""
        clock = self.clocks[number]
        stream = stream_of(self.lanes[number].rank, step)
        try:
            if isinstance(step, Send):
                self.messages.send(stream, step, clock)
            else:
                self.messages.recv(stream, step, clock)
            return self.messages.deliver(stream)
        except Broken as err:
            self._fail_for(self._name((number, clock[number])), err)

    def _reduce(self, step: Reduce, chunk: int, actor: int, clock: Clock) -> None:
        try:
            self.memory.carry_out(step, chunk, actor, clock)
        except Broken as err:
            self._fail_for(self._name((actor, clock[actor])), err)

    def _name(self, access: Access) -> str:
        actor, time = access
        if actor >= len(self.lanes):
            return self.messages.name(actor, time)
        lane = self.lanes[actor]
        chunk, index = divmod(time - 1, len(lane.channel.steps))
        return lane.at(index, chunk)

    def _fail_for(self, who: str, err: Broken) -> NoReturn:
        meets = f" by {self._name(err.other)}; let one wait for the other" if err.other else ""
        self._fail(f"{who}: {err}{meets}", err)

    def _fail(self, what: str, cause: Exception | None = None) -> NoReturn:
        how = "in place" if self.in_place else "out of place"
        raise ProgramError(
            f"{what} ({self.program.collective.label} {how}, part [{self.part.start}, "
            f"{self.part.stop}) in {self.num_chunks} chunks)"
        ) from cause

    def _report_deadlock(self, number: int) -> None:
        lane = self.lanes[number]
        chunk, index = divmod(self._time(number), len(lane.channel.steps))
        step = lane.channel.steps[index]
        where = f"{lane.at(index, chunk)}: waits for ever"
        if isinstance(step, (Sent, Arrived)):
            stream = stream_of(lane.rank, step)
            self._fail(
                f"{where} for message {chunk - step.lag} of {stream}; "
                f"{self.messages.started(stream)}"
            )
        assert isinstance(step, Wait)
        self._fail(
            f"{where} for flag {step.flag} of rank {step.rank} to "
            f"reach {chunk + 1 - step.lag}; it stops at "
            f"{len(self.events[step.rank, step.flag])}"
        )

    def _check_exits(self) -> None:
        ends: dict[Rank, Clock] = {}

        def end(rank: Rank) -> Clock:
            if rank not in ends:
                own = [self.clocks[n] for n, lane in enumerate(self.lanes) if lane.rank == rank]
                own += self.messages.ends(rank)
                ends[rank] = [max(times) for times in zip(self.before_all, *own, strict=True)]
            return ends[rank]

        late = self.memory.find_late_access(end)
        if late is not None:
            (rank, buffer, index), _, access = late
            self._fail(
                f"{self._name(access)}: touches {buffer.name}[{index}] of rank {rank}, which may "
                f"have left by then; rank {rank} must wait for it before it ends"
            )

    def _check_promises(self) -> None:
        written = {
            dst for lane in self.lanes for step in lane.channel.steps for dst in written_by(step)
        }
        results: set[Value | None] = set()
        for output, promise in promises(self.program).items():
            if output not in written:
                continue  # another group's
            for chunk in range(self.num_chunks):
                value = self.memory.held(output, chunk)
                where = f"OUTPUT[{output.index}] of rank {output.rank}, chunk {chunk}"
                self._check_value(where, value, promise)
                results.add(value)
        if self.program.collective is Collective.ALLREDUCE and len(results) > 1:
            self._fail(
                "ranks add in different orders or round at different points, so their results may "
                "differ in the last bit; let one rank make the result, or all in the same way"
            )

    def _check_value(self, where: str, value: Value | None, promise: Promise) -> None:
        if value is None or value.block != promise.block:
            self._fail(f"{where} ends with {value}, not with block {promise.block}")
        if value.contributions != promise.contributions:
            held, wanted = ranks_in(value.contributions), ranks_in(promise.contributions)
            self._fail(f"{where} ends with {held}, not with {wanted}")
        if value.final != promise.final:
            self._fail(f"{where} is never finished; mark the last step final")
