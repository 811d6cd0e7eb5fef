"""The timeline: what happened to each tensor and when, as a Chrome trace (``chrome://tracing``).

A tensor is a "process" of the trace and activities nest on it, under the names that Horovod's
timeline has: ``NEGOTIATE_ALLREDUCE`` from this rank's offer until all have offered, then
``ALLREDUCE`` with what it is made of. The file is written as the job runs and is whole JSON after
every write, so that what a killed job leaves can be opened (`trace_file`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from blinkrun import log
from blinkrun.engine.request import Kind
from blinkrun.engine.trace_file import TraceFile
from blinkrun.errors import UsageError
from blinkrun.types import Rank

QUEUE = "QUEUE"
PACK = "MEMCPY_IN_FUSION_BUFFER"
UNPACK = "MEMCPY_OUT_FUSION_BUFFER"
WAIT_FOR_DATA = "WAIT_FOR_DATA"
CYCLE_START = "CYCLE_START"

_PERIOD_NS = 25_000_000  # between writes; scripts read the file 0.1 s after what they look for
_MOST_EVENTS = 512  # held back; about 64 KiB of text

_Event = tuple[int, str, str, str, dict[str, Any]]


def negotiating(kind: Kind) -> str:
    """Return the activity of a request that waits for other ranks.

    >>> negotiating(Kind.ALLREDUCE)
    'NEGOTIATE_ALLREDUCE'
    """
    return f"NEGOTIATE_{kind.name}"


def tree(number: int) -> str:
    """Return the activity of one tree of a collective."""
    return f"tree {number}"


class Timeline:
    """Writes one rank's events to a file. Its methods may be called from any thread.

    Parameters
    ----------
    path : str
        The file; what it held is gone.
    rank : Rank
        Stands in the trace, so that files of several ranks can be told apart.
    mark_cycles : bool
        Whether `cycle` leaves a mark.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """

    def __init__(self, path: str, rank: Rank, mark_cycles: bool = False) -> None:
        self.path = path
        self._rank = rank
        self._mark_cycles = mark_cycles
        self._lock = threading.Lock()
        self._events: list[_Event] = []
        self._numbers: dict[str, int] = {}  # of tensors, from 1; 0 is the rank itself
        self._start_ns = self._written_ns = time.monotonic_ns()
        since_epoch = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
        first = [
            _metadata("process_name", 0, {"name": f"rank {rank}", **since_epoch}),
            _metadata("process_sort_index", 0, {"sort_index": 0}),
        ]
        try:
            self._file: TraceFile | None = TraceFile(path, first)
        except OSError as err:
            raise UsageError(f"timeline {path} cannot be written: {err.strerror}") from err

    def begin(
        self,
        tensor: str,
        activity: str,
        *,
        at_ns: int | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin an activity on a tensor, inside those that have begun and not ended.

        `at_ns` is a time of ``time.monotonic_ns``, now if not given.
        """
        self._add(at_ns, "B", tensor, activity, args=args)

    def end(self, tensor: str, *, at_ns: int | None = None) -> None:
        """End the activity of a tensor that began last."""
        self._add(at_ns, "E", tensor)

    def span(
        self, tensor: str, activity: str, start_ns: int, stop_ns: int, *, lane: int = 0
    ) -> None:
        """Add an activity that is over; those of one `lane` nest, other lanes are parallel."""
        duration_ns = max(stop_ns - start_ns, 0)
        self._add(start_ns, "X", tensor, activity, lane=lane, duration_ns=duration_ns)

    def instant(self, name: str, *, at_ns: int | None = None) -> None:
        """Mark a moment, across all tensors."""
        self._add(at_ns, "i", name=name)

    def cycle(self) -> None:
        """Mark that the engine looks for work again, if cycles are to be marked."""
        if self._mark_cycles:
            self.instant(CYCLE_START)

    def tick(self) -> None:
        """Write what has been held back long enough; call it now and then while nothing happens."""
        with self._lock:
            if self._events and time.monotonic_ns() - self._written_ns > _PERIOD_NS:
                self._write()

    def close(self) -> None:
        """Write what is left and close the file. Later events are ignored."""
        with self._lock:
            self._write()
            file, self._file = self._file, None
            if file is not None:
                try:
                    file.close()
                except OSError as err:
                    self._say_why(err)

    # ---- inside --------------------------------------------------------------------------------

    def _add(
        self, at_ns: int | None, phase: str, tensor: str = "", name: str = "", **more: Any
    ) -> None:
        now_ns = time.monotonic_ns()
        when_ns = now_ns if at_ns is None else at_ns
        with self._lock:
            if self._file is None:
                return
            self._events.append((when_ns, phase, tensor, name, more))
            if len(self._events) >= _MOST_EVENTS or now_ns - self._written_ns > _PERIOD_NS:
                self._write()

    def _write(self) -> None:
        events, self._events = self._events, []
        self._written_ns = time.monotonic_ns()
        if not events or self._file is None:
            return
        try:
            self._file.append(line for event in events for line in self._format(event))
        except OSError as err:  # a full disk must not end the training
            self._file = None
            self._say_why(err)

    def _say_why(self, err: OSError) -> None:
        log.say(f"timeline {self.path} ends here: {err.strerror}", self._rank)

    def _format(self, event: _Event) -> list[str]:
        when_ns, phase, tensor, name, more = event
        lines = []
        number = self._numbers.get(tensor, 0) if tensor else 0
        if tensor and not number:
            number = self._numbers[tensor] = len(self._numbers) + 1
            lines.append(_metadata("process_name", number, {"name": tensor}))
            lines.append(_metadata("process_sort_index", number, {"sort_index": number}))
        line = f'{{"ph": "{phase}", "ts": {_micros(when_ns - self._start_ns)}, "pid": {number}'
        line += f', "tid": {more.get("lane", 0)}'
        if phase != "E":
            line += f', "name": {json.dumps(name)}'
        if phase == "X":
            line += f', "dur": {_micros(more["duration_ns"])}'
        if phase == "i":
            line += ', "s": "g"'
        if more.get("args"):
            line += f', "args": {json.dumps(more["args"])}'
        lines.append(line + "}")
        return lines


def _metadata(name: str, number: int, args: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": number, "args": args})


def _micros(nanoseconds: int) -> str:
    """Microseconds with three places, exactly."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if whole >= 0 else f"{nanoseconds / 1000:.3f}"
