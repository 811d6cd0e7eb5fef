"""Sums of sparse tensors: the entries of all ranks are gathered and added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from blinkrun import buffers
from blinkrun.errors import InvalidBufferError, MismatchError
from blinkrun.torch.distributed.reductions import Kind, Reduction

if TYPE_CHECKING:
    from blinkrun.torch.distributed.calls import Calls


def allreduce_sparse(calls: Calls, tensor: torch.Tensor, how: Reduction) -> None:
    """Sum or average a sparse COO tensor over all ranks, in place; ranks may hold other entries.

    Raises
    ------
    InvalidBufferError
        If the layout is another one or the reduction is no sum.
    MismatchError
        On every rank, if the shapes differ.
    """
    is_elsewhere = not tensor.is_cpu and buffers.device_of(tensor) is None
    if tensor.layout is not torch.sparse_coo or is_elsewhere:
        raise InvalidBufferError(
            f"allreduce: a {tensor.layout} tensor on {tensor.device}; sparse tensors must be COO"
            " on the CPU or a CUDA device"
        )
    if how.kind not in (Kind.SUM, Kind.AVG):
        raise InvalidBufferError(f"allreduce: {how.name} of sparse tensors; only SUM and AVG")
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    shape = torch.tensor([mine.dim(), mine.sparse_dim(), *mine.shape, mine._nnz()])
    _check_shapes(calls, shape)
    counts = torch.empty(calls.size, dtype=torch.int64)
    calls.all_gather(counts, shape[-1:])
    all_indices = [indices.new_empty((indices.shape[0], int(n))) for n in counts]
    all_values = [values.new_empty((int(n), *values.shape[1:])) for n in counts]
    calls.all_gather_list(all_indices, indices)
    calls.all_gather_list(all_values, values)
    # Coalescing adds entries in the order in which they lie: that of ranks, on every rank.
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices, dim=1), torch.cat(all_values), mine.shape, check_invariants=False
    ).coalesce()
    if how.kind == Kind.AVG:
        total = total / calls.size
    with torch.no_grad():  # not of a detached tensor: that one would get the new entries alone
        tensor.copy_(total)


def _check_shapes(calls: Calls, shape: torch.Tensor) -> None:
    """Raise on every rank if some rank has another shape; the last number may differ."""
    lengths = torch.empty(calls.size, dtype=torch.int64)
    calls.all_gather(lengths, torch.tensor([len(shape)]))
    everyone = [shape.new_empty(int(n)) for n in lengths]
    calls.all_gather_list(everyone, shape)
    for rank, theirs in enumerate(everyone):
        if not torch.equal(theirs[:-1], everyone[0][:-1]):
            raise MismatchError(
                f"allreduce: rank {rank} has a sparse tensor of shape {theirs[2:-1].tolist()},"
                f" rank 0 of {everyone[0][2:-1].tolist()}"
            )
