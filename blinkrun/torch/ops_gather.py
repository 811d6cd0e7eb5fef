"""allgather and broadcast: every rank gets what others have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.engine.request import Kind
from blinkrun.torch import autograd
from blinkrun.torch.ops_call import (
    Call,
    begin,
    begin_group,
    piece_to_broadcast,
    piece_to_move,
    wait_for,
    wait_for_group,
)
from blinkrun.torch.ops_handle import Handle
from blinkrun.torch.ops_reduce import group


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the tensors of all ranks joined along the first dimension, in rank order.

    Parameters
    ----------
    tensor : torch.Tensor
        Dtype and all dimensions but the first are the same on every rank; the first may differ,
        also be 0. A scalar counts as a vector of one element.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    MismatchError
        If dtype or a dimension other than the first differs; on every rank, and work goes on.
    """
    call = Call(Kind.ALLGATHER, name, process_set)
    if autograd.is_wanted((tensor,)):
        return autograd.Allgather.apply(call.named(), tensor)[0]
    return wait_for(call, piece_to_move(tensor, call))


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `allgather` and return its handle; leave `tensor` alone until it is through."""
    call = Call(Kind.ALLGATHER, name, process_set)
    return begin(call, piece_to_move(tensor, call))


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return several tensors gathered as by `allgather`, in one call: all complete together."""
    call = Call(Kind.ALLGATHER, name, process_set)
    tensors = group(tensors, call)
    if autograd.is_wanted(tensors):
        return list(autograd.Allgather.apply(call.named(), *tensors))
    return wait_for_group(call, [piece_to_move(tensor, call) for tensor in tensors])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `grouped_allgather` and return its one handle, whose result is a list."""
    call = Call(Kind.ALLGATHER, name, process_set)
    return begin_group(call, [piece_to_move(tensor, call) for tensor in group(tensors, call)])


def broadcast(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the values that `tensor` has on `root_rank`; `tensor` is not changed.

    Parameters
    ----------
    tensor : torch.Tensor
        Same shape and dtype on every rank; any dtype.
    root_rank : int
        A rank of the job, also where a process set is given, to which it must belong.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    MismatchError
        If ranks disagree about shape, dtype or root; on every rank, and work goes on.
    """
    call = _from_root(root_rank, name, process_set)
    if autograd.is_wanted((tensor,)):
        return autograd.Broadcast.apply(call.named(), tensor)
    return wait_for(call, piece_to_broadcast(tensor, call, in_place=False))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Give `tensor` the values that it has on `root_rank`, in place, and return it."""
    call = _from_root(root_rank, name, process_set)
    wait_for(call, piece_to_broadcast(tensor, call, in_place=True))
    return tensor


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `broadcast` and return its handle; leave `tensor` alone until it is through."""
    call = _from_root(root_rank, name, process_set)
    return begin(call, piece_to_broadcast(tensor, call, in_place=False))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `broadcast_` and return its handle; leave `tensor` alone until it is through."""
    call = _from_root(root_rank, name, process_set)
    return begin(call, piece_to_broadcast(tensor, call, in_place=True))


def _from_root(root_rank: int, name: str | None, process_set: ProcessSet) -> Call:
    return Call(Kind.BROADCAST, name, process_set, root=checked_root(root_rank, process_set))
