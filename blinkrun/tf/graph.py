"""Calls of the engine from inside a ``tf.function``.

A call is two ops: one begins it when its inputs are there and never waits, one gives its results.
So ranks whose graphs run their ops in different orders still offer everything to the engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class Started(Protocol):
    """A call of the engine under way."""

    def wait(self) -> list[np.ndarray[Any, Any]]:
        """Return the results, waiting for them if need be; raises what went wrong."""
        ...


Start = Callable[[Sequence[np.ndarray[Any, Any]]], Started]

_tickets: dict[int, Started] = {}
_numbers = itertools.count()


def call(
    start: Start, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], name: str
) -> list[tf.Tensor]:
    """Return the tensors that a call of the engine gives, at every run of the graph.

    Parameters
    ----------
    start : callable
        Begins the call on numpy views of the inputs and returns at once. The views stay valid and
        unchanged while they are referred to.
    inputs : sequence of tf.Tensor
        What it is given.
    outputs : sequence of tf.TensorSpec
        Dtypes of the results, and what is known of their shapes.
    name : str
        Of the ops.
    """

    def begin(*arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        number = next(_numbers)
        _tickets[number] = start(arrays)
        return np.int64(number)

    def finish(number: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return _tickets.pop(int(number)).wait()

    ticket = tf.numpy_function(begin, list(inputs), tf.int64, name=f"{name}_begin")
    results = tf.numpy_function(
        finish, [ticket], [spec.dtype for spec in outputs], stateful=False, name=f"{name}_finish"
    )
    for result, spec in zip(results, outputs, strict=True):
        result.set_shape(spec.shape)
    return list(results)
