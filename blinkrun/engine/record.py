"""What the engine notes of its own work: counts always, a timeline where one is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING

from blinkrun.engine.events import Entry
from blinkrun.engine.request import Request
from blinkrun.engine.stats import Stats
from blinkrun.engine.timeline import PACK, QUEUE, UNPACK, WAIT_FOR_DATA, Timeline, negotiating, tree

if TYPE_CHECKING:
    from blinkrun.engine.transfer import Transfer


class Record:
    """Counts, and the timeline if there is one.

    Attributes
    ----------
    stats : Stats
        Counts since the engine was started.
    timeline : Timeline or None
        Where events go.
    is_overlapped : bool
        Whether no thread of the script waits just now; the driver says so.
    """

    def __init__(self) -> None:
        self.stats = Stats()
        self.timeline: Timeline | None = None
        self.is_overlapped = False
        self._ready_ns = 0
        self._open: set[tuple[int, str]] = set()  # requests with an activity that has not ended

    def submitted(self, request: Request) -> None:
        """Note that this rank has asked for something."""
        self.stats.requests += 1
        timeline = self.timeline
        if timeline is not None:
            self._open.add((request.process_set, request.name))
            timeline.begin(title(request), negotiating(request.kind))

    def ready(self, entries: Sequence[Entry]) -> None:
        """Note that all ranks have asked for it."""
        timeline = self.timeline
        if timeline is None:
            return
        self._ready_ns = monotonic_ns()
        timeline.cycle()
        for entry in entries:
            request = entry.request
            if entry.is_mine and (request.process_set, request.name) in self._open:
                timeline.end(title(request), at_ns=self._ready_ns)
                timeline.begin(title(request), request.kind.name, at_ns=self._ready_ns)

    def ran(
        self,
        requests: Sequence[Request],
        transfer: Transfer,
        num_bytes: int,
        times_ns: tuple[int, int, int, int],
    ) -> None:
        """Note a batch: when it was begun, packed, moved and over."""
        begun_ns, packed_ns, moved_ns, over_ns = times_ns
        self.stats.add_batch(num_bytes, over_ns - begun_ns, is_overlapped=self.is_overlapped)
        timeline = self.timeline
        if timeline is None:
            return
        channels = transfer.communicator.executor.group.last_channels()
        for name in dict.fromkeys(map(title, requests)):
            timeline.span(name, QUEUE, self._ready_ns, begun_ns)
            if packed_ns > begun_ns:
                timeline.span(name, PACK, begun_ns, packed_ns)
            _channels(timeline, name, channels, packed_ns, moved_ns)
            if over_ns > moved_ns:
                timeline.span(name, UNPACK, moved_ns, over_ns)

    def ended(self, request: Request) -> None:
        """Note that a request is over, well or not."""
        if self.timeline is not None:
            key = (request.process_set, request.name)
            if key in self._open:
                self._open.discard(key)
                self.timeline.end(title(request))

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Write to another timeline, or to none; the one before is closed."""
        before, self.timeline = self.timeline, timeline
        self._open.clear()
        if before is not None:
            before.close()


def title(request: Request) -> str:
    """Return how the timeline calls a request: its kind is said, and only once.

    >>> from blinkrun.engine.request import Kind
    >>> title(Request("loss", Kind.ALLREDUCE)), title(Request("barrier.noname.0.1", Kind.BARRIER))
    ('allreduce.loss', 'barrier.noname.0.1')
    """
    kind = f"{request.kind.label}."
    return request.name if request.name.startswith(kind) else kind + request.name


def _channels(
    timeline: Timeline,
    name: str,
    channels: Sequence[tuple[int, int, int, int]],
    start_ns: int,
    stop_ns: int,
) -> None:
    """Add what each tree did in a call, and how long the call waited for the ranks before."""
    times = [(first, last) for _, _, first, last in channels if start_ns <= first <= stop_ns]
    if times:
        timeline.span(name, WAIT_FOR_DATA, start_ns, min(first for first, _ in times))
    for number, (first_ns, last_ns) in enumerate(times):
        timeline.span(name, tree(number), first_ns, last_ns, lane=number + 1)
