"""Streams and events of fake devices: threads that work through queues, and graphs of what they do.

A thread starts with the first work and ends when there was none for a while.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

IDLE_S = 0.5
DEADLINE_S = 60.0  # of what the host waits for; kernels have deadlines of their own

Work = Callable[[], None]


class StreamError(Exception):
    """What the runtime says of a call on a stream or an event."""


class Mark:
    """A place in a queue that has been passed, or not yet."""

    passed = False  # of the class, so that to make one takes less time: calls are measured
    _waiting: threading.Event | None = None
    _lock = threading.Lock()

    def set(self) -> None:
        self.passed = True
        if self._waiting is not None:
            self._waiting.set()

    def wait(self, timeout_s: float = DEADLINE_S) -> None:
        with Mark._lock:
            waiting = self._waiting = self._waiting or threading.Event()
        if not self.passed and not waiting.wait(timeout_s):
            raise StreamError(f"nothing moved for {timeout_s} s; the fake device gives up")


@dataclass(eq=False)
class Node:
    """One piece of a graph: what to do after the nodes before it."""

    work: Work
    before: frozenset[Node]


@dataclass(eq=False)
class Capture:
    """A graph in the making; `tails` are the last nodes of every stream that takes part."""

    origin: Stream
    nodes: list[Node] = field(default_factory=list)
    tails: dict[Stream, frozenset[Node]] = field(default_factory=dict)
    broken: str = ""

    def add(self, stream: Stream, work: Work) -> None:
        node = Node(work, self.tails[stream])
        self.nodes.append(node)
        self.tails[stream] = frozenset([node])

    def join(self, stream: Stream, nodes: frozenset[Node]) -> None:
        self.tails[stream] = self.tails.get(stream, frozenset()) | nodes
        stream.capture = self

    def end(self) -> None:
        """Let the streams go; every one must have come back to the origin."""
        for stream in self.tails:
            stream.capture = None
        if self.broken:
            raise StreamError(
                f"operation failed due to a previous error during capture: {self.broken}"
            )
        reached: set[Node] = set()
        todo = list(self.tails[self.origin])
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo += node.before
        if any(not tail <= reached for tail in self.tails.values()):
            raise StreamError("capture was not joined to the original stream")


@dataclass(frozen=True)
class Captured:
    """What an event stands for that was recorded in a capture."""

    capture: Capture
    nodes: frozenset[Node]


class Event:
    """Stands for what was in a stream when it was last recorded."""

    def __init__(self) -> None:
        self.mark: Mark | Captured | None = None


class Stream:
    """A queue of work, done in its order by a thread."""

    _numbers = itertools.count(0x5000, 16)

    def __init__(self, failed: Callable[[Exception], None], *, default: bool = False) -> None:
        self.number = 0 if default else next(Stream._numbers)
        self.capture: Capture | None = None
        self._failed = failed
        self._queue: deque[Work] = deque()
        self._lock = threading.RLock()  # taken by itself, as that takes less time too
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._waits = self._ends = False

    def do(self, work: Work) -> None:
        """Put `work` behind what is there."""
        if self.capture is not None:
            self.capture.add(self, work)
            return
        with self._lock:
            self._queue.append(work)
            if self._thread is None:
                name = f"fake-stream-{self.number:x}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
            elif self._waits:
                self._changed.notify()

    def mark(self) -> Mark:
        mark = Mark()
        self.do(mark.set)
        return mark

    def idle(self) -> bool:
        """Whether all work is done."""
        with self._changed:
            return not self._queue

    def end(self) -> None:
        """Let the thread end when the queue is done."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def _next(self) -> Work | None:
        with self._changed:
            self._waits = True
            if not self._queue and not self._ends:
                self._changed.wait(IDLE_S)
            self._waits = False
            if not self._queue:
                self._thread = None
                return None
            return self._queue[0]

    def _work(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception as err:
                self._failed(err)
            with self._changed:
                self._queue.popleft()


def record(event: Event, stream: Stream) -> None:
    if stream.capture is None:
        event.mark = stream.mark()
    else:
        event.mark = Captured(stream.capture, stream.capture.tails[stream])


def wait(stream: Stream, event: Event) -> None:
    mark = event.mark
    if isinstance(mark, Captured):
        if stream.capture not in (None, mark.capture):
            raise StreamError("operation would result in a merge of separate capture sequences")
        mark.capture.join(stream, mark.nodes)
    elif stream.capture is not None:
        if mark is not None:
            stream.capture.broken = "dependency created on uncaptured work in another stream"
            raise StreamError(stream.capture.broken)
    elif mark is not None and not mark.passed:
        stream.do(mark.wait)


class Graph:
    """What was captured from a stream, to be done again."""

    def __init__(self, capture: Capture) -> None:
        capture.end()
        self.nodes = tuple(capture.nodes)

    def launch(self, stream: Stream) -> None:
        """Do all of it, in the order of `stream`."""
        for node in self.nodes:
            stream.do(node.work)


class Gate:
    """Holds a stream where it was put, until it is opened."""

    def __init__(self, stream: Stream) -> None:
        self._open = threading.Event()
        stream.do(self._pass)

    def _pass(self) -> None:
        if not self._open.wait(DEADLINE_S):
            raise StreamError("nobody opened the gate")

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def until(done: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Return when `done()` holds; looks every millisecond."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise StreamError(f"{what} took more than {timeout_s} s")
        time.sleep(0.001)
