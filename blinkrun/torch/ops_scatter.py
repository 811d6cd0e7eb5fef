"""alltoall and reducescatter: every rank gets rows of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

import blinkrun
from blinkrun.adapter.operations import Adasum, Average, checked_compressor, checked_op
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.engine.request import Kind
from blinkrun.errors import NotSupportedError, UsageError
from blinkrun.torch import autograd
from blinkrun.torch.compression import Compression
from blinkrun.torch.ops_call import (
    Call,
    Piece,
    begin,
    begin_group,
    piece_to_move,
    piece_to_reducescatter,
    submit,
    taken,
    wait_for,
    wait_for_group,
)
from blinkrun.torch.ops_handle import Handle
from blinkrun.torch.ops_reduce import group

Splits = Sequence[int] | torch.Tensor | None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send rows of `tensor` to every rank; return what came, joined in rank order.

    Parameters
    ----------
    tensor : torch.Tensor
        Dtype and all dimensions but the first are the same on every rank.
    splits : list of int or torch.Tensor, optional
        Rows for each rank of the set, in its order; they add up to the rows of `tensor`. Default:
        the same for all.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Returns
    -------
    torch.Tensor or (torch.Tensor, torch.Tensor)
        With `splits` also the rows that came from each rank, of the dtype of `splits` or int32.

    Raises
    ------
    UsageError
        If `splits` do not fit `tensor`, or there are none and the rows cannot be divided.
    MismatchError
        If dtype or a dimension other than the first differs; on every rank, and work goes on.
    """
    call = _to_all(tensor, splits, name, process_set)
    if autograd.is_wanted((tensor,)):
        received, counts = autograd.Alltoall.apply(call.named(), _count_dtype(splits), tensor)
    else:
        piece = piece_to_move(tensor, call)
        pending = submit(call, [piece], sync=True)
        pending.wait()
        received, counts = _received(pending, piece, splits)
    return received if splits is None else (received, counts)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `alltoall` and return its handle, whose result is (tensor, received splits)."""
    call = _to_all(tensor, splits, name, process_set)
    piece = piece_to_move(tensor, call)
    return Handle(submit(call, [piece]), lambda pending: _received(pending, piece, splits))


def reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduction of `tensor` over all ranks.

    Parameters
    ----------
    tensor : torch.Tensor
        Same shape and dtype on every rank. Its rows are divided evenly; where they cannot be, the
        first ranks get one more.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    compression : Compressor
        `Compression.fp16` or `.bf16` to halve what travels.
    op : default Average
        `Average`, `Sum`, `Min`, `Max` or `Product`.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    prescale_factor, postscale_factor : float
        Multiply before and after the reduction.

    Raises
    ------
    UsageError
        If the tensor is a scalar.
    NotSupportedError
        For Adasum, which needs whole tensors.
    MismatchError
        If ranks disagree about shape, dtype, op or factors; on every rank, and work goes on.
    """
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    packed, context = checked_compressor(compression).compress(tensor)
    if autograd.is_wanted((packed,)):
        result = autograd.Reducescatter.apply(call.named(), packed)[0]
    else:
        result = wait_for(call, piece_to_reducescatter(packed, call))
    return compression.decompress(result, context)


def reducescatter_async(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `reducescatter` and return its handle; leave `tensor` alone until it is through."""
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    return begin(call, piece_to_reducescatter(tensor, call))


def grouped_reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of several tensors, in one call: all complete together."""
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    compression = checked_compressor(compression)
    packed = [compression.compress(tensor) for tensor in group(tensors, call)]
    given = [tensor for tensor, _ in packed]
    if autograd.is_wanted(given):
        results = autograd.Reducescatter.apply(call.named(), *given)
    else:
        results = wait_for_group(call, [piece_to_reducescatter(each, call) for each in given])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


def grouped_reducescatter_async(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `grouped_reducescatter` and return its one handle, whose result is a list."""
    call = _scattering(name, op, process_set, prescale_factor, postscale_factor)
    return begin_group(
        call, [piece_to_reducescatter(tensor, call) for tensor in group(tensors, call)]
    )


def _scattering(
    name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float
) -> Call:
    if op == Adasum:
        raise NotSupportedError("reducescatter has no Adasum, which needs whole tensors")
    scales = (float(prescale), float(postscale))
    return Call(Kind.REDUCESCATTER, name, process_set, checked_op(op), -1, scales)


def _to_all(tensor: Any, splits: Splits, name: str | None, process_set: ProcessSet) -> Call:
    call = Call(Kind.ALLTOALL, name, process_set)
    if not isinstance(tensor, torch.Tensor):
        return call  # refused with the other checks of tensors
    if tensor.dim() == 0:
        raise UsageError(f"{call.called}: a scalar has no rows to send; give it a dimension")
    number_of(process_set)  # says so if it has none
    blinkrun.world()
    counts = _split(tensor.shape[0], splits, process_set.size(), call.called)
    return call._replace(splits=counts)


def _split(rows: int, splits: Splits, ranks: int, called: str) -> tuple[int, ...]:
    """Return how many rows go to each rank."""
    if splits is None:
        if rows % ranks:
            raise UsageError(
                f"{called}: {rows} rows cannot be divided among {ranks} ranks; give splits"
            )
        return (rows // ranks,) * ranks
    counts = _whole_numbers(splits, called)
    if len(counts) != ranks:
        raise UsageError(f"{called}: {len(counts)} splits for {ranks} ranks; give one for each")
    if min(counts) < 0 or sum(counts) != rows:
        raise UsageError(
            f"{called}: splits {counts} add up to {sum(counts)}, the tensor has {rows} rows; none "
            "may be negative"
        )
    return tuple(counts)


def _whole_numbers(splits: Any, called: str) -> list[int]:
    if isinstance(splits, torch.Tensor):
        whole = not (
            splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool
        )
        if splits.dim() == 1 and whole and splits.is_cpu:
            return [int(each) for each in splits.tolist()]
        raise UsageError(
            f"{called}: splits is a {splits.dim()}-dimensional tensor of {splits.dtype} on "
            f"{splits.device}; need whole numbers in one dimension on the CPU"
        )
    try:
        return [operator.index(each) for each in splits]
    except TypeError:
        raise UsageError(f"{called}: splits is {splits!r}; need a list of whole numbers") from None


def _count_dtype(splits: Splits) -> torch.dtype:
    return splits.dtype if isinstance(splits, torch.Tensor) else torch.int32


def _received(pending: Any, piece: Piece, splits: Splits) -> tuple[torch.Tensor, torch.Tensor]:
    counts = torch.tensor(pending.received_splits, dtype=_count_dtype(splits))
    return taken(pending, piece), counts
