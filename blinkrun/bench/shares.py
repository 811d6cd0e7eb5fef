"""How much of a step is communication: by the timeline, and by the difference of step times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Span = tuple[float, float]  # from and to, in microseconds of one clock


def read_spans(path: Path) -> list[Span]:
    """Return the spans in which a tensor was negotiated or travelled, by a timeline's file.

    Times are microseconds since the epoch, as `time.time_ns` has them, divided by 1000.
    """
    events = json.loads(path.read_text())
    return spans(events["traceEvents"] if isinstance(events, dict) else events)


def spans(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the outermost spans of every tensor; what is open at the end is left out.

    >>> rank = {"ph": "M", "args": {"start_time_since_epoch_in_micros": 100}}
    >>> inner = [{"ph": "B", "pid": 1, "ts": 2}, {"ph": "E", "pid": 1, "ts": 3}]
    >>> spans([rank, {"ph": "B", "pid": 1, "ts": 1}, *inner, {"ph": "E", "pid": 1, "ts": 5}])
    [(101.0, 105.0)]
    """
    epoch = 0.0
    found: list[Span] = []
    begun: dict[int, list[float]] = {}
    for event in events:
        phase = event.get("ph")
        if phase == "M":
            epoch = float(event.get("args", {}).get("start_time_since_epoch_in_micros", epoch))
        elif phase == "B":
            begun.setdefault(event["pid"], []).append(float(event["ts"]))
        elif phase == "E" and begun.get(event["pid"]):
            start = begun[event["pid"]].pop()
            if not begun[event["pid"]]:
                found.append((epoch + start, epoch + float(event["ts"])))
    return found


def covered(found: Iterable[Span], window: Span) -> float:
    """Return how much of `window` lies in at least one of the spans, in the spans' unit.

    >>> covered([(0, 2), (1, 3), (6, 9)], (1, 8))
    4
    """
    total: float = 0
    reached, end = window
    for start, stop in sorted(found):
        first, last = max(start, reached), min(stop, end)
        if last > first:
            total += last - first
            reached = last
    return total


def by_difference(step_s: float, plain_step_s: float) -> float:
    """Return the share of a step that is not there when nothing is reduced.

    >>> by_difference(0.020, 0.015)
    0.25
    """
    return 1 - plain_step_s / step_s
