"""What users give to collectives, checked and made into tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.tf.call import Call, check_dtype
from blinkrun.tf.dtypes import DTYPES
from blinkrun.tf.errors import translated

_NUMBERS = frozenset(tf.as_dtype(dtype) for dtype in (*DTYPES, "complex64", "complex128"))

Function = TypeVar("Function", bound=Callable[..., Any])


def public(function: Function) -> Function:
    """Make a function users': errors are TensorFlow's as well, AutoGraph leaves it as it is."""
    return tf.autograph.experimental.do_not_convert(translated()(function))


def tensor_given(value: Any, call: Call) -> tf.Tensor:
    """Return a tensor, variable or array as a tensor.

    Raises
    ------
    InvalidBufferError
        If it cannot be one, or has no values that collectives know.
    """
    if not isinstance(value, tf.Tensor):
        value = _converted(value, call)
    if value.dtype not in _NUMBERS:
        check_dtype(call, value.dtype)
        value = tf.identity(value)  # a reference, as TensorFlow 1 has them
    if tf.executing_eagerly() and not hasattr(value, "_numpy"):
        raise InvalidBufferError(
            f"{call.called}: {value.name} belongs to a graph, and this call to none; call it where"
            " the tensor is made, in the tf.function"
        )
    return value


def _converted(value: Any, call: Call) -> tf.Tensor:
    if isinstance(value, tf.IndexedSlices | tf.SparseTensor | tf.RaggedTensor):
        kind = type(value).__name__
        how = {"SparseTensor": "tf.sparse.to_dense(tensor)", "RaggedTensor": "tensor.to_tensor()"}
        raise InvalidBufferError(
            f"{call.called} takes a dense tensor, got {kind}; give "
            f"{how.get(kind, 'tf.convert_to_tensor(tensor)')}"
        )
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError, tf.errors.OpError) as err:
        first = (str(err).splitlines() or [""])[0]
        raise InvalidBufferError(
            f"{call.called} takes a tensor, got {type(value).__name__}: {first:.200}"
        ) from None


def group_given(values: Any, call: Call) -> list[Any]:
    """Return the tensors of a grouped call as a list; it may be empty."""
    if isinstance(values, tf.Tensor | tf.Variable | tf.IndexedSlices):
        raise UsageError(f"grouped {call.called} takes a list of tensors, got one tensor")
    return list(values)


def tensors_given(values: Sequence[Any], call: Call) -> list[tf.Tensor]:
    """Return tensors, variables or arrays as tensors."""
    return [tensor_given(value, call) for value in values]
