"""What one reduce step does to numbers, in numpy: the definition that every executor follows.

Sums, products, minima and maxima of 16-bit floats are taken in float32 and rounded once, to
nearest even, when the step stores them; other types are combined as they are, integers wrapping.
Minimum and maximum keep a NaN of either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from blinkrun.errors import UsageError
from blinkrun.types import DType, Op

Array = npt.NDArray[Any]

_NUMPY: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(ml_dtypes.bfloat16 if dtype is DType.BFLOAT16 else dtype.label)
    for dtype in DType
}
_DTYPE = {numpy: dtype for dtype, numpy in _NUMPY.items()}
_COMBINE = {
    Op.SUM: np.add,
    Op.AVERAGE: np.add,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.PRODUCT: np.multiply,
}
_COMBINE_BOOL = {
    Op.SUM: np.logical_or,
    Op.MIN: np.logical_and,
    Op.MAX: np.logical_or,
    Op.PRODUCT: np.logical_and,
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type of `dtype`; bfloat16 is the one of ml_dtypes.

    >>> numpy_dtype(DType.INT64), numpy_dtype(DType.BFLOAT16)
    (dtype('int64'), dtype(bfloat16))
    """
    return _NUMPY[dtype]


def dtype_of(array: Array) -> DType:
    """Return the element type of `array`.

    Raises
    ------
    UsageError
        If collectives do not know its type.
    """
    dtype = _DTYPE.get(array.dtype)
    if dtype is None:
        known = ", ".join(each.label for each in DType)
        raise UsageError(f"array of {array.dtype} cannot be reduced; known types are {known}")
    return dtype


def load(array: Array) -> Array:
    """Return a copy of `array` in the type that it is combined in."""
    sixteen = dtype_of(array) in (DType.FLOAT16, DType.BFLOAT16)
    return array.astype(np.float32 if sixteen else array.dtype)


def combine(op: Op, left: Array, right: Array) -> Array:
    """Return ``left op right``, element by element.

    Raises
    ------
    UsageError
        For the average of truth values.
    """
    if left.dtype == np.bool_:
        if op is Op.AVERAGE:
            raise UsageError("bool has no average; use sum (or), min or max")
        return np.asarray(_COMBINE_BOOL[op](left, right))
    with np.errstate(all="ignore"):
        return np.asarray(_COMBINE[op](left, right))


def scale(values: Array, factor: float) -> Array:
    """Return `values` times `factor`.

    Floats are multiplied by the factor in their own type. Integers go through float64 and are
    truncated towards zero and held to the type's range, NaN becoming 0. Truth values stay.

    >>> scale(np.array([7, -7, 100], np.int8), 2.5).tolist()
    [17, -17, 127]
    """
    if factor == 1.0 or values.dtype == np.bool_:
        return values
    with np.errstate(all="ignore"):
        if values.dtype.kind == "f":
            return np.asarray(values * values.dtype.type(factor))
        return _to_integers(values.astype(np.float64) * factor, values.dtype)


def _to_integers(wide: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    wide = np.nan_to_num(wide, nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = wide <= float(info.min), wide >= float(info.max)
    whole = np.where(low | high, 0.0, np.trunc(wide)).astype(dtype)
    return np.where(low, info.min, np.where(high, info.max, whole)).astype(dtype)


def finish(op: Op, values: Array, size: int, postscale: float) -> Array:
    """Return the result of a reduction over `size` ranks: averaged if `op` says so, then scaled.

    The average of integers is the floor of their (wrapped) sum over the size.

    >>> finish(Op.AVERAGE, np.array([7, -7]), 2, 1.0).tolist()
    [3, -4]
    """
    if op is Op.AVERAGE and values.dtype.kind == "f":
        with np.errstate(all="ignore"):
            values = np.asarray(values / values.dtype.type(size))
    elif op is Op.AVERAGE and values.dtype != np.bool_:
        values = (values.astype(np.int64) // size).astype(values.dtype)
    return scale(values, postscale)


def store(destinations: Sequence[Array], values: Array) -> None:
    """Write `values` to every destination, rounded to its type."""
    with np.errstate(all="ignore"):
        for destination in destinations:
            destination[...] = values.astype(destination.dtype)
