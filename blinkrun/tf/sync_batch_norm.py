"""Batch normalization over the joined batch of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from blinkrun.adapter.operations import Sum
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.errors import UsageError
from blinkrun.tf import versions
from blinkrun.tf.ops import allreduce

keras = tf.keras  # Keras 3, or tf_keras under TF_USE_LEGACY_KERAS


@keras.utils.register_keras_serializable(package="blinkrun")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras' `BatchNormalization`, whose statistics in training are those of all ranks' batches.

    Every rank of the process set runs it as often as the others: its forward and backward passes
    are collective in training. Batches may be of different sizes; a rank's may be empty, and ranks
    that have joined count for nothing. Outputs, moving statistics and gradients of the input are
    those of one process on the joined batch. Gradients of gamma and beta are this rank's part, as
    those of every other layer: they are reduced with the rest.

    Works on Keras' TensorFlow backend. A model that is saved with it is loaded where blinkrun is
    installed, with the set of all ranks.

    Parameters
    ----------
    fused : bool, default False
        Accepted for Horovod scripts: TensorFlow's fused kernel knows this process only.
    process_set : ProcessSet
        The ranks whose batches are joined.
    **kwargs
        Those of `keras.layers.BatchNormalization`.

    Raises
    ------
    UsageError
        If `fused` is not False, or Keras' backend is not TensorFlow. It is a ValueError.
    """

    def __init__(
        self,
        fused: bool | None = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        if fused is not False:
            raise UsageError(
                f"SyncBatchNormalization has fused={fused}; the fused kernel does not know other "
                "ranks, leave it at False"
            )
        if versions.is_legacy():
            kwargs["fused"] = False
        elif versions.keras_backend() != "tensorflow":
            raise UsageError(
                "SyncBatchNormalization works on Keras' TensorFlow backend, not on "
                f"{versions.keras_backend()}"
            )
        super().__init__(**kwargs)
        self._blink_process_set = process_set

    # Keras calls these two with the batch in float32 or float64.

    if versions.is_legacy():

        def _moments(
            self, inputs: tf.Tensor, reduction_axes: Any, keep_dims: bool, mask: Any = None
        ) -> tuple[tf.Tensor, tf.Tensor]:
            own = super()._moments(inputs, reduction_axes, keep_dims, mask=mask)
            return self._over_ranks(inputs, reduction_axes, mask, own)

    else:

        def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
            own = super()._moments(inputs, mask)
            return self._over_ranks(inputs, self._reduction_axes, mask, own)

    def _over_ranks(
        self, inputs: tf.Tensor, axes: Any, mask: Any, own: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of the joined batch, from those of this rank's."""
        process_set = self._blink_process_set
        if process_set.size() == 1 or process_set.included() is False:
            return own
        shape = own[0].shape
        line = _line(_count(inputs, axes, mask), *own)
        # A row for each rank, so that ranks that have joined count for nothing.
        mine = tf.one_hot(process_set.rank(), process_set.size(), dtype=line.dtype)
        rows = allreduce(mine[:, None] * line, op=Sum, process_set=process_set)
        mean, variance = joined_moments(rows)
        return tf.reshape(mean, shape), tf.reshape(variance, shape)


def _count(inputs: tf.Tensor, axes: Any, mask: Any) -> tf.Tensor:
    """Return how many values of each channel count, or one number for all channels."""
    if mask is None:
        lengths = tf.gather(tf.shape(inputs), list(axes))
        return tf.cast(tf.reduce_prod(lengths), inputs.dtype)[None]
    counts = tf.cast(tf.expand_dims(tf.cast(mask, tf.bool), -1), inputs.dtype)
    counts = tf.reduce_sum(tf.broadcast_to(counts, tf.shape(inputs)), list(axes))
    return tf.reshape(counts, [-1])


def _line(count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """Return counts, means and variances of all channels as a line; zeros for an empty batch."""
    mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
    counts = tf.broadcast_to(count, tf.shape(mean))
    line = tf.stack([counts, mean, variance])
    return tf.reshape(tf.where(counts > 0, line, tf.zeros_like(line)), [-1])


def joined_moments(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance of the joined batch from each rank's line of moments.

    By the parallel formula of Chan et al. (1979), which does not lose digits as squares of sums do.

    >>> mean, variance = joined_moments(tf.constant([[1.0, 2.0, 1.0], [1.0, 6.0, 0.0]]))
    >>> mean.numpy().tolist(), variance.numpy().tolist()
    ([4.0], [4.5])
    """
    counts, means, variances = tf.unstack(tf.reshape(rows, [tf.shape(rows)[0], 3, -1]), axis=1)
    count = tf.reduce_sum(counts, 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), count)
    spread = variances + tf.math.squared_difference(means, mean)
    return mean, tf.math.divide_no_nan(tf.reduce_sum(counts * spread, 0), count)
