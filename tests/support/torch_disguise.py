"""Torch tensors on the CPU that pass for tensors on a (fake) CUDA device.

What torch computes runs on the host at once, so a stream of the device that waits for results is
waited for here: `devices.follow` returns when they are there. All else is as on a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from support.fake_cuda import FakeDevice, FakeMachine

from blinkrun import buffers
from blinkrun.torch import devices

Chooses = Callable[[torch.Tensor], bool]


class Disguise:
    """Makes tensors that `chooses` names pass for ones on device `index` of `machine`.

    Attributes
    ----------
    stream : int
        The current stream of the device; tests may set another one.
    recorded : list of (int, int)
        Address and stream of each tensor that the allocator was told of.
    """

    def __init__(self, machine: FakeMachine, index: int, chooses: Chooses) -> None:
        self.device: FakeDevice = machine.devices[index]
        self.stream = self.device.new_stream()
        self.recorded: list[tuple[int, int]] = []
        self.follows = 0
        self._index = index
        self._chooses = chooses
        self._device_of, self._stream_of = buffers.device_of, buffers.stream_of
        self._follow = devices.follow
        buffers.device_of = self._where  # type: ignore[assignment]
        buffers.stream_of = self._current  # type: ignore[assignment]
        buffers.record_stream = self._record  # type: ignore[assignment]
        devices.index_of = self._where  # type: ignore[assignment]
        devices.make = self._make  # type: ignore[assignment]
        devices.plain_bytes = self._plain_bytes  # type: ignore[assignment]
        devices.as_tensor = self._as_tensor  # type: ignore[assignment]
        devices.follow = self._followed  # type: ignore[assignment]

    def close(self) -> None:
        """Give the stream back; the disguise stays on."""
        self.device.synchronize(self.stream)
        self.device.free_stream(self.stream)

    def _where(self, item: Any) -> int | None:
        if isinstance(item, torch.Tensor):
            return self._index if self._chooses(item) else None
        return self._device_of(item)

    def _current(self, item: Any) -> int:
        return self.stream if isinstance(item, torch.Tensor) else self._stream_of(item)

    def _record(self, item: Any, stream: int) -> None:
        if isinstance(item, torch.Tensor):
            self.recorded.append((item.data_ptr(), stream))

    def _make(self, shape: Any, dtype: torch.dtype, index: int) -> torch.Tensor:
        assert index == self._index
        return torch.empty(tuple(shape), dtype=dtype)

    def _plain_bytes(self, num_bytes: int, index: int) -> torch.Tensor:
        return self._make((num_bytes,), torch.uint8, index)

    def _as_tensor(self, memory: Any, index: int) -> torch.Tensor:
        assert index == self._index
        num_bytes, pointer, _ = memory.num_bytes, memory.pointer, memory
        held = (ctypes.c_uint8 * num_bytes).from_address(pointer)
        held.memory = memory  # type: ignore[attr-defined]
        return torch.frombuffer(held, dtype=torch.uint8)

    def _followed(self, pending: Any) -> None:
        self._follow(pending)
        if pending.passage is not None:
            self.follows += 1
            self.device.synchronize(self.stream)
