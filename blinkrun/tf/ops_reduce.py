"""allreduce: every rank gets the reduction of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from blinkrun.adapter.operations import Adasum, Average, Sum, checked_compressor, op_of
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.engine.request import Kind
from blinkrun.errors import NotSupportedError, UsageError
from blinkrun.tf import autograd
from blinkrun.tf.call import NO_SCALES, Call
from blinkrun.tf.compression import Compression
from blinkrun.tf.ops_given import group_given, public, tensor_given, tensors_given

Reducible = tf.Tensor | tf.Variable | tf.IndexedSlices


@public
def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: Reducible,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return `tensor` reduced over all ranks of a process set, bitwise the same on each of them.

    Eagerly it runs when every rank of the set has called it under this name; in a graph at every
    run of the graph. Ranks may call in any order.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable, tf.IndexedSlices, or what a tensor can be made of
        Same shape and dtype on every rank; not changed. Of IndexedSlices the values and indices of
        all ranks are gathered: the result stands for the sum (or average), with an index as often
        as ranks have it. Averaged whole numbers become fractions there.
    average : bool, optional
        Deprecated: True is ``op=Average``, False ``op=Sum``.
    device_dense, device_sparse : str
        Accepted for Horovod scripts: tensors are reduced on the CPU.
    compression : Compressor
        `Compression.fp16` or `.bf16` to halve what travels; IndexedSlices are left alone.
    op : optional
        `Average` (default), `Sum`, `Min`, `Max`, `Product` or `Adasum`; for IndexedSlices the first
        two. Averages are true divisions, of integers rounded toward zero. Sums and products of
        integers wrap around in their own width; averages do so in 64 bits only.
    prescale_factor, postscale_factor : float
        Multiply before and after the reduction.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set; in a
        graph one that is made of the names of graph and scope.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    ignore_name_scope : bool
        Leave the name scope out of the name of a call in a graph.

    Returns
    -------
    tf.Tensor or tf.IndexedSlices
        With the gradient that `blinkrun.tf.autograd` describes.

    Raises
    ------
    tf.errors.InvalidArgumentError
        If the tensor has no such operation (also an InvalidBufferError), an argument makes no sense
        (UsageError) or the process set is not known or does not include this rank
        (ProcessSetError).
    tf.errors.FailedPreconditionError
        Also a MismatchError: ranks disagree about shape, dtype, op or factors; on every rank, and
        work goes on. Also another CollectiveError: the job is over.
    NotImplementedError
        For IndexedSlices with another operation or with factors.
    """
    op = _operation(op, average)
    scales = (float(prescale_factor), float(postscale_factor))
    call = Call(Kind.ALLREDUCE, name, process_set, op, -1, scales)
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse([tensor], call, ignore_name_scope)[0]
    return _dense(
        [tensor_given(tensor, call)], call, compression, ignore_name_scope=ignore_name_scope
    )[0]


@public
def grouped_allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[Reducible],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return several tensors reduced as by `allreduce`, in one call: all complete together.

    Every rank gives as many, of any dtypes; the tensors of one place have the same shape and dtype
    everywhere. IndexedSlices among them are gathered in a second call. An empty list gives an empty
    list, without asking the other ranks. Parameters, results and errors are those of `allreduce`.
    """
    op = _operation(op, average)
    scales = (float(prescale_factor), float(postscale_factor))
    call = Call(Kind.ALLREDUCE, name, process_set, op, -1, scales)
    given = group_given(tensors, call)
    sparse = [i for i, tensor in enumerate(given) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(given)) if i not in sparse]
    results: list[Any] = [None] * len(given)
    for index, result in zip(
        sparse, _sparse([given[i] for i in sparse], call, ignore_name_scope), strict=True
    ):
        results[index] = result
    inputs = tensors_given([given[i] for i in dense], call)
    for index, result in zip(
        dense, _dense(inputs, call, compression, ignore_name_scope=ignore_name_scope), strict=True
    ):
        results[index] = result
    return results


def _operation(op: int | None, average: bool | None) -> int:
    if op is None and average is None:
        return Average
    return op_of(op, average, stacklevel=6)


def _dense(
    tensors: list[tf.Tensor], call: Call, compression: Any, *, ignore_name_scope: bool
) -> list[tf.Tensor]:
    """Return tensors reduced in one call."""
    if not tensors:
        return []
    call = call.settled(ignore_name_scope=ignore_name_scope)
    if compression is Compression.none:
        return autograd.allreduce(call, tensors)
    compression = checked_compressor(compression)
    packed = [compression.compress(tensor) for tensor in tensors]
    results = autograd.allreduce(call, [tensor for tensor, _ in packed])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


def _sparse(
    slices: list[tf.IndexedSlices], call: Call, ignore_name_scope: bool
) -> list[tf.IndexedSlices]:
    """Return IndexedSlices with the entries of all ranks, gathered in one call."""
    if not slices:
        return []
    if call.op not in (Sum, Average):
        workaround = "; give sparse_as_dense=True to the optimizer" if call.op == Adasum else ""
        raise NotSupportedError(
            f"{call.called}: IndexedSlices are reduced by Sum or Average only{workaround}, or "
            "convert them with tf.convert_to_tensor"
        )
    if call.scales != NO_SCALES:
        raise NotSupportedError(
            f"{call.called}: IndexedSlices take no prescale_factor and postscale_factor; multiply "
            "their values"
        )
    number_of(call.process_set)  # says so if it has none
    name = f"{call.name}.sparse" if call.name else None
    gathering = Call(Kind.ALLGATHER, name, call.process_set)
    parts = [part for each in slices for part in (each.values, each.indices)]
    gathered = autograd.allgather(
        gathering.settled(ignore_name_scope=ignore_name_scope), tensors_given(parts, gathering)
    )
    return [
        tf.IndexedSlices(
            _divided(values, call) if call.op == Average else values, indices, each.dense_shape
        )
        for each, values, indices in zip(slices, gathered[::2], gathered[1::2], strict=True)
    ]


def _divided(values: tf.Tensor, call: Call) -> tf.Tensor:
    ranks = call.process_set.size()
    if ranks is None:
        raise UsageError("average needs init() first")
    return values / tf.cast(ranks, values.dtype)
