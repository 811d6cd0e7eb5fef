"""What waits for all other ranks, eagerly and as ops of a graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from blinkrun.adapter import waiting
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.tf.ops_given import public


@public
def barrier(process_set: ProcessSet = global_process_set) -> tf.Operation | None:
    """Return when every rank of the process set has called it; in a graph, an op that does so."""
    if tf.executing_eagerly():
        waiting.barrier(process_set)
        return None

    def wait() -> np.ndarray:
        waiting.barrier(process_set)
        return np.int32(0)

    return tf.numpy_function(wait, [], tf.int32, name="barrier").op


@public
def join() -> tf.Tensor:
    """Say that this rank has no more data, and return the rank that said so last.

    Until every rank has joined, this rank takes part in the others' allreduces with neutral
    elements (zeros for sums) without being asked; averages still divide by the number of all
    ranks. Allgather, broadcast, alltoall and reducescatter fail for the others meanwhile. In a
    graph it does so when that runs.

    Returns
    -------
    tf.Tensor
        An int32 scalar.
    """
    if tf.executing_eagerly():
        return tf.constant(waiting.join(), tf.int32)
    last = tf.numpy_function(lambda: np.int32(waiting.join()), [], tf.int32, name="join")
    last.set_shape(())
    return last
