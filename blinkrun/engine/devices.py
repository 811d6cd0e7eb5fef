"""Device memory in the engine: a stream of its own, between those of callers.

At `submit` an event is recorded in the caller's stream. When all ranks are there, the engine's
stream is made to wait for it, the collective is enqueued, and another event stands for its end: a
handle is done then, and `Handle.wait_on` lets a stream of the caller wait for that event. No thread
waits for a device anywhere on this way.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blinkrun.buffers import View
from blinkrun.engine.arithmetic import is_finite
from blinkrun.engine.handle import Part, Passage
from blinkrun.engine.request import CUDA, Request
from blinkrun.errors import BlinkrunError, DeviceError, InvalidBufferError, NotSupportedError

if TYPE_CHECKING:
    from blinkrun.communicator import Communicator
    from blinkrun.engine.handle import Handle
    from blinkrun.executors.device_api import DeviceApi


class Mark:
    """A point in a stream; its event is used again when nobody holds the mark any more."""

    __slots__ = ("_free", "event")

    def __init__(self, event: int, free: deque[int]) -> None:
        self.event = event
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.event)


class Lane:
    """The engine's stream on one device. Marks are made by any thread, the rest by who drives.

    Attributes
    ----------
    index : int
        Of the device, as this process sees it.
    api : DeviceApi
        The device.
    stream : int
        The engine's own.
    is_closed : bool
        Whether all that ever was in it is through.
    """

    def __init__(self, index: int, api: DeviceApi) -> None:
        self.index = index
        self.api = api
        self.stream = api.new_stream(high_priority=True)
        self.is_closed = False
        self._free: deque[int] = deque()
        self._events: list[int] = []
        self._held: deque[tuple[Mark, Passage | None, object]] = deque()

    def mark(self, stream: int) -> Mark:
        """Return what stands for all that is in `stream` by now."""
        try:
            event = self._free.popleft()
        except IndexError:
            event = self.api.new_event()
            self._events.append(event)
        mark = Mark(event, self._free)
        self.api.record(event, stream)
        return mark

    def follow(self, marks: Sequence[Mark]) -> None:
        """Let what is enqueued next run after `marks`."""
        for mark in marks:
            self.api.wait(self.stream, mark.event)

    def passed(self, handles: Sequence[Handle], check: Callable[[], None]) -> None:
        """Note that the work of `handles` is enqueued; their memory is held until it is through.

        `check` raises what has gone wrong on the device.
        """
        after = self.mark(self.stream)
        for handle in handles:
            passage = handle.passage
            if passage is not None:
                passage.after = after
                passage.check = check
                passage.kept = (handle.parts, handle.keep)
                self._held.append((after, passage, None))

    def hold(self, memory: object) -> None:
        """Keep `memory` until what is enqueued by now is through."""
        self._held.append((self.mark(self.stream), None, memory))

    def sweep(self) -> None:
        """Let go of the memory of what is through."""
        held = self._held
        while held and self.api.is_through(held[0][0].event):
            passage = held.popleft()[1]
            if passage is not None:
                passage.kept = None

    def close(self) -> None:
        """Wait for what is enqueued, which has a deadline of its own, and give everything back."""
        with contextlib.suppress(BlinkrunError):  # whoever closes has heard of it, or will
            self.api.synchronize(self.stream)
        while self._held:
            passage = self._held.popleft()[1]
            if passage is not None:
                passage.kept = None
        self.is_closed = True
        with contextlib.suppress(BlinkrunError):
            while self._events:  # also those that handles still hold
                self.api.free_event(self._events.pop())
            self.api.free_stream(self.stream)


class Devices:
    """The device that this rank's engine has been given memory of: one at most.

    Parameters
    ----------
    world : Communicator
        Of all ranks; it opens devices.
    chosen : callable
        Gives the device that the job has chosen for this rank, None if it has chosen none.
    """

    def __init__(self, world: Communicator, chosen: Callable[[], int | None]) -> None:
        self._world = world
        self._chosen = chosen
        self._rank = world.rank
        self._lane: Lane | None = None
        self._lock = threading.Lock()

    def lane(self, index: int | None = None) -> Lane:
        """Return the lane of a device; without `index` the one that there is, or the usual one.

        Raises
        ------
        InvalidBufferError
            If the engine is used with another device already.
        """
        lane = self._lane
        if lane is None:
            with self._lock:
                lane = self._lane = self._lane or self._open(index)
        if index is not None and lane.index != index:
            raise InvalidBufferError(
                f"rank {self._rank}: a tensor is on device {index}, and this rank has used device "
                f"{lane.index} before; all tensors of a rank must be on one device"
            )
        return lane

    def _open(self, index: int | None) -> Lane:
        world = self._world
        if index is None:
            index = self._chosen() if world.device_index is None else world.device_index
        if index is not None:
            return Lane(index, world.device_api(index))
        try:  # as launchers have it: a device for each rank of the host, or its own only
            return Lane(world.local_rank, world.device_api(world.local_rank))
        except DeviceError:
            return Lane(0, world.device_api(0))

    def enter(
        self, request: Request, parts: Sequence[Part], streams: Sequence[int]
    ) -> Passage | None:
        """Return the passage of a request, begun where its callers' streams are now.

        None if its tensors are on the host.

        Raises
        ------
        InvalidBufferError
            If its tensors are in different places.
        NotSupportedError
            If a graph is being captured.
        """
        if not parts or (parts[0].source.device is None and len(parts) == 1):
            return None
        name = request.name
        index = parts[0].source.device
        if any(part.source.device != index for part in parts):
            where = sorted({_place(part.source.device) for part in parts})
            raise InvalidBufferError(
                f"rank {self._rank}: the tensors of '{name}' are on {' and '.join(where)}; those "
                "of one call must be on one device"
            )
        if index is None:
            return None
        if not request.device.startswith(CUDA):
            raise InvalidBufferError(
                f"rank {self._rank}: '{name}' is on {_place(index)}, and this call is on the host;"
                " move it there"
            )
        if not streams:
            views = [view for part in parts for view in (part.source, part.target) if view]
            streams = [view.stream for view in views]
        streams = tuple(dict.fromkeys(streams))
        api = self._world.device_api(index)  # a lane cannot be made while a graph is captured
        for stream in streams:
            if api.is_capturing(stream):
                raise NotSupportedError(
                    f"rank {self._rank}: '{name}' is called while a CUDA graph is captured; named "
                    "requests are negotiated at each call and cannot be replayed: use the "
                    "communicator (blinkrun.world()) in graphs"
                )
        lane = self.lane(index)
        return Passage(lane, tuple(lane.mark(stream) for stream in streams), streams)

    def sweep(self) -> None:
        """Let go of the memory of what is through."""
        if self._lane is not None:
            self._lane.sweep()

    def is_finite(self, view: View) -> bool:
        """Whether floats hold neither NaN nor infinity; waits for those of a device."""
        if view.device is None or view.count == 0:
            return is_finite(view.pointer, view.count, view.dtype)
        values = np.empty(view.nbytes, np.uint8)
        api = self.lane(view.device).api
        api.copy(values.ctypes.data, view.pointer, view.nbytes, view.stream)
        api.synchronize(view.stream)
        return is_finite(values.ctypes.data, view.count, view.dtype)

    def close(self) -> None:
        """Give everything back."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()


def _place(device: int | None) -> str:
    return "the host" if device is None else f"device {device}"
