"""Arrays in the memory of fake devices, as other libraries' arrays show themselves."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class _Memory:
    """Lives as long as some array shows the bytes."""


class FakeArray:
    """An array on a device; `numpy()` is a view of its memory, for tests.

    Attributes
    ----------
    device : int
        As this process counts them.
    stream : int or None
        In whose order it is used, as `__cuda_array_interface__` says it.
    """

    def __init__(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        *,
        device: int,
        stream: int | None = None,
        strides: tuple[int, ...] | None = None,
        memory: _Memory | None = None,
        readonly: bool = False,
    ) -> None:
        self.pointer, self.shape, self.dtype = pointer, tuple(shape), np.dtype(dtype)
        self.device, self.stream, self.strides = device, stream, strides
        self.memory = memory or _Memory()
        self.readonly = readonly

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if self.size else 0, self.readonly),
            "strides": self.strides,
            "stream": self.stream,
            "version": 3,
        }

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def _extent(self) -> int:
        """Bytes from the first element to the end of the last."""
        if not self.size:
            return 0
        if self.strides is None:
            return self.nbytes
        steps = (step * (dim - 1) for step, dim in zip(self.strides, self.shape, strict=True))
        return sum(steps) + self.dtype.itemsize

    def numpy(self) -> npt.NDArray[Any]:
        """Return a view of the memory; nothing waits for the stream."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        memory = (ctypes.c_uint8 * self._extent()).from_address(self.pointer)
        memory.keeps = self.memory  # type: ignore[attr-defined]
        return np.ndarray(self.shape, self.dtype, memory, strides=self.strides)

    def on(self, stream: int) -> FakeArray:
        """Return the same array, used in the order of `stream`."""
        return self._like(self.pointer, self.shape, self.strides, stream)

    def __getitem__(self, key: Any) -> FakeArray:
        view = self.numpy()[key]
        if not isinstance(view, np.ndarray):
            raise IndexError(f"{key}: a part of a FakeArray is an array")
        start = view.__array_interface__["data"][0] if view.size else self.pointer
        strides = None if view.flags.c_contiguous else view.strides
        return self._like(start, view.shape, strides, self.stream)

    def _like(
        self,
        pointer: int,
        shape: Sequence[int],
        strides: tuple[int, ...] | None,
        stream: int | None,
    ) -> FakeArray:
        return FakeArray(
            pointer,
            shape,
            self.dtype,
            device=self.device,
            stream=stream,
            strides=strides,
            memory=self.memory,
            readonly=self.readonly,
        )
