"""What tests do with a fake device beside what executors do: arrays, holds, captures."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from support import fake_streams
from support.fake_arrays import FakeArray
from support.fake_chips import Chip

from blinkrun.errors import DeviceError

if TYPE_CHECKING:
    from support.fake_cuda import FakeMachine

CAPTURING = "operation not permitted when stream is capturing"


def named(call: str, *, captured: bool = True) -> Callable[[Any], Any]:
    """Say what `call` of CUDA a method is, and whether it may be while a graph is captured."""

    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def checked(self: Tools, *args: Any, **kwargs: Any) -> Any:
            machine, chip = self.machine, self.chip
            for fault in machine.faults:
                if fault.hits(call, self.rank, chip.index):
                    raise self.error(call, fault.reason)
            if chip.sticky:
                raise self.error(call, chip.sticky)
            if not captured and machine.capturing():
                raise self.error(call, CAPTURING)
            try:
                return method(self, *args, **kwargs)
            except fake_streams.StreamError as err:
                raise self.error(call, str(err)) from None

        return checked

    return wrap


class Tools:
    """One rank's device, as tests have it."""

    machine: FakeMachine
    chip: Chip
    rank: int

    def error(self, call: str, reason: str) -> DeviceError:
        return DeviceError(call, self.chip.index, reason, rank=self.rank)

    def _stream(self, number: int, call: str) -> fake_streams.Stream:
        stream = self.chip.stream(number)
        if stream is None:
            raise self.error(call, "invalid resource handle")
        return stream

    def array(
        self, shape: Sequence[int] | int, dtype: Any = np.float32, *, stream: int | None = None
    ) -> FakeArray:
        """Return new memory of the device as an array, not set to anything."""
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        num_bytes = int(np.prod(dims, dtype=np.int64)) * kind.itemsize
        pointer = self.chip.new_array_memory(max(num_bytes, 1))
        array = FakeArray(pointer, dims, kind, device=self.chip.index, stream=stream)
        weakref.finalize(array.memory, self.chip.arrays.__setitem__, pointer, False)
        return array

    def array_of(self, values: Any, *, stream: int | None = None) -> FakeArray:
        """Return a copy of `values` in memory of the device."""
        given = np.asarray(values)
        array = self.array(given.shape, given.dtype, stream=stream)
        array.numpy()[...] = given
        return array

    def hold(self, stream: int = 0) -> fake_streams.Gate:
        """Hold `stream` here until the gate is opened (a context)."""
        return fake_streams.Gate(self._stream(stream, "hold"))

    def begin_capture(self, stream: int) -> None:
        queue = self._stream(stream, "cudaStreamBeginCapture")
        if queue is self.chip.default or queue.capture is not None:
            raise self.error("cudaStreamBeginCapture", "operation not permitted")
        fake_streams.Capture(queue).join(queue, frozenset())

    @named("cudaStreamEndCapture")
    def end_capture(self, stream: int) -> fake_streams.Graph:
        capture = self._stream(stream, "cudaStreamEndCapture").capture
        if capture is None or capture.origin.number != stream:
            raise self.error("cudaStreamEndCapture", "operation not permitted")
        return fake_streams.Graph(capture)

    @named("cudaGraphLaunch")
    def launch_graph(self, graph: fake_streams.Graph, stream: int) -> None:
        graph.launch(self._stream(stream, "cudaGraphLaunch"))
