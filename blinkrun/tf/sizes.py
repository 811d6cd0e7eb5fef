"""The place of this process as ops, whose values are found when a graph runs, not when it is made.

So a graph can be made on one job and run in another. In eager code they are plain tensors, in what
XLA compiles the values of the time of tracing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import blinkrun
from blinkrun.adapter import job
from blinkrun.engine import engine
from blinkrun.errors import ProcessSetError
from blinkrun.tf import xla
from blinkrun.tf.ops_given import public

NOT_INITIALIZED = -1
UNKNOWN_SET = -2


@public
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks of a process set as an int32 scalar.

    Parameters
    ----------
    process_set_id : int, default 0
        Number of the set; 0 is that of all ranks.
    name : str, optional
        Of the op, in a graph.

    Raises
    ------
    NotInitializedError
        In eager code before `init`; in a graph an error of TensorFlow with the same text.
    ProcessSetError
        If there is no such set; likewise.
    """
    return _op(lambda: len(engine.current().ranks(process_set_id)), name, "size")


@public
def rank_op(name: str | None = None) -> tf.Tensor:
    """Return the number of this process in the job as an int32 scalar; `name` is the op's."""
    return _op(job.rank, name, "rank")


@public
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return how many processes of the job run on this host as an int32 scalar."""
    return _op(job.local_size, name, "local_size")


@public
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return the number of this process on its host as an int32 scalar."""
    return _op(job.local_rank, name, "local_rank")


@public
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return whether this process is in a process set, as an int32 scalar.

    Returns
    -------
    tf.Tensor
        1 if it is, 0 if not, -1 before `init`, -2 if there is no such set.
    """
    return _op(lambda: _included(process_set_id), name, "process_set_included")


def _included(number: int) -> int:
    if not blinkrun.is_initialized():
        return NOT_INITIALIZED
    try:
        return int(job.rank() in engine.current().ranks(number))
    except ProcessSetError:
        return UNKNOWN_SET


def _op(find: Callable[[], int], name: str | None, kind: str) -> tf.Tensor:
    if tf.executing_eagerly() or xla.is_compiled_here():
        return tf.constant(find(), tf.int32)
    value = tf.numpy_function(lambda: np.int32(find()), [], tf.int32, name=name or kind)
    value.set_shape(())
    return value
