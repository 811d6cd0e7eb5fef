"""Arithmetic that the engine does itself: integers with averages and scales, neutral elements.

Floats are scaled and averaged by the core. An integer is scaled in float64 and truncated toward
zero; an average of integers is the exact sum, divided and truncated toward zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.buffers import numpy_dtype
from blinkrun.engine.request import ADASUM
from blinkrun.types import DType, Op

CHECK_ELEMENTS = 1 << 20  # looked at in one go: what numpy makes of it stays in the cache


class _Memory:
    """Bytes at an address, as numpy takes them; keeps their owner alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, pointer: int, num_bytes: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def array_at(pointer: int, count: int, dtype: DType, owner: Any = None) -> npt.NDArray[Any]:
    """Return the `count` elements at address `pointer` as an array that shares the memory."""
    wanted = numpy_dtype(dtype)
    if count == 0:
        return np.empty(0, wanted)
    memory: Any = _Memory(pointer, count * dtype.itemsize, owner)
    return np.asarray(memory).view(wanted)


def is_finite(pointer: int, count: int, dtype: DType) -> bool:
    """Whether none of the floats there is NaN or infinite."""
    if dtype is DType.BFLOAT16:  # an exponent of all ones
        bits = array_at(pointer, count * 2, DType.UINT8).view(np.uint16)
        chunks = (bits[at : at + CHECK_ELEMENTS] for at in range(0, count, CHECK_ELEMENTS))
        return not any(bool(((chunk & 0x7F80) == 0x7F80).any()) for chunk in chunks)
    values = array_at(pointer, count, dtype)
    chunks = (values[at : at + CHECK_ELEMENTS] for at in range(0, count, CHECK_ELEMENTS))
    return all(bool(np.isfinite(chunk).all()) for chunk in chunks)


def is_own(op: int, dtype: DType, scales: tuple[float, float]) -> bool:
    """Whether the engine works it out itself: averages and scales of integers."""
    if dtype.is_float or dtype is DType.BOOL:
        return False
    return op == Op.AVERAGE or scales != (1.0, 1.0)


def neutral(op: int, dtype: DType, prescale: float = 1.0) -> float | int:
    """Return what a rank that has no data gives, so that the others' result is theirs alone.

    `prescale` is the factor that the core applies to it.
    """
    if op in (Op.SUM, Op.AVERAGE, ADASUM) or prescale == 0:
        return 0
    if op == Op.PRODUCT:
        return 1 / prescale if dtype.is_float else 1
    wants_high = (op == Op.MIN) == (prescale > 0)
    if dtype is DType.BOOL:
        return int(wants_high)
    if dtype.is_float:
        return math.inf if wants_high else -math.inf
    limits = np.iinfo(numpy_dtype(dtype))
    return int(limits.max if wants_high else limits.min)


def divide(values: npt.NDArray[Any], divisor: int) -> None:
    """Divide integers in place, truncating toward zero.

    >>> values = np.array([-3, 3, 4]); divide(values, 2); values.tolist()
    [-1, 1, 2]
    """
    if values.dtype.kind == "u":
        values //= divisor
        return
    towards_zero = (values < 0) & (values % divisor != 0)
    values //= divisor
    values += towards_zero


def scale(values: npt.NDArray[Any], factor: float) -> None:
    """Multiply integers in place, in float64, truncating toward zero."""
    if factor != 1.0:
        values[...] = np.trunc(values * np.float64(factor)).astype(values.dtype)


def sums_in(dtype: DType) -> DType:
    """Return the type in which integers are summed for an average: one that does not wrap soon."""
    return DType.INT32 if dtype.itemsize == 1 else DType.INT64
