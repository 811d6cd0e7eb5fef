"""alltoall and reducescatter: every rank gets rows of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import blinkrun
from blinkrun.adapter.operations import Adasum, Average, checked_compressor, checked_op
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.engine.request import Kind
from blinkrun.errors import NotSupportedError, UsageError
from blinkrun.tf import autograd
from blinkrun.tf.call import Call
from blinkrun.tf.compression import Compression
from blinkrun.tf.ops_given import group_given, public, tensor_given, tensors_given


@public
def alltoall(
    tensor: tf.Tensor | tf.Variable,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of `tensor` to every rank; return what came, joined in rank order.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable, or what a tensor can be made of
        Dtype and all dimensions but the first are the same on every rank.
    splits : list of int or tf.Tensor, optional
        Rows for each rank of the set, in its order; they add up to the rows of `tensor`. Default:
        the same for all.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set; in a
        graph one that is made of the names of graph and scope.
    ignore_name_scope : bool
        Leave the name scope out of the name of a call in a graph.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Returns
    -------
    tf.Tensor or (tf.Tensor, tf.Tensor)
        With `splits` also the rows that came from each rank, of the dtype of `splits`; int32 for a
        list.

    Raises
    ------
    tf.errors.InvalidArgumentError
        If `splits` do not fit `tensor`, or there are none and the rows cannot be divided.
    tf.errors.FailedPreconditionError
        Also a MismatchError: dtype or a dimension other than the first differs; on every rank, and
        work goes on.
    """
    call = Call(Kind.ALLTOALL, name, process_set, counts=np.dtype(np.int32))
    given = tensor_given(tensor, call)
    if given.shape.rank == 0:
        raise UsageError(f"{call.called}: a scalar has no rows to send; give it a dimension")
    number_of(process_set)  # says so if it has none
    blinkrun.world()
    rows = given.shape[0] if given.shape.rank else None
    later = None  # splits that only a run of the graph knows
    if splits is None:
        if rows is not None:
            call = call._replace(splits=_even(rows, process_set.size(), call.called))
    else:
        wanted = _vector(splits, call.called)
        call = call._replace(counts=np.dtype(wanted.dtype.as_numpy_dtype))
        known = tf.get_static_value(wanted)
        if known is None:
            later = wanted
            call = call._replace(splits=None)
        else:
            counts = _fitting(known.tolist(), rows, process_set.size(), call.called)
            call = call._replace(splits=counts)
    call = call.settled(ignore_name_scope=ignore_name_scope)
    received, counts = autograd.alltoall(call, given, later)
    return received if splits is None else (received, counts)


@public
def reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: tf.Tensor | tf.Variable,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Return this rank's rows of the reduction of `tensor` over all ranks.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable, or what a tensor can be made of
        Same shape and dtype on every rank. Its rows are divided evenly; where they cannot be, the
        first ranks get one more.
    device_dense : str
        Accepted for Horovod scripts: tensors are reduced on the CPU.
    compression : Compressor
        `Compression.fp16` or `.bf16` to halve what travels.
    op : default Average
        `Average`, `Sum`, `Min`, `Max` or `Product`.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set; in a
        graph one that is made of the names of graph and scope.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    ignore_name_scope : bool
        Leave the name scope out of the name of a call in a graph.
    prescale_factor, postscale_factor : float
        Multiply before and after the reduction.

    Raises
    ------
    tf.errors.InvalidArgumentError
        If the tensor is a scalar, or it or the process set cannot be used.
    NotImplementedError
        For Adasum, which needs whole tensors.
    tf.errors.FailedPreconditionError
        Also a MismatchError: ranks disagree about shape, dtype, op or factors; on every rank, and
        work goes on.
    """
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    return _scattered([tensor], call, compression, ignore_name_scope)[0]


@public
def grouped_reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[tf.Tensor | tf.Variable],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Return this rank's rows of several tensors, in one call: all complete together."""
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    given = group_given(tensors, call)
    return _scattered(given, call, compression, ignore_name_scope) if given else []


def _scattering(
    name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float
) -> Call:
    if op == Adasum:
        raise NotSupportedError("reducescatter has no Adasum, which needs whole tensors")
    scales = (float(prescale), float(postscale))
    return Call(Kind.REDUCESCATTER, name, process_set, checked_op(op), -1, scales)


def _scattered(
    values: Sequence[Any], call: Call, compression: Any, ignore_name_scope: bool
) -> list[tf.Tensor]:
    """Return this rank's rows of tensors reduced in one call."""
    tensors = tensors_given(values, call)
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise UsageError(f"{call.called}: a scalar has no rows to scatter; give it a dimension")
    number_of(call.process_set)  # says so if it has none
    blinkrun.world()
    call = call.settled(ignore_name_scope=ignore_name_scope)
    compression = checked_compressor(compression)
    packed = [compression.compress(tensor) for tensor in tensors]
    results = autograd.reducescatter(call, [tensor for tensor, _ in packed])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


def _even(rows: int, ranks: int, called: str) -> tuple[int, ...]:
    """Return the same number of rows for each rank."""
    if rows % ranks:
        raise UsageError(
            f"{called}: {rows} rows cannot be divided among {ranks} ranks; give splits"
        )
    return (rows // ranks,) * ranks


def _fitting(counts: list[int], rows: int | None, ranks: int, called: str) -> tuple[int, ...]:
    """Return splits, or raise if they are not those of a tensor of `rows` rows."""
    if len(counts) != ranks:
        raise UsageError(f"{called}: {len(counts)} splits for {ranks} ranks; give one for each")
    if min(counts) < 0 or sum(counts) != (sum(counts) if rows is None else rows):
        raise UsageError(
            f"{called}: splits {counts} add up to {sum(counts)}, the tensor has {rows} rows; none "
            "may be negative"
        )
    return tuple(counts)


def _vector(splits: Any, called: str) -> tf.Tensor:
    """Return splits as a vector of whole numbers."""
    if not isinstance(splits, tf.Tensor | tf.Variable | np.ndarray):
        try:
            splits = [operator.index(each) for each in splits]
        except TypeError:
            raise UsageError(
                f"{called}: splits is {splits!r}; need a list of whole numbers"
            ) from None
        return tf.constant(splits, tf.int32, shape=[len(splits)])
    vector = tf.convert_to_tensor(splits)
    if vector.shape.rank in (None, 1) and vector.dtype.is_integer:
        return vector
    raise UsageError(
        f"{called}: splits is a {vector.shape.rank}-dimensional tensor of {vector.dtype.name}; "
        "need whole numbers in one dimension"
    )
