"""What `gpu_check` takes of cupy: its sums, to compare with, and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class CupyPeer:
    """cupy on one device.

    Parameters
    ----------
    index : int
        Number of the device in this process.
    """

    def __init__(self, index: int) -> None:
        import cupy  # noqa: PLC0415 - only where there is a device

        self._cupy = cupy
        self._index = index

    def add(self, pointers: Sequence[int], out: int, count: int) -> None:
        """Add float32 arrays as a user of cupy does, in the default stream."""
        with self._cupy.cuda.Device(self._index):
            first, *others = (self._array(pointer, count) for pointer in pointers)
            total = self._array(out, count)
            self._cupy.add(first, others[0], out=total)
            for other in others[1:]:
                total += other

    def begin_capture(self, stream: int) -> None:
        """Let what comes in `stream` be kept as a graph; other threads are not affected."""
        runtime = self._cupy.cuda.runtime
        runtime.streamBeginCapture(stream, runtime.streamCaptureModeThreadLocal)

    def end_capture(self, stream: int) -> int:
        """Return the graph, ready to be launched."""
        runtime = self._cupy.cuda.runtime
        graph = runtime.streamEndCapture(stream)
        try:
            return int(runtime.graphInstantiate(graph))
        finally:
            runtime.graphDestroy(graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        """Run a graph in `stream`."""
        self._cupy.cuda.runtime.graphLaunch(graph, stream)

    def _array(self, pointer: int, count: int) -> Any:
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(pointer, count * 4, self, self._index)
        return self._cupy.ndarray((count,), "float32", cuda.MemoryPointer(memory, 0))
