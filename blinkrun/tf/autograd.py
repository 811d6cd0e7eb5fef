"""Collectives that can be differentiated, eagerly and in graphs.

The rules are those that Horovod registers, on which scripts rely:

================  ================================================================================
forward           gradient of this rank's input, from the gradients of the results of all ranks
================  ================================================================================
allreduce         allreduce with the same op and factors (Average, Sum, Adasum)
allgather         this rank's rows of the *average*
broadcast         the *average* on the root, zero elsewhere
alltoall          alltoall back
reducescatter     allgather, times the size for Sum, times the factors
================  ================================================================================

They mean: the loss is the average of the ranks' losses (for Sum and reducescatter: their sum, times
the size). For Min, Max and Product of an allreduce, where Horovod's rule is no derivative, the
gradient is that of the sum of the ranks' losses; of several ranks with the same smallest or largest
value each gets an equal share.

Calls in the backward pass are named after that of the forward pass, so graphs of ranks may differ
in the order in which they come to them. Second derivatives exist wherever first ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import blinkrun
from blinkrun.engine.request import ADASUM, Kind
from blinkrun.errors import NotSupportedError
from blinkrun.tf.call import NO_SCALES, Call, run
from blinkrun.types import Op

try:  # costs 80 us less where nobody takes gradients
    from tensorflow.python.eager.record import could_possibly_record as _is_recorded
except ImportError:  # pragma: no cover

    def _is_recorded() -> bool:
        return True


_LINEAR = (Op.SUM, Op.AVERAGE, ADASUM)
_COUNTS = np.dtype(np.int64)

Tensors = list[tf.Tensor]
Specs = Sequence[tf.TensorSpec] | None


def _differentiable(
    forward: Callable[[Tensors], tuple[Tensors, Callable[..., Tensors]]], tensors: Tensors
) -> Tensors:
    """Return the first of what `forward` gives; its second makes gradients of the results' ones."""

    @tf.custom_gradient
    def apply(*inputs: tf.Tensor) -> Any:
        results, backward = forward(list(inputs))

        def gradients(*given: Any) -> Any:
            grads = [
                tf.zeros_like(result) if grad is None else _like(grad, result)
                for grad, result in zip(given, results, strict=True)
            ]
            return backward(*grads)

        return results, gradients

    return list(apply(*tensors))


def _like(grad: Any, result: tf.Tensor) -> tf.Tensor:
    """Return a gradient in the dtype of what it is of: TensorFlow's own zeros are all float32."""
    grad = tf.convert_to_tensor(grad)
    is_other = grad.dtype != result.dtype and result.dtype in _REALS
    return tf.cast(grad, result.dtype) if is_other else grad


_REALS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)


def is_wanted() -> bool:
    """Whether somebody may ask for gradients of what is computed now."""
    return not tf.executing_eagerly() or bool(_is_recorded())


# ---- allreduce ---------------------------------------------------------------------------------


def allreduce(call: Call, tensors: Tensors) -> Tensors:
    """Return tensors reduced in one call."""
    if not is_wanted():
        return run(call, tensors)

    def forward(inputs: Tensors) -> tuple[Tensors, Callable[..., Tensors]]:
        results = run(call, inputs)

        def backward(*grads: tf.Tensor) -> Tensors:
            if call.op in _LINEAR:
                return allreduce(call.derived("backward"), list(grads))
            return _selective_backward(call, inputs, results, list(grads))

        return results, backward

    return _differentiable(forward, tensors)


def _selective_backward(call: Call, inputs: Tensors, results: Tensors, grads: Tensors) -> Tensors:
    """Return the gradients of Min, Max and Product."""
    before, after = call.scales
    factor = before * after
    plain = {"op": Op.SUM, "scales": NO_SCALES}
    sums = run(call.derived("backward", **plain), grads)
    if call.op == Op.PRODUCT:
        rests = _products_of_others(call, [tensor * before for tensor in inputs])
        return [total * rest * factor for total, rest in zip(sums, rests, strict=True)]
    # What was compared is the input times `before`; a negative factor swaps nothing: it is applied
    # before the comparison on every rank.
    chosen = [
        tf.cast(tf.equal(tensor * before * after, result), grad.dtype)
        for tensor, result, grad in zip(inputs, results, grads, strict=True)
    ]
    ties = run(call.derived("ties", **plain), chosen)
    return [
        total * mine / tf.maximum(tied, 1) * factor
        for total, mine, tied in zip(sums, chosen, ties, strict=True)
    ]


def _products_of_others(call: Call, inputs: Tensors) -> Tensors:
    """Return for each tensor the product of the other ranks' values; zeros are no trouble."""
    plain = {"scales": NO_SCALES}
    zero = [tf.cast(tf.equal(tensor, 0), tf.int64) for tensor in inputs]
    zeros = run(call.derived("zeros", op=Op.SUM, **plain), zero)
    without = [
        tf.where(mine > 0, tf.ones_like(tensor), tensor)
        for mine, tensor in zip(zero, inputs, strict=True)
    ]
    products = run(call.derived("rest", op=Op.PRODUCT, **plain), without)
    return [
        tf.where(count - mine > 0, tf.zeros_like(product), product / own)
        for count, mine, product, own in zip(zeros, zero, products, without, strict=True)
    ]


# ---- allgather ---------------------------------------------------------------------------------


def allgather(call: Call, tensors: Tensors) -> Tensors:
    """Return tensors joined along the first dimension, gathered in one call."""
    specs = [tf.TensorSpec(_with_rows(tensor.shape, None), tensor.dtype) for tensor in tensors]
    if not is_wanted():
        return run(call, tensors, specs)
    is_single = len(tensors) == 1  # then the call tells the rows of each rank
    count = len(tensors)

    def forward(inputs: Tensors) -> tuple[Tensors, Callable[..., Tensors]]:
        if is_single:
            counting = [*specs, tf.TensorSpec([call.process_set.size()], tf.int64)]
            *results, rows = run(call._replace(counts=_COUNTS), inputs, counting)
        else:
            results, rows = run(call, inputs, specs), None

        def backward(*grads: tf.Tensor) -> Tensors:
            return _allgather_backward(call, inputs, rows, list(grads[:count]))

        return results, backward

    return _differentiable(forward, tensors)


def _allgather_backward(
    call: Call, inputs: Tensors, rows: tf.Tensor | None, grads: Tensors
) -> list[Any]:
    """Return this rank's rows of the averaged gradients; None for what has no derivative."""
    wanted = [index for index, tensor in enumerate(inputs) if tensor.dtype in _REALS]
    if not wanted:
        return [None] * len(inputs)
    mine = tf.stack([_rows(inputs[index]) for index in wanted])
    place = call.process_set.rank() if call.process_set.included() else 0
    if rows is None:
        counting = call.derived("rows", op=Op.SUM, scales=NO_SCALES)
        spec = tf.TensorSpec([None, len(wanted)], tf.int64)
        (counts,) = run(counting, [mine[tf.newaxis]], [spec])
        starts = tf.reduce_sum(counts[:place], axis=0)
    else:
        starts = tf.reduce_sum(rows[:place])[tf.newaxis]
    averages = allreduce(
        call.derived("backward", kind=Kind.ALLREDUCE, op=Op.AVERAGE, scales=NO_SCALES),
        [grads[index] for index in wanted],
    )
    found: list[Any] = [None] * len(inputs)
    for nth, (index, average) in enumerate(zip(wanted, averages, strict=True)):
        part = average[starts[nth] : starts[nth] + mine[nth]]
        found[index] = tf.reshape(part, tf.shape(inputs[index]))
    return found


def _rows(tensor: tf.Tensor) -> tf.Tensor:
    """Return the number of rows of a tensor; a scalar is one row."""
    if tensor.shape.rank == 0:
        return tf.constant(1, tf.int64)
    if tensor.shape.rank is None:
        return tf.concat([tf.shape(tensor, tf.int64), [1]], 0)[0]
    return tf.shape(tensor, tf.int64)[0]


def _with_rows(shape: tf.TensorShape, rows: int | None) -> tf.TensorShape:
    """Return a shape with another number of rows."""
    return shape if shape.rank is None else tf.TensorShape([rows]).concatenate(shape[1:])


# ---- broadcast ---------------------------------------------------------------------------------


def broadcast(call: Call, tensors: Tensors) -> Tensors:
    """Return the root's values of tensors, given to all ranks in one call."""
    if not is_wanted():
        return run(call, tensors)

    def forward(inputs: Tensors) -> tuple[Tensors, Callable[..., Tensors]]:
        def backward(*grads: tf.Tensor) -> Tensors:
            averaging = call.derived("backward", kind=Kind.ALLREDUCE, op=Op.AVERAGE, root=-1)
            averages = allreduce(averaging, list(grads))
            if blinkrun.rank() == call.root:
                return averages
            with tf.control_dependencies(averages):  # else a graph leaves out the allreduce
                return [tf.zeros_like(average) for average in averages]

        return run(call, inputs), backward

    return _differentiable(forward, tensors)


# ---- alltoall ----------------------------------------------------------------------------------


def alltoall(call: Call, tensor: tf.Tensor, splits: tf.Tensor | None) -> Tensors:
    """Return what came from all ranks, and how many rows from each.

    `splits` is given where they are not known yet; in a graph only.
    """
    spec = tf.TensorSpec(_with_rows(tensor.shape, None), tensor.dtype)
    counts = tf.TensorSpec([call.process_set.size()], tf.as_dtype(call.counts))
    given = [tensor] if splits is None else [tensor, splits]
    if not is_wanted():
        return run(call, given, [spec, counts])

    def forward(inputs: Tensors) -> tuple[Tensors, Callable[..., Tensors]]:
        results = run(call, inputs, [spec, counts])

        def backward(grad: tf.Tensor, _counts: tf.Tensor) -> Tensors:
            back = call.derived("backward", splits=None)
            rows = results[1]
            if tf.executing_eagerly():
                back, rows = back._replace(splits=tuple(rows.numpy().tolist())), None
            return [alltoall(back, grad, rows)[0], *[None] * (len(inputs) - 1)]

        return results, backward

    return _differentiable(forward, given)


# ---- reducescatter -----------------------------------------------------------------------------


def reducescatter(call: Call, tensors: Tensors) -> Tensors:
    """Return this rank's rows of tensors reduced in one call."""
    specs = [tf.TensorSpec(_scattered(call, tensor.shape), tensor.dtype) for tensor in tensors]
    if not is_wanted():
        return run(call, tensors, specs)

    def forward(inputs: Tensors) -> tuple[Tensors, Callable[..., Tensors]]:
        def backward(*grads: tf.Tensor) -> Tensors:
            if call.op not in (Op.SUM, Op.AVERAGE):
                raise NotSupportedError(
                    f"{call.called}: the gradient is there for Sum and Average only; give "
                    "tf.stop_gradient(tensor)"
                )
            factor = call.scales[0] * call.scales[1]
            if call.op == Op.SUM:
                factor *= call.process_set.size()
            back = call.derived("backward", kind=Kind.ALLGATHER, op=Op.SUM, scales=NO_SCALES)
            return allgather(back, [grad * tf.cast(factor, grad.dtype) for grad in grads])

        return run(call, inputs, specs), backward

    return _differentiable(forward, tensors)


def _scattered(call: Call, shape: tf.TensorShape) -> tf.TensorShape:
    """Return what is known of the shape of this rank's rows."""
    rows = shape[0] if shape.rank else None
    if rows is None or not call.process_set.included():
        return _with_rows(shape, None)
    each, more = divmod(rows, call.process_set.size())
    return _with_rows(shape, each + (call.process_set.rank() < more))
