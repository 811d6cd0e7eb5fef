"""What `gpu_check` takes of a device and of cupy, on a fake device; by name, for processes too."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from support.fake_cuda import FakeDevice, FakeMachine
from support.fake_memory import REGIONS


@functools.cache
def machine() -> FakeMachine:
    """The machine of this process, with one device."""
    return FakeMachine(1, seed=0)


def open_device(index: int, rank: int = -1) -> FakeDevice:
    return machine().open_device(index, rank)


def open_none(index: int, rank: int = -1) -> FakeDevice:
    """Stand for a machine without a device."""
    return FakeMachine(0).open_device(index, rank)


class Peer:
    """Sums by numpy; graphs of the fake device."""

    def __init__(self, index: int) -> None:
        self._device = open_device(index)

    def add(self, pointers: Sequence[int], out: int, count: int) -> None:
        assert all(REGIONS.holding(pointer) for pointer in [*pointers, out])

    def begin_capture(self, stream: int) -> None:
        self._device.begin_capture(stream)

    def end_capture(self, stream: int) -> Any:
        return self._device.end_capture(stream)

    def launch_graph(self, graph: Any, stream: int) -> None:
        self._device.launch_graph(graph, stream)


class NoSums(Peer):
    """As cupy where it cannot compile."""

    def add(self, pointers: Sequence[int], out: int, count: int) -> None:
        raise RuntimeError("no headers")


def hang(control: Any, job: Any) -> None:
    """Be a process that does not end."""
    threading.Event().wait()
