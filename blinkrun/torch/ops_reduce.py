"""allreduce: every rank gets the reduction of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from blinkrun.adapter.operations import Average, checked_compressor, op_of
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine.request import Kind
from blinkrun.errors import UsageError
from blinkrun.torch import autograd
from blinkrun.torch.compression import Compression
from blinkrun.torch.ops_call import (
    Call,
    begin_group,
    piece_to_reduce,
    submit,
    taken,
    wait_for,
    wait_for_group,
)
from blinkrun.torch.ops_handle import Handle
from blinkrun.torch.repeats import begin_again, remember


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return `tensor` reduced over all ranks of a process set, bitwise the same on each of them.

    It runs when every rank of the set has called it under this name; ranks may call in any order.

    Parameters
    ----------
    tensor : torch.Tensor
        Same shape and dtype on every rank, any layout; not changed. If it requires a gradient, so
        does the result, see `blinkrun.torch.autograd`.
    average : bool, optional
        Deprecated: True is ``op=Average``, False ``op=Sum``.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    compression : Compressor
        `Compression.fp16` or `.bf16` to halve what travels.
    op : optional
        `Average` (default), `Sum`, `Min`, `Max`, `Product` or `Adasum`. Averages are true
        divisions, of integers rounded toward zero. Sums and products of integers wrap around in
        their own width; averages do so in 64 bits only.
    prescale_factor, postscale_factor : float
        Multiply before and after the reduction.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    InvalidBufferError
        If the tensor is sparse, on neither the CPU nor a CUDA device, or has no such operation.
    MismatchError
        If ranks disagree about shape, dtype, op or factors; on every rank, and work goes on.
    DuplicateNameError
        If a call of this name is still under way.
    """
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    if compression is not Compression.none:
        compression = checked_compressor(compression)
        tensor, context = compression.compress(tensor)
        return compression.decompress(_reduced(tensor, call), context)
    return _reduced(tensor, call)


def allreduce_(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` in place and return it; outside of any graph. See `allreduce`."""
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    wait_for(call, piece_to_reduce(tensor, call, in_place=True))
    return tensor


def allreduce_async(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `allreduce` and return its handle; leave `tensor` alone until it is through."""
    given = (op, prescale_factor, postscale_factor, process_set)
    return _begun(tensor, average, name, given, in_place=False)


def allreduce_async_(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `allreduce_` and return its handle; leave `tensor` alone until it is through."""
    given = (op, prescale_factor, postscale_factor, process_set)
    return _begun(tensor, average, name, given, in_place=True)


def grouped_allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return several tensors reduced as by `allreduce`, in one call: all complete together.

    Every rank gives as many; the tensors of one place have the same shape and dtype everywhere.
    """
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    compression = checked_compressor(compression)
    packed = [compression.compress(tensor) for tensor in group(tensors, call)]
    given = [tensor for tensor, _ in packed]
    if autograd.is_wanted(given):
        results = autograd.Allreduce.apply(call.named(), *given)
    else:
        results = wait_for_group(call, [piece_to_reduce(t, call, in_place=False) for t in given])
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


def grouped_allreduce_(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors in place and return them; see `grouped_allreduce`."""
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    tensors = group(tensors, call)
    wait_for_group(call, [piece_to_reduce(tensor, call, in_place=True) for tensor in tensors])
    return tensors


def grouped_allreduce_async(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `grouped_allreduce` and return its one handle, whose result is a list."""
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    return begin_group(
        call, [piece_to_reduce(t, call, in_place=False) for t in group(tensors, call)]
    )


def grouped_allreduce_async_(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `grouped_allreduce_` and return its one handle, whose result is a list."""
    call = _call(average, name, op, prescale_factor, postscale_factor, process_set)
    return begin_group(
        call, [piece_to_reduce(t, call, in_place=True) for t in group(tensors, call)]
    )


def group(tensors: Any, call: Call) -> list[torch.Tensor]:
    """Return the tensors of a grouped call as a list, or raise if it has none."""
    if isinstance(tensors, torch.Tensor):
        raise UsageError(f"grouped {call.called} takes a list of tensors, got one tensor")
    tensors = list(tensors)
    if not tensors:
        raise UsageError(f"grouped {call.called} has no tensors; give at least one")
    return tensors


def _call(  # noqa: PLR0913, PLR0917
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Call:
    op = Average if op is None and average is None else op_of(op, average)
    return Call(Kind.ALLREDUCE, name, process_set, op, -1, (float(prescale), float(postscale)))


def _reduced(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    if autograd.is_wanted((tensor,)):
        return autograd.Allreduce.apply(call.named(), tensor)[0]
    return wait_for(call, piece_to_reduce(tensor, call, in_place=False))


def _begun(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    given: tuple[int | None, float, float, ProcessSet],
    *,
    in_place: bool,
) -> Handle:
    """Begin a call of the function that calls this, the short way if the last one was like it."""
    may_repeat = bool(name) and average is None
    if may_repeat:
        again = begin_again(tensor, name, *given, in_place=in_place)
        if again is not None:
            return again
    call = _call(average, name, *given)
    piece = piece_to_reduce(tensor, call, in_place=in_place)
    pending = submit(call, [piece])
    if may_repeat:
        remember(pending.request, piece, tensor, *given, in_place=in_place)
    return Handle(pending, lambda pending: taken(pending, piece))
