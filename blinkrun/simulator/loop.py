"""The event loop of a simulation: channels, transfers and messages on a virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from blinkrun.errors import ProgramError, SimulationError
from blinkrun.simulator.conserve import Account, check_account
from blinkrun.simulator.flow import Group, Pipe, groups_of
from blinkrun.simulator.messages import Messages
from blinkrun.simulator.record import MEMORY, NO_STEP, Record, StepRecord
from blinkrun.simulator.timed import (
    Load,
    TimedChannel,
    TimedHold,
    TimedPost,
    TimedReduce,
    TimedSignal,
    TimedStep,
    TimedWait,
)

_BEGIN, _MOVE, _THROUGH, _ARRIVE, _DEPART, _DELIVER = range(6)  # what an event is
_NAMED = 3  # waits of a deadlock that are named


class _Channel:
    """A channel on its way."""

    __slots__ = (
        "cause",
        "chunk",
        "end_ns",
        "flying",
        "is_over",
        "now",
        "number",
        "step",
        "timed",
    )

    def __init__(self, number: int, timed: TimedChannel) -> None:
        self.number = number
        self.timed = timed
        self.chunk = 0
        self.step = 0
        self.flying = 0  # transfers of the current step
        self.is_over = False
        self.end_ns = 0
        self.now = NO_STEP  # the step that it is in, in the record
        self.cause: StepRecord | None = None  # without it, it would not have come so far


class Engine:
    """One run of a `Load`.

    Parameters
    ----------
    loaded : Load
    record : Record, optional
        Where to keep what happens.
    """

    def __init__(self, loaded: Load, record: Record | None = None) -> None:
        self.loaded = loaded
        self.record = record
        self.now_ns = 0
        self.pipes = [Pipe(resources, loaded.units) for resources in loaded.pipes]
        groups_of(self.pipes, loaded.capacities)
        self.channels = [_Channel(at, timed) for at, timed in enumerate(loaded.channels)]
        num_flags = loaded.num_flags
        self.flags = [0] * num_flags
        self._causes: list[StepRecord | None] = [None] * num_flags
        self._waiters: list[list[_Channel]] = [[] for _ in range(num_flags)]
        self._streams = [Messages(loaded, number) for number in range(len(loaded.streams))]
        self._ready: deque[_Channel] = deque()
        self._dirty: list[Group] = []
        self._events: list[tuple[int, int, int, int, Group | None]] = []
        self._tickets = 0
        self._holders = [0] * len(loaded.capacities)  # pipes in use, by resource
        self._held_since = [0] * len(loaded.capacities)
        self.busy_ns = [0] * len(loaded.capacities)

    def run(self) -> None:
        """Run to the end; `now_ns` is then the time that it took."""
        prologues = [channel for channel in self.channels if channel.timed.prologue]
        others = [channel for channel in self.channels if not channel.timed.prologue]
        self._run_all(prologues, 0)
        entry_ns = self.now_ns
        start_ns = entry_ns + self.loaded.cost.launch_ns
        if self.record is not None:
            self.record.enter(entry_ns, start_ns)
        self._run_all(others, start_ns)
        check_account(self.loaded, self.account())

    def _run_all(self, channels: list[_Channel], start_ns: int) -> None:
        """Let channels start at `start_ns`, or as much later as they must, and run them all."""
        self.now_ns = max(self.now_ns, start_ns)
        for channel in channels:
            if channel.timed.num_chunks:
                self._at(start_ns + channel.timed.late_ns, _BEGIN, channel.number)
            else:
                channel.is_over = True
        self._run_events()
        stuck = [channel for channel in channels if not channel.is_over]
        if stuck:
            raise ProgramError(self._deadlock(stuck))
        for stream in self._streams:
            stream.check_through()

    def _at(self, time_ns: int, what: int, number: int, group: Group | None = None) -> None:
        self._tickets += 1
        heappush(self._events, (time_ns, self._tickets, what, number, group))

    def _run_events(self) -> None:
        events = self._events
        while events:
            now = events[0][0]
            if now < self.now_ns:
                raise SimulationError(f"time runs from {self.now_ns} back to {now} ns")
            while events and events[0][0] == now:
                _, _, what, number, group = heappop(events)
                if group is None:
                    self.now_ns = now
                    self._handle(what, number)
                elif number == group.version:  # else foretold from rates that changed since
                    self.now_ns = now
                    self._arrive(group)
            while self._ready:
                self._advance(self._ready.popleft())
            self._share_again()

    def _handle(self, what: int, number: int) -> None:
        """Let happen what was to happen now, with a channel or a stream."""
        if what == _MOVE:
            self._move(self.channels[number])
        elif what == _THROUGH:
            self._through(self.channels[number])
        elif what == _DEPART:
            self._depart(number)
        elif what == _DELIVER:
            self._deliver(number)
        else:
            self._ready.append(self.channels[number])

    def _advance(self, channel: _Channel) -> None:
        """Let a channel go on until a wait holds it, a step takes time, or it ends."""
        timed = channel.timed
        while channel.chunk < timed.num_chunks:
            step = timed.steps[channel.step]
            if isinstance(step, TimedReduce):
                self._begin(channel)
                return
            if self._is_held(step, channel):
                return
            self._next_step(channel)
        channel.is_over = True
        channel.end_ns = self.now_ns
        if self.record is not None:
            self.record.over(channel.cause)

    def _is_held(self, step: TimedStep, channel: _Channel) -> bool:
        """Carry out a step that takes no time; True if the channel must wait for it."""
        if isinstance(step, TimedWait):
            if self.flags[step.flag] < channel.chunk + 1 - step.lag:
                self._waiters[step.flag].append(channel)
                return True
        elif isinstance(step, TimedSignal):
            self._signal(step.flag, channel)
        elif isinstance(step, TimedPost):
            self._post(step, channel)
        elif isinstance(step, TimedHold):
            stream = self._streams[step.stream]
            if stream.delivered < channel.chunk + 1 - step.lag:
                stream.waiters.append(channel.number)
                return True
        return False

    def _next_step(self, channel: _Channel) -> None:
        channel.step += 1
        if channel.step == len(channel.timed.steps):
            channel.step = 0
            channel.chunk += 1

    def _signal(self, flag: int, channel: _Channel) -> None:
        self.flags[flag] = channel.chunk + 1
        self._causes[flag] = channel.cause
        waiters = self._waiters[flag]
        if waiters:
            self._waiters[flag] = []
            for waiter in waiters:
                waiter.cause = channel.cause
            self._ready.extend(waiters)

    def _post(self, step: TimedPost, channel: _Channel) -> None:
        """Start one end of a message; when both are, it sets out."""
        stream = self._streams[step.stream]
        chunk = stream.started
        if stream.post(step):
            if self.record is not None:
                message = self.record.begin(stream.sender, chunk, stream.step, self.now_ns)
                message.cause = channel.cause
                stream.records.append(message)
            self._at(self.now_ns + self.loaded.cost.message_ns, _DEPART, step.stream)

    def _depart(self, number: int) -> None:
        """A message is ready; it moves when that before it has."""
        stream = self._streams[number]
        stream.ready += 1
        if not stream.is_flying:
            self._move_message(number)

    def _move_message(self, number: int) -> None:
        stream = self._streams[number]
        size_bytes = stream.move()
        ticket = self._launch(stream.timed.pipe, size_bytes, -1 - number)
        if self.record is not None:
            message = stream.records[0]
            self.record.start(ticket, stream.timed.link, size_bytes, message, self.now_ns)

    def _land_message(self, number: int) -> None:
        """All bytes of a message are there; the next may move."""
        stream = self._streams[number]
        stream.land()
        if self.record is not None:
            message = stream.records.popleft()
            stream.landing.append(message)
            self.record.land(message, stream.timed.link, self.now_ns)
            if stream.ready > stream.landed:
                stream.records[0].begin_ns, stream.records[0].cause = self.now_ns, message
        self._at(self.now_ns + stream.timed.latency_ns, _DELIVER, number)

    def _deliver(self, number: int) -> None:
        """A message is through: go on with who waits for it, at either end."""
        stream = self._streams[number]
        cause = None
        if self.record is not None:
            cause = stream.landing.popleft()
            cause.end_ns, cause.slowest = self.now_ns, stream.timed.link
            self.record.over(cause)
        waiters = stream.deliver(self.now_ns)
        for waiter in waiters:
            self.channels[waiter].cause = cause
            self._ready.append(self.channels[waiter])

    def _begin(self, channel: _Channel) -> None:
        """Begin a reduce step."""
        if self.record is not None:
            channel.now = self.record.begin(
                channel.number, channel.chunk, channel.step, self.now_ns
            )
        step_ns = self.loaded.cost.step_ns
        if step_ns:
            self._at(self.now_ns + step_ns, _MOVE, channel.number)
        else:
            self._move(channel)

    def _move(self, channel: _Channel) -> None:
        """Start the transfers of a step."""
        step = _reduce_of(channel)
        size_bytes = channel.timed.bytes_of(channel.chunk)
        for pipe, link in step.moves:
            self._start(pipe, channel, size_bytes, link)
        if step.memory >= 0 and step.locals:
            self._start(step.memory, channel, step.locals * size_bytes, MEMORY)
        if not channel.flying:
            self._land(channel, MEMORY)

    def _start(self, number: int, channel: _Channel, size_bytes: int, link: int) -> None:
        """Start a transfer of a channel's step."""
        ticket = self._launch(number, size_bytes, channel.number)
        channel.flying += 1
        if self.record is not None:
            self.record.start(ticket, link, size_bytes, channel.now, self.now_ns)

    def _launch(self, number: int, size_bytes: int, tag: int) -> int:
        """Start a transfer over a pipe and return its ticket; `tag` says whose it is."""
        pipe = self.pipes[number]
        group = pipe.group
        group.settle(self.now_ns)
        self._tickets += 1
        if pipe.start(size_bytes, self._tickets, tag):
            self._hold(pipe)
        if not group.is_dirty:
            group.is_dirty = True
            self._dirty.append(group)
        return self._tickets

    def _arrive(self, group: Group) -> None:
        """Take out what is through; more may start at the same time."""
        group.settle(self.now_ns)
        streams = []
        for pipe in group.pipes:
            flights = pipe.flights
            if flights and flights[0][0] <= pipe.served:
                for tag, ticket in pipe.arrivals():
                    link = MEMORY
                    if self.record is not None:
                        link = self.record.arrive(ticket, self.now_ns)
                    if tag < 0:
                        self._land_message(-1 - tag)
                        streams.append(-1 - tag)
                    else:
                        self._came(self.channels[tag], link)
                if not flights:
                    self._release(pipe)
        for number in streams:
            if self._streams[number].ready > self._streams[number].landed:
                self._move_message(number)
        if not group.is_dirty:
            group.is_dirty = True
            self._dirty.append(group)

    def _came(self, channel: _Channel, link: int) -> None:
        channel.flying -= 1
        if not channel.flying:
            self._land(channel, link)

    def _land(self, channel: _Channel, link: int) -> None:
        """All bytes of a step are there, the last of them over `link`."""
        step = _reduce_of(channel)
        if self.record is not None:
            self.record.land(channel.now, link, self.now_ns)
        if step.latency_ns:
            self._at(self.now_ns + step.latency_ns, _THROUGH, channel.number)
        else:
            self._through(channel)

    def _through(self, channel: _Channel) -> None:
        if self.record is not None:
            slowest = _reduce_of(channel).slowest
            self.record.through(channel.now, channel.cause, slowest, self.now_ns)
            channel.cause = channel.now
        self._next_step(channel)
        self._ready.append(channel)

    def _share_again(self) -> None:
        for group in self._dirty:
            group.is_dirty = False
            soonest = group.share()
            if soonest:
                self._at(self.now_ns + soonest, _ARRIVE, group.version, group)
        self._dirty.clear()

    def _hold(self, pipe: Pipe) -> None:
        for at in pipe.resources:
            if not self._holders[at]:
                self._held_since[at] = self.now_ns
            self._holders[at] += 1

    def _release(self, pipe: Pipe) -> None:
        for at in pipe.resources:
            self._holders[at] -= 1
            if not self._holders[at]:
                self.busy_ns[at] += self.now_ns - self._held_since[at]

    def _deadlock(self, stuck: list[_Channel]) -> str:
        """Return one line on who waits for whom."""
        waits = [self._wait_text(channel) for channel in stuck[:_NAMED]]
        more = f"; and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
        return f"{'; '.join(waits)}{more}; run verify() on this program"

    def _wait_text(self, channel: _Channel) -> str:
        step = channel.timed.steps[channel.step]
        where = channel.timed.at(channel.step, channel.chunk)
        if isinstance(step, TimedHold):
            return f"{where} waits for ever for {self._streams[step.stream].text(channel.chunk)}"
        if not isinstance(step, TimedWait):
            raise SimulationError(f"{where} never ended")
        return (
            f"{where} waits for ever for {self.loaded.flag_name(step.flag)} to reach "
            f"{channel.chunk + 1 - step.lag}, it stops at {self.flags[step.flag]}"
        )

    def account(self) -> Account:
        """Return what was done, to be checked and reported."""
        return Account(
            time_ns=self.now_ns,
            asked=[pipe.asked for pipe in self.pipes],
            arrived=[pipe.arrived for pipe in self.pipes],
            busy_ns=self.busy_ns,
            flags=self.flags,
            delivered=[stream.delivered for stream in self._streams],
        )

    def ends(self) -> Iterator[tuple[TimedChannel, int]]:
        """Yield when every channel, and the last message that it sent, was through."""
        for channel in self.channels:
            yield channel.timed, channel.end_ns
        for stream in self._streams:
            if stream.sender >= 0:
                yield self.channels[stream.sender].timed, stream.end_ns


def _reduce_of(channel: _Channel) -> TimedReduce:
    """Return the step that the channel is in."""
    step = channel.timed.steps[channel.step]
    if not isinstance(step, TimedReduce):
        raise SimulationError(f"{channel.timed.at(channel.step, channel.chunk)} moves nothing")
    return step
