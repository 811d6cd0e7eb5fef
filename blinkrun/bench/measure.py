"""How a time is taken, the same way for every library.

The libraries take turns: in each round every library runs one block of calls, after a barrier.
The time of a call in a round is the block's time over its calls, on the slowest rank; what is
reported is the median over the rounds. A block rather than single calls, since reading the clock
costs as much as a call of 4 bytes; short blocks in turn, since whatever else the machine does then
hits all libraries alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from blinkrun.bench.libraries import Call, Control, Library
from blinkrun.bench.work import Buffers, Work, count_wrong, fill

BLOCK_S = 0.02  # long against a time slice, short against what disturbs a machine
MAX_CALLS = 10_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: `calls` in all per size and library (0: by time), in `rounds` blocks."""

    calls: int = 0
    warmup: int = 3
    rounds: int = 7


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of `work`: microseconds of a call by library, first in the table first.

    `wrong` counts the wrong elements of the first library over all ranks. `cores` is how many cores
    all ranks together kept busy in the timed blocks of a library. A library that refused is absent
    from both.
    """

    work: Work
    wrong: int
    time_us: Mapping[str, float]
    cores: Mapping[str, float] = field(default_factory=dict)


class Watch:
    """A clock that notes, each time it is read, how long this process has computed so far."""

    def __init__(self, clock: Clock, busy: Clock = time.process_time) -> None:
        self._clock = clock
        self._busy = busy
        self._noted_s = self._before_s = 0.0

    def __call__(self) -> float:
        """Return the clock's time in seconds."""
        self._before_s, self._noted_s = self._noted_s, self._busy()
        return self._clock()

    @property
    def busy_s(self) -> float:
        """Seconds, of all threads, between the last two readings."""
        return self._noted_s - self._before_s


def measure(
    work: Work,
    libraries: Sequence[Library],
    control: Control,
    effort: Effort,
    clock: Clock = time.perf_counter,
) -> Row:
    """Return the times of `work`; every rank must call it with the same arguments."""
    able = [library for library in libraries if library.refuses(work) is None]
    calls: dict[str, Call] = {}
    wrong = 0
    for library in able:
        buffers = library.make_buffers(work)
        calls[library.name] = library.make_call(work, buffers)
        if library is libraries[0]:
            wrong = checked(work, control, buffers, calls[library.name])
        fill(work, control.rank, buffers)  # touched before it is timed
    blocks = {name: _block_length(call, control, effort, clock) for name, call in calls.items()}
    mine: dict[str, list[float]] = {name: [] for name in calls}
    busy_s = dict.fromkeys(calls, 0.0)
    watch = Watch(clock)
    for _ in range(effort.rounds):
        for name, call in calls.items():
            mine[name].append(timed_block(call, blocks[name], control, watch))
            busy_s[name] += watch.busy_s / blocks[name]
    everyone = control.allgather_object(mine)
    everyone_busy = control.allgather_object(busy_s)
    times_us = {name: 1e6 * median_of_slowest(everyone, name) for name in calls}
    return Row(work, wrong, times_us, _cores(everyone, everyone_busy))


def _cores(
    everyone: Sequence[Mapping[str, Sequence[float]]], busy_s: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return how many cores each library kept busy: seconds computed by seconds that passed."""
    return {
        name: sum(each[name] for each in busy_s) / max(sum(times), 1e-9)
        for name, times in everyone[0].items()
    }


def checked(work: Work, control: Control, buffers: Buffers, call: Call) -> int:
    """Return the wrong elements over all ranks after one call on known data."""
    fill(work, control.rank, buffers)
    control.barrier()
    call()
    control.barrier()  # an emulated call may be through much later at another rank: do not poll
    return sum(control.allgather_object(count_wrong(work, control.rank, buffers)))


def _block_length(call: Call, control: Control, effort: Effort, clock: Clock) -> int:
    """Return the calls of a block, the same on every rank, after the warm-up."""
    fastest = min(timed_block(call, 1, control, clock) for _ in range(effort.warmup))
    if effort.calls:
        return -(-effort.calls // effort.rounds)
    wanted = int(BLOCK_S / max(fastest, 1e-9))
    return int(control.broadcast_object(min(max(wanted, 1), MAX_CALLS)))


def timed_block(call: Call, num_calls: int, control: Control, clock: Clock) -> float:
    """Return the seconds of one call, over a block of them that all ranks start together."""
    collects = gc.isenabled()
    gc.disable()
    try:
        control.barrier()
        start = clock()
        for _ in range(num_calls):
            call()
        return (clock() - start) / num_calls
    finally:
        if collects:
            gc.enable()


def median_of_slowest(everyone: Sequence[Mapping[str, Sequence[float]]], name: str) -> float:
    """Return the median over rounds of the slowest rank's time, given every rank's times."""
    rounds = zip(*(times[name] for times in everyone), strict=True)
    return float(statistics.median(max(times) for times in rounds))
