"""What happened in a run: every transfer, and what each step had to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blinkrun.simulator.run import Critical, StepTime, Transfer
from blinkrun.simulator.timed import Load
from blinkrun.topology.graph import Topology

MEMORY = -1  # instead of a link: the rank's own memory


@dataclass(slots=True)
class StepRecord:
    """A reduce step of one chunk, or a message: then `step` is that which sends it.

    `cause` is what had to end before it could begin, None for the entry; `link` carried the last
    bytes, `slowest` has the largest latency.
    """

    channel: int
    chunk: int
    step: int
    begin_ns: int
    move_ns: int = -1
    land_ns: int = 0
    end_ns: int = 0
    link: int = MEMORY
    slowest: int = MEMORY
    cause: StepRecord | None = None


NO_STEP = StepRecord(-1, -1, -1, 0)


@dataclass(slots=True)
class Record:
    """Collects what the engine reports."""

    steps: list[StepRecord] = field(default_factory=list)
    entry_ns: int = 0  # prologues are over
    start_ns: int = 0  # channels start
    entry_cause: StepRecord | None = None
    last: StepRecord | None = None
    _flying: dict[int, tuple[int, int, StepRecord]] = field(default_factory=dict)
    _done: list[tuple[int, int, int, int, int, StepRecord]] = field(default_factory=list)

    def enter(self, entry_ns: int, start_ns: int) -> None:
        """All ranks have met at `entry_ns`; channels start at `start_ns`."""
        self.entry_ns, self.start_ns = entry_ns, start_ns
        self.entry_cause, self.last = self.last, None

    def begin(self, channel: int, chunk: int, step: int, now_ns: int) -> StepRecord:
        """Return the record of a reduce step that a channel begins."""
        return StepRecord(channel, chunk, step, now_ns)

    def start(self, ticket: int, link: int, size_bytes: int, step: StepRecord, now_ns: int) -> None:
        """A transfer of a step starts."""
        step.move_ns = now_ns
        self._flying[ticket] = (link, size_bytes, step)

    def arrive(self, ticket: int, now_ns: int) -> int:
        """It is through; return its link."""
        link, size_bytes, step = self._flying.pop(ticket)
        if link != MEMORY:
            self._done.append((step.move_ns, ticket, now_ns, link, size_bytes, step))
        return link

    def land(self, step: StepRecord, link: int, now_ns: int) -> None:
        """All bytes of a step are there, the last over `link`."""
        step.land_ns, step.link = now_ns, link
        if step.move_ns < step.begin_ns:  # nothing had to move
            step.move_ns = now_ns

    def through(
        self, step: StepRecord, cause: StepRecord | None, slowest: int, now_ns: int
    ) -> None:
        """A channel has carried out a step."""
        step.end_ns, step.slowest, step.cause = now_ns, slowest, cause
        self.steps.append(step)

    def over(self, cause: StepRecord | None) -> None:
        """A channel has ended, or a message is through, the last so far."""
        self.last = cause

    def transfers(self, loaded: Load, topology: Topology) -> tuple[Transfer, ...]:
        """Return all transfers over links, by start."""
        return tuple(
            Transfer(
                rank=loaded.channels[step.channel].rank,
                channel=loaded.channels[step.channel].number,
                step=step.step,
                chunk=step.chunk,
                src=topology.links[link].src,
                dst=topology.links[link].dst,
                link=link,
                size_bytes=size_bytes,
                start_ns=start_ns,
                end_ns=end_ns,
            )
            for start_ns, _, end_ns, link, size_bytes, step in sorted(
                self._done, key=lambda each: each[:2]
            )
        )

    def step_times(self, loaded: Load) -> tuple[StepTime, ...]:
        """Return all steps, by their ends."""
        return tuple(
            StepTime(
                loaded.channels[step.channel].rank,
                loaded.channels[step.channel].number,
                step.step,
                step.chunk,
                loaded.channels[step.channel].prologue,
                step.begin_ns,
                step.move_ns,
                step.land_ns,
                step.end_ns,
            )
            for step in self.steps
        )

    def critical(self, loaded: Load, end_ns: int) -> tuple[Critical, ...]:
        """Return what the time up to `end_ns` is made of, without a gap."""
        path = self._chain(self.last)
        first_ns = path[0].begin_ns if path else end_ns
        whose = loaded.channels[path[0].channel] if path else None
        switch = Critical(
            "switch",
            whose.rank if whose else -1,
            whose.number if whose else -1,
            -1,
            -1,
            -1,
            self.start_ns,
            first_ns,
        )
        launch = Critical("launch", -1, -1, -1, -1, -1, self.entry_ns, self.start_ns)
        found = [*_stretches(self._chain(self.entry_cause), loaded), launch, switch]
        found += _stretches(path, loaded)
        return tuple(part for part in found if part.start_ns < part.end_ns)

    def _chain(self, last: StepRecord | None) -> list[StepRecord]:
        """Return the steps that led to `last`, the first first."""
        path = []
        while last is not None:
            path.append(last)
            last = last.cause
        return path[::-1]


def _stretches(path: Sequence[StepRecord], loaded: Load) -> Iterator[Critical]:
    """Yield what the time of steps is made of.

    A message follows the one before it as soon as that has landed, not when it is through.
    """
    for number, step in enumerate(path):
        stop_ns = path[number + 1].begin_ns if number + 1 < len(path) else step.end_ns
        channel = loaded.channels[step.channel]
        whose = (channel.rank, channel.number, step.step, step.chunk)
        moves = "memory" if step.link == MEMORY else "transfer"
        yield Critical("step", *whose, -1, step.begin_ns, step.move_ns)
        yield Critical(moves, *whose, step.link, step.move_ns, step.land_ns)
        if step.land_ns < stop_ns:
            end_ns = min(step.end_ns, stop_ns)
            yield Critical("latency", *whose, step.slowest, step.land_ns, end_ns)
