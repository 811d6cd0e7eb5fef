"""How tensors of each dtype travel: as elements of a type that the native core knows.

What is only moved may have any dtype of fixed size: one that the core does not know travels as one
of its size. Reductions need arithmetic: complex numbers are summed as pairs of reals, the other
types in a wider one and converted back, integers with the wrap-around of their own width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from blinkrun.adapter.wires import OF_SIZE, Wire
from blinkrun.engine.request import ADASUM, CPU
from blinkrun.errors import InvalidBufferError
from blinkrun.tf.arrays import aligned_empty
from blinkrun.types import DType, Op

BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)
DTYPES: dict[np.dtype[Any], DType] = {
    np.dtype(np.uint8): DType.UINT8,
    np.dtype(np.int8): DType.INT8,
    np.dtype(np.int32): DType.INT32,
    np.dtype(np.int64): DType.INT64,
    np.dtype(np.float16): DType.FLOAT16,
    BFLOAT16: DType.BFLOAT16,
    np.dtype(np.float32): DType.FLOAT32,
    np.dtype(np.float64): DType.FLOAT64,
    np.dtype(np.bool_): DType.BOOL,
}

_PARTS = {np.dtype(np.complex64): DType.FLOAT32, np.dtype(np.complex128): DType.FLOAT64}
_INT32, _INT64, _FLOAT32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)
_UINT64 = np.dtype(np.uint64)
_WIDER = {
    np.dtype(np.int16): _INT32,
    np.dtype(np.uint16): _INT32,
    np.dtype(np.uint32): _INT64,
    _UINT64: _INT64,
}


NATIVE = {dtype: Wire(wire) for dtype, wire in DTYPES.items()}


@cache
def moved(dtype: np.dtype[Any]) -> Wire:
    """Return how tensors of `dtype` are moved.

    Raises
    ------
    InvalidBufferError
        If its values are no numbers, or share bytes.
    """
    if dtype in NATIVE:
        return NATIVE[dtype]
    _check_is_number(dtype)
    unit = OF_SIZE[min(dtype.itemsize, 8)]
    return Wire(unit, dtype.itemsize // unit.itemsize, device=f"{CPU} ({dtype.name})")


@cache
def reduced(dtype: np.dtype[Any], op: int) -> Wire:
    """Return how tensors of `dtype` are reduced by `op`.

    Raises
    ------
    InvalidBufferError
        If the operation means nothing for the dtype.
    """
    if op == ADASUM:
        return _adasum(dtype)
    device = f"{CPU} ({dtype.name})"
    if dtype == np.bool_ and op == Op.AVERAGE:
        raise InvalidBufferError("bool has no average; use op=Sum (or), Min (and), or convert it")
    if dtype in NATIVE:
        return NATIVE[dtype]
    _check_is_number(dtype)
    if dtype in _PARTS:
        if op not in (Op.SUM, Op.AVERAGE):
            raise InvalidBufferError(
                f"{dtype.name} has Sum and Average only; reduce tf.abs(), or real and imaginary "
                "parts by themselves"
            )
        return Wire(_PARTS[dtype], 2, device=device)
    if dtype == _UINT64 and op == Op.AVERAGE:  # int64 would divide as if it were signed
        return Wire(DType.INT64, wide=_INT64, op=Op.SUM, device=f"{CPU} (uint64 averaged)")
    if dtype in _WIDER:
        return Wire(DTYPES[_WIDER[dtype]], wide=_WIDER[dtype], device=device)
    return Wire(DType.FLOAT32, wide=_FLOAT32, device=device)  # float8


def _adasum(dtype: np.dtype[Any]) -> Wire:
    if not _is_float(dtype):
        raise InvalidBufferError(f"Adasum needs floating-point numbers, got {dtype.name}")
    if dtype in (_FLOAT32, np.float64):
        return NATIVE[dtype]
    return Wire(DType.FLOAT32, wide=_FLOAT32, device=f"{CPU} ({dtype.name})")


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == BFLOAT16 or dtype.name.startswith("float8")


def _check_is_number(dtype: np.dtype[Any]) -> None:
    """Raise for strings, quantized numbers, and numbers of less than a byte."""
    if dtype.kind in "biufc" or _is_float(dtype):
        return
    raise InvalidBufferError(_no_dtype("string" if dtype.kind in "OSU" else dtype.name))


def _no_dtype(name: str) -> str:
    return f"{name} is no dtype of collectives; convert it to a number type"


def of_tensor(dtype: tf.DType) -> np.dtype[Any]:
    """Return the numpy type of tensors of `dtype`.

    Raises
    ------
    InvalidBufferError
        If they are no numbers: resources, variants, quantized ones.
    """
    base = dtype.base_dtype
    if base in (tf.resource, tf.variant) or base.is_quantized:
        raise InvalidBufferError(_no_dtype(base.name))
    return np.dtype(base.as_numpy_dtype)


def to_wide(array: np.ndarray[Any, Any], wire: Wire, op: int) -> np.ndarray[Any, Any]:
    """Return a new contiguous array of `wire.wide` with the values of `array`."""
    if array.dtype == _UINT64:
        return np.array(_ordered(array.view(np.int64), op))
    return array.astype(wire.wide, order="C")


def from_wide(
    array: np.ndarray[Any, Any], dtype: np.dtype[Any], op: int, size: int
) -> np.ndarray[Any, Any]:
    """Return the values of an `array` reduced over `size` ranks in their own `dtype`."""
    values = array
    if dtype == _UINT64:
        unsigned = np.asarray(_ordered(array, op)).view(np.uint64)
        values = unsigned // np.uint64(size) if op == Op.AVERAGE else unsigned
    result = aligned_empty(array.shape, dtype)
    np.copyto(result, values, casting="unsafe")
    return result


def _ordered(array: np.ndarray[Any, Any], op: int) -> np.ndarray[Any, Any]:
    """Return uint64 as int64, for Min and Max with the top bit flipped: so order is kept."""
    if op not in (Op.MIN, Op.MAX):
        return array
    return np.bitwise_xor(array, np.iinfo(np.int64).min)
