"""allreduce of sparse tensors, such as the gradients of ``Embedding(sparse=True)``."""

from __future__ import annotations

from typing import Any

import torch

from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine.request import Kind
from blinkrun.errors import InvalidBufferError, MismatchError, UsageError
from blinkrun.torch.ops_call import Call, begin_group, piece_to_move
from blinkrun.types import Op


class SparseHandle:
    """A sparse allreduce under way: call it, or give it to `synchronize`, for the result."""

    def __init__(self, gathered: Any, call: Call, op: int, size: torch.Size) -> None:
        self._gathered = gathered
        self._call = call
        self._op = op
        self._size = size
        self._ranks = call.process_set.size()

    @property
    def name(self) -> str:
        """The name of the call."""
        return str(self._gathered.name)

    def done(self) -> bool:
        """Whether the call is through, with or without success; never blocks."""
        return bool(self._gathered.done())

    def wait(self) -> torch.Tensor:
        """Return the result, waiting for it if need be; may be called again."""
        indices, values, sizes = self._gathered.wait()
        if any(size != list(self._size) for size in sizes.tolist()):
            calls = {rank: f"size {tuple(size)}" for rank, size in enumerate(sizes.tolist())}
            raise MismatchError(
                f"sparse allreduce '{self.name}': ranks have different sizes "
                f"{sorted({tuple(size) for size in sizes.tolist()})}; every rank must call it "
                "with the same",
                calls,
            )
        if self._op == Op.AVERAGE:
            rounding = None if values.is_floating_point() or values.is_complex() else "trunc"
            values = torch.div(values, self._ranks, rounding_mode=rounding)
        return torch.sparse_coo_tensor(indices.t(), values, self._size, check_invariants=False)

    __call__ = wait


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Op.AVERAGE,
    process_set: ProcessSet = global_process_set,
) -> SparseHandle:
    """Begin the allreduce of a sparse COO tensor; call the handle for the result.

    Indices and values of all ranks are gathered; the result is not coalesced: it has an index as
    often as ranks (or `tensor`) have it, and stands for the sum.

    Parameters
    ----------
    tensor : torch.Tensor
        Same size, dtype and number of sparse dimensions on every rank, any number of entries.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    op : default Average
        `Average` or `Sum`.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    """
    if op not in (Op.AVERAGE, Op.SUM):
        raise UsageError(f"op is {op!r}; sparse tensors are reduced by Average or Sum")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        what = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InvalidBufferError(
            f"sparse_allreduce_async takes a sparse COO tensor, got {what}; give .to_sparse()"
        )
    tensor = tensor.detach()
    call = Call(Kind.ALLGATHER, name, process_set)
    size = torch.tensor([tensor.shape], device=tensor.device)
    members = (tensor._indices().t(), tensor._values(), size)
    gathered = begin_group(call, [piece_to_move(each, call) for each in members])
    return SparseHandle(gathered, call, op, tensor.shape)
