"""The event loop: runs a program over a topology on a virtual clock, in whole nanoseconds.

Every channel is a thread block of its own, as in the executors. What a step moves are transfers;
between two events every transfer has a constant, max-min fair rate (`sharing`), so all that can
happen next is that a transfer comes through, a step has waited long enough, or nothing at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from blinkrun.errors import ProgramError, SimulationError
from blinkrun.schedule.ir import Part, Program
from blinkrun.simulator.conserve import Account, check_account
from blinkrun.simulator.cost import OURS, Cost
from blinkrun.simulator.flow import Group, Pipe, groups_of
from blinkrun.simulator.load import (
    Load,
    TimedChannel,
    TimedReduce,
    TimedSignal,
    TimedWait,
    load,
)
from blinkrun.simulator.record import MEMORY, Record
from blinkrun.simulator.run import Run, Usage
from blinkrun.topology.graph import Topology

_BEGIN, _MOVE, _THROUGH, _ARRIVE = range(4)  # what an event is
_NAMED = 3  # waits of a deadlock that are named


def simulate(  # noqa: PLR0913 - all that a run depends on
    program: Program,
    topology: Topology,
    *,
    size_bytes: int,
    itemsize: int = 4,
    chunk_bytes: int = 0,
    cost: Cost = OURS,
    trace: bool = False,
) -> Run:
    """Return how long `program` takes over `topology`, and what every resource does meanwhile.

    Prologues run first; then all ranks enter, which takes ``cost.launch_ns``; then all channels
    run at once. A reduce step takes ``cost.step_ns``; then each operand in another rank's memory
    is a transfer that holds every resource of its link, and those in the rank's own memory
    together one transfer of the rank's memory; the step is through the largest latency of its
    links after the last of them. Waits and signals take no time. Transfers in flight share
    resources max-min fair. Nothing is rounded but ends of transfers, up to the next nanosecond.

    Parameters
    ----------
    program : Program
        As the executors run it.
    topology : Topology
        Its ranks are the program's; in MB/s.
    size_bytes : int
        Of the collective, as nccl-tests counts them: all blocks of allgather, reducescatter and
        alltoall together. Rounded down to whole elements.
    itemsize : int, default 4
        Bytes of an element.
    chunk_bytes : int, default 0
        Into which the parts of a pipelined program are cut; 0: parts are one chunk.
    cost : Cost, default `OURS`
    trace : bool, default False
        Whether to keep every transfer, and the critical path.

    Raises
    ------
    UsageError
        If the size or the chunk is negative, or the topology does not count MB/s.
    ProgramError
        If the program needs links or ranks that the topology lacks, or waits for ever.
    SimulationError
        If bytes are lost or time runs backwards: a fault of the simulator.

    Examples
    --------
    A broadcast of 1 MB over a link of 1 GB/s:

    >>> from blinkrun.schedule.lower import lower
    >>> from blinkrun.planner.make import make_plan
    >>> from blinkrun.simulator.cost import FREE
    >>> from blinkrun.topology.graph import Link, LinkKind, Resource
    >>> from blinkrun.types import Collective
    >>> links = (Link(0, 1, ("a",), LinkKind.NVLINK), Link(1, 0, ("b",), LinkKind.NVLINK))
    >>> pair = Topology("pair", (0, 1), links, (Resource("a", 1000), Resource("b", 1000)), "MB/s")
    >>> program = lower(make_plan(pair), Collective.BROADCAST)
    >>> simulate(program, pair, size_bytes=10**6, cost=FREE).time_ns
    1000000
    """
    loaded = load(
        program,
        topology,
        size_bytes=size_bytes,
        itemsize=itemsize,
        chunk_bytes=chunk_bytes,
        cost=cost,
    )
    engine = Engine(loaded, Record() if trace else None)
    engine.run()
    record = engine.record
    return Run(
        collective=program.collective,
        program=program.name,
        num_ranks=program.size,
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes if program.pipelined and not program.eager else 0,
        time_ns=engine.now_ns,
        usage=usage_of(loaded, engine.account(), len(topology.resources)),
        transfers=record.transfers(loaded, topology) if record else (),
        critical=record.critical(loaded, engine.now_ns) if record else (),
        steps=record.step_times(loaded) if record else (),
        ends_ns=_ends(program, engine.channels),
    )


def _ends(program: Program, channels: Sequence[_Channel]) -> tuple[tuple[Part, int], ...]:
    """Return when the last channel of each part was through."""
    ends: dict[Part, int] = {}
    for channel in channels:
        timed = channel.timed
        if not timed.prologue:
            part = program.ranks[timed.rank].channels[timed.number].part
            ends[part] = max(ends.get(part, 0), channel.end_ns)
    return tuple(sorted(ends.items(), key=lambda entry: (entry[0].start, entry[0].stop)))


def usage_of(loaded: Load, account: Account, num_resources: int) -> tuple[Usage, ...]:
    """Return what the topology's resources did, which come before the ranks' memories."""
    columns = (loaded.resources, loaded.capacities, account.crossed(loaded), account.busy_ns)
    return tuple(map(Usage, *(column[:num_resources] for column in columns)))


class _Channel:
    """A channel on its way."""

    __slots__ = ("cause", "chunk", "end_ns", "flying", "is_over", "number", "step", "timed")

    def __init__(self, number: int, timed: TimedChannel) -> None:
        self.number = number
        self.timed = timed
        self.chunk = 0
        self.step = 0
        self.flying = 0  # transfers of the current step
        self.is_over = False
        self.end_ns = 0
        self.cause = -1  # the step, in the record, without which it would not have come so far


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
        self.pipes = [Pipe(resources) for resources in loaded.pipes]
        groups_of(self.pipes, loaded.capacities)
        self.channels = [_Channel(at, timed) for at, timed in enumerate(loaded.channels)]
        num_flags = 1 + max(
            (s.flag for c in loaded.channels for s in c.steps if not isinstance(s, TimedReduce)),
            default=-1,
        )
        self.flags = [0] * num_flags
        self._causes = [-1] * num_flags
        self._waiters: list[list[_Channel]] = [[] for _ in range(num_flags)]
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
                    self._handle(what, self.channels[number])
                elif number == group.version:  # else foretold from rates that changed since
                    self.now_ns = now
                    self._arrive(group)
            while self._ready:
                self._advance(self._ready.popleft())
            self._share_again()

    def _handle(self, what: int, channel: _Channel) -> None:
        if what == _MOVE:
            self._move(channel)
        elif what == _THROUGH:
            self._through(channel)
        else:
            self._ready.append(channel)

    def _advance(self, channel: _Channel) -> None:
        """Let a channel go on until a wait holds it, a step takes time, or it ends."""
        timed = channel.timed
        while channel.chunk < timed.num_chunks:
            step = timed.steps[channel.step]
            if isinstance(step, TimedWait):
                if self.flags[step.flag] < channel.chunk + 1 - step.lag:
                    self._waiters[step.flag].append(channel)
                    return
            elif isinstance(step, TimedSignal):
                self._signal(step.flag, channel)
            else:
                self._begin(channel)
                return
            self._next_step(channel)
        channel.is_over = True
        channel.end_ns = self.now_ns
        if self.record is not None:
            self.record.over(channel.cause)

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

    def _begin(self, channel: _Channel) -> None:
        """Begin a reduce step."""
        if self.record is not None:
            self.record.begin(channel.number, channel.chunk, channel.step, self.now_ns)
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
        pipe = self.pipes[number]
        group = pipe.group
        group.settle(self.now_ns)
        self._tickets += 1
        if pipe.start(size_bytes, self._tickets, channel.number):
            self._hold(pipe)
        channel.flying += 1
        if self.record is not None:
            self.record.start(self._tickets, link, size_bytes, channel.number, self.now_ns)
        if not group.is_dirty:
            group.is_dirty = True
            self._dirty.append(group)

    def _arrive(self, group: Group) -> None:
        """Take out what is through; more may start at the same time."""
        group.settle(self.now_ns)
        for pipe in group.pipes:
            flights = pipe.flights
            if flights and flights[0][0] <= pipe.served:
                for number, ticket in pipe.arrivals():
                    channel = self.channels[number]
                    channel.flying -= 1
                    link = MEMORY
                    if self.record is not None:
                        link = self.record.arrive(ticket, self.now_ns)
                    if not channel.flying:
                        self._land(channel, link)
                if not flights:
                    self._release(pipe)
        if not group.is_dirty:
            group.is_dirty = True
            self._dirty.append(group)

    def _land(self, channel: _Channel, link: int) -> None:
        """All bytes of a step are there, the last of them over `link`."""
        step = _reduce_of(channel)
        if self.record is not None:
            self.record.land(channel.number, link, self.now_ns)
        if step.latency_ns:
            self._at(self.now_ns + step.latency_ns, _THROUGH, channel.number)
        else:
            self._through(channel)

    def _through(self, channel: _Channel) -> None:
        if self.record is not None:
            step = _reduce_of(channel)
            channel.cause = self.record.through(
                channel.number, channel.cause, step.slowest, self.now_ns
            )
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
        )


def _reduce_of(channel: _Channel) -> TimedReduce:
    """Return the step that the channel is in."""
    step = channel.timed.steps[channel.step]
    if not isinstance(step, TimedReduce):
        raise SimulationError(f"{channel.timed.at(channel.step, channel.chunk)} moves nothing")
    return step
