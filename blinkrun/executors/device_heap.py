"""Memory of a device arena: which parts of it are in use, and what Python holds of them."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from typing import Any

ALIGNMENT = 512  # of every block; whole cache lines and sectors of any device


class DeviceHeap:
    """Hands out ranges of ``[start, stop)``, first fit; safe to call from several threads.

    Examples
    --------
    >>> heap = DeviceHeap(0, 2048)
    >>> heap.allocate(100), heap.allocate(600), heap.allocate(1000)
    (0, 512, None)
    >>> heap.release(0); heap.release(512); heap.allocate(2048)
    0
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start = start = -(-start // ALIGNMENT) * ALIGNMENT
        self.stop = stop
        self._free = [(start, stop)] if start < stop else []
        self._used: dict[int, int] = {}
        self._lock = threading.Lock()

    def allocate(self, num_bytes: int) -> int | None:
        """Return where `num_bytes` may lie, or None where nothing is large enough."""
        size = max(-(-num_bytes // ALIGNMENT), 1) * ALIGNMENT
        with self._lock:
            for at, (start, stop) in enumerate(self._free):
                if start + size <= stop:
                    self._free[at : at + 1] = [(start + size, stop)] if start + size < stop else []
                    self._used[start] = start + size
                    return start
        return None

    def release(self, start: int) -> None:
        """Take back what `allocate` returned."""
        with self._lock:
            stop = self._used.pop(start)
            at = bisect.bisect(self._free, (start, stop))
            if at < len(self._free) and self._free[at][0] == stop:
                stop = self._free.pop(at)[1]
            if at and self._free[at - 1][1] == start:
                at -= 1
                start = self._free.pop(at)[0]
            self._free.insert(at, (start, stop))

    @property
    def bytes_in_use(self) -> int:
        """Bytes that are handed out."""
        with self._lock:
            return sum(stop - start for start, stop in self._used.items())


class DeviceMemory:
    """Bytes of a device arena; they are given back when the object is gone.

    Frameworks take it by ``__cuda_array_interface__``, and keep it alive as long as their tensor.
    Who drops it must have nothing left on the device that uses it, but in the order of the stream
    that uses the memory next.

    Attributes
    ----------
    pointer : int
        Address on the device.
    num_bytes : int
        Size.
    device : int
        Index of the device, as this process sees it.
    """

    def __init__(
        self, pointer: int, num_bytes: int, device: int, give_back: Callable[[int], None]
    ) -> None:
        self.pointer = pointer
        self.num_bytes = num_bytes
        self.device = device
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self.pointer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Protocol version 3: a vector of uint8, used in no particular stream."""
        return {
            "shape": (self.num_bytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }

    def __repr__(self) -> str:
        return f"<{self.num_bytes} bytes of device {self.device}'s arena at {self.pointer:#x}>"
