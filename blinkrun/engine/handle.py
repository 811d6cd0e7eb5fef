"""What a caller hands to the engine for a request, and what it holds until the result is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from blinkrun.buffers import View
from blinkrun.engine.request import Request
from blinkrun.errors import InternalError

if TYPE_CHECKING:
    from blinkrun.engine.devices import Lane, Mark

Allocate = Callable[[tuple[int, ...]], View]


@dataclass(frozen=True, slots=True)
class Part:
    """The memory of one member of a request.

    Attributes
    ----------
    source : View
        What this rank gives. It must not change until the request is done.
    target : View, optional
        Where the result goes; may be `source`.
    allocate : callable, optional
        Makes the target when its shape is known, for ALLGATHER, ALLTOALL and REDUCESCATTER. It is
        called by whichever thread runs the request; what it makes on a device is used first in the
        engine's stream (`Engine.device_stream`).
    """

    source: View
    target: View | None = None
    allocate: Allocate | None = None

    def place(self, shape: tuple[int, ...]) -> View:
        """Return where a result of `shape` goes."""
        if self.target is not None:
            return self.target
        if self.allocate is None:
            raise InternalError("a part has neither a target nor a way to make one")
        return self.allocate(shape)


@dataclass(slots=True)
class Passage:
    """The way of a request on device memory.

    Attributes
    ----------
    lane : Lane
        The engine's stream on that device.
    before : tuple of Mark
        What it comes after, in the streams of the caller.
    streams : tuple of int
        Those streams.
    after : Mark or None
        Its end, once it is enqueued.
    check : callable or None
        Raises what has gone wrong on the device by now.
    kept : object
        Its memory, from then until it is through or no stream of the caller can be ahead of it.
    """

    lane: Lane
    before: tuple[Mark, ...]
    streams: tuple[int, ...]
    after: Mark | None = None
    check: Callable[[], None] | None = None
    kept: object = None


class Waits(Protocol):
    """What a handle needs of the engine."""

    def wait_for(self, handle: Handle) -> None:
        """Return when `handle` is done."""
        ...

    def release(self, handle: Handle) -> None:
        """Let the name of `handle` be used again; called just before it is done."""
        ...


class Handle:
    """A request under way.

    Attributes
    ----------
    request : Request
        What was asked for.
    parts : sequence of Part
        Kept alive until the request is done.
    targets : tuple of View
        The results, one for each member, once it is done.
    received_splits : tuple of int
        ALLTOALL and ALLGATHER: the rows that came from each rank of the set.
    number : int
        ADD_SET: the number of the new process set. Join: the rank that came last.
    keep : object
        What else is kept alive until then.
    key : (int, str)
        Process set and name, by which the engine knows it.
    passage : Passage or None
        Of a request on device memory. It is done when its work is enqueued on the device.
    """

    __slots__ = (
        "_callbacks",
        "_engine",
        "_missing",
        "_places",
        "error",
        "is_done",
        "keep",
        "key",
        "number",
        "parts",
        "passage",
        "received_splits",
        "request",
    )

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        engine: Waits,
        request: Request,
        parts: Sequence[Part],
        key: tuple[int, str] | None = None,
        keep: object = None,
        passage: Passage | None = None,
    ) -> None:
        self._engine = engine
        self._callbacks: list[Callable[[Handle], None]] = []
        self._missing = len(parts)
        self._places: list[View | None] = [part.target for part in parts]
        self.request = request
        self.key = key or (request.process_set, request.name)
        self.parts: Sequence[Part] = parts
        self.keep = keep
        self.passage = passage
        self.error: BaseException | None = None
        self.is_done = False
        self.number = 0
        self.received_splits: tuple[int, ...] = ()

    @property
    def largest(self) -> int:
        """Bytes that this rank gives of the largest member."""
        return max((part.source.nbytes for part in self.parts), default=0)

    @property
    def name(self) -> str:
        """The name of the request."""
        return self.request.name

    @property
    def targets(self) -> tuple[View, ...]:
        """The results, one for each member."""
        return tuple(place for place in self._places if place is not None)

    def done(self) -> bool:
        """Whether the request is through, with or without success; never blocks."""
        return self.is_done

    def wait(self) -> None:
        """Return when the request is through; raises what went wrong. May be called again.

        The calling thread does the engine's work meanwhile.
        """
        if not self.is_done:
            self._engine.wait_for(self)
        if self.error is not None:
            raise self.error

    def wait_on(self, stream: int) -> None:
        """Let a stream of the device go on only after the results; blocks no thread for a device.

        For requests on device memory, after `wait`. Raises what has gone wrong on the device by
        now, this request or another; what goes wrong later is raised by a later one.
        """
        passage = self.passage
        if passage is None or passage.after is None or passage.lane.is_closed:
            return
        passage.lane.api.wait(stream, passage.after.event)
        if passage.streams == (stream,):  # what is freed from here on is used in its order
            passage.kept = None
        if passage.check is not None:
            passage.check()

    def is_through(self) -> bool:
        """Whether the results are there, on a device as well; never blocks."""
        passage = self.passage
        if not self.is_done or passage is None or passage.after is None or passage.lane.is_closed:
            return self.is_done
        return passage.lane.api.is_through(passage.after.event)

    def add_done_callback(self, call: Callable[[Handle], None]) -> None:
        """Call `call` with this handle when it is done, now if it is.

        It runs in the thread that finishes the request and must not wait for others. What it
        raises is reported as an exception in that thread, and hinders nothing.
        """
        self._callbacks.append(call)
        if self.is_done:
            self._call_back()

    # ---- for the engine ------------------------------------------------------------------------

    def member_done(self, member: int, place: View | None = None) -> None:
        """Note that a member has its result, at `place` if that is new; the last ends it."""
        if place is not None:
            self._places[member] = place
        self._missing -= 1
        if self._missing <= 0:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """End the request; the first end counts."""
        if self.is_done:
            return
        self.error = error
        self.parts = ()
        self.keep = None
        self._engine.release(self)
        self.is_done = True
        if self._callbacks:
            self._call_back()

    def drop_callbacks(self) -> None:
        """Call nobody when it is done."""
        self._callbacks.clear()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                call = self._callbacks.pop()
            except IndexError:  # another thread took it
                return
            try:
                call(self)
            except Exception as err:
                told = (type(err), err, err.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(told))
