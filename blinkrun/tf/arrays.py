"""Between TensorFlow tensors and numpy arrays, without copies where TensorFlow allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

ALIGNMENT = 64  # bytes; what TensorFlow wants of memory that it takes without a copy

Array = np.ndarray[Any, Any]


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an array of unset values that TensorFlow can take without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


def array_of(tensor: tf.Tensor) -> Array:
    """Return the memory of an eager tensor on the CPU; of one on another device, a copy.

    The array keeps the memory alive and must not be written to.
    """
    array = tensor._numpy()  # numpy() would copy
    return array if isinstance(array, np.ndarray) else np.asarray(array)  # a scalar is a copy


def tensor_of(array: Array, dtype: tf.DType) -> tf.Tensor:
    """Return an eager tensor of `dtype` with the values of an array that nobody writes to anymore.

    It takes over the memory of a contiguous array that lies as that of `aligned_empty` does.
    """
    bits = _same_bits(dtype)
    if bits is NotImplemented or array.__array_interface__["data"][0] % ALIGNMENT:
        return tf.constant(array, dtype)
    if bits is None:
        return _taken(array)
    return tf.bitcast(_taken(array.view(bits)), dtype)


def _taken(array: Array) -> tf.Tensor:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


@cache
def _same_bits(dtype: tf.DType) -> Any:
    """Return the numpy type as which values of `dtype` are handed over, None if as themselves."""
    if dtype == tf.bfloat16:
        return np.dtype(np.uint16)  # numpy cannot export it
    if dtype.as_numpy_dtype.__module__ == "numpy":
        return None
    return NotImplemented  # tf.bitcast knows no float8
