"""A process set's communicator as the engine uses it for memory of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blinkrun.buffers import numpy_dtype
from blinkrun.engine.transfer import SMALLEST_BUFFER, Transfer
from blinkrun.executors.base import Request as Call
from blinkrun.types import Collective, DType, Op

if TYPE_CHECKING:
    from blinkrun.communicator import Communicator
    from blinkrun.engine.devices import Lane


class DeviceTransfer(Transfer):
    """Enqueues in the engine's stream what moves bytes among the ranks of one process set.

    All ranks of the set make it between the same two calls: they join their devices then.
    """

    lane: Lane  # always

    def __init__(self, communicator: Communicator, lane: Lane) -> None:
        super().__init__(communicator)
        self.lane = lane
        self._memory: Any = None
        self._executor = communicator.device_executor(lane.index)

    def call(  # noqa: PLR0913
        self,
        collective: Collective,
        dtype: DType,
        source: int,
        target: int,
        count: int,
        *,
        op: int = Op.SUM,
        root: int = 0,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Enqueue a collective; see `Transfer.call`."""
        lane = self.lane
        call = Call(
            collective,
            dtype,
            Op(op),
            root,
            source,
            target,
            count,
            *scales,
            stream=lane.stream,
            device=lane.index,
        )
        self.communicator.run_request(call)

    def buffer(self, num_bytes: int) -> int:
        """Return the address of `num_bytes` in the device's arena, used in the stream's order."""
        if self._memory is None or self._memory.num_bytes < num_bytes:
            if self._memory is not None:
                self.lane.hold(self._memory)
            wanted = max(num_bytes, SMALLEST_BUFFER)
            size = 1 << (wanted - 1).bit_length()
            self._memory = self.communicator.empty_bytes(size, device=True)
        return int(self._memory.pointer)

    def pack(self, target: int, parts: list[tuple[int, int, int]]) -> None:
        """Enqueue copies of parts (address, bytes, offset) to `target` + offset."""
        for address, num_bytes, offset in parts:
            if num_bytes:
                self.lane.api.copy(target + offset, address, num_bytes, self.lane.stream)

    def unpack(self, source: int, parts: list[tuple[int, int, int]]) -> None:
        """Enqueue copies from `source` + offset to parts (address, bytes, offset)."""
        for address, num_bytes, offset in parts:
            if num_bytes:
                self.lane.api.copy(address, source + offset, num_bytes, self.lane.stream)

    def fill(self, pointer: int, count: int, dtype: DType, value: float) -> None:
        """Enqueue what sets `count` elements to one value."""
        lane, num_bytes = self.lane, count * dtype.itemsize
        if num_bytes == 0:
            return
        if value == 0:
            lane.api.memset(pointer, 0, num_bytes, lane.stream)
            return
        values = np.full(count, value, numpy_dtype(dtype))
        lane.api.copy(pointer, values.ctypes.data, num_bytes, lane.stream)
        lane.hold(values)

    def check(self) -> None:
        """Raise what has gone wrong by now on the devices of the set."""
        self._executor.check()

    def trace(self, is_on: bool) -> None:
        """Do nothing: work on devices is not timed by channel."""

    def close(self) -> None:
        """Give back the buffer."""
        if self._memory is not None:
            self.lane.hold(self._memory)
        self._memory = None
        super().close()
