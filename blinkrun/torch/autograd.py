"""Collectives in the graph: their gradients.

The rules are Horovod's, on which scripts rely:

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
the size). Where Horovod has no rule, for Min, Max and Product of an allreduce, the gradient is that
of the sum of the ranks' losses; of several ranks with the same smallest or largest value each gets
an equal share.

Calls in the backward pass are named after that of the forward pass, so ranks may differ in the
order in which they come to them. Second derivatives exist wherever first ones do.
"""

# ruff: noqa: D102 - forward and backward are what torch says they are

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from blinkrun.engine.request import ADASUM, Kind
from blinkrun.errors import NotSupportedError
from blinkrun.torch.ops_call import (
    NO_SCALES,
    Call,
    piece_to_broadcast,
    piece_to_move,
    piece_to_reduce,
    piece_to_reducescatter,
    submit,
    taken,
    taken_all,
    wait_for,
    wait_for_group,
)
from blinkrun.types import Op

_LINEAR = (Op.SUM, Op.AVERAGE, ADASUM)


def is_wanted(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether results for these inputs belong into a graph."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


class Allreduce(torch.autograd.Function):
    """Several tensors reduced in one call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        results = wait_for_group(
            call, [piece_to_reduce(tensor, call, in_place=False) for tensor in tensors]
        )
        if call.op not in _LINEAR:
            ctx.save_for_backward(*tensors, *results)
        return _in_graph(ctx, results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.call.op in _LINEAR:
            return (None, *Allreduce.apply(_of_backward(ctx.call), *grads))
        return _selective_backward(ctx, *grads)


@once_differentiable
def _selective_backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of Min, Max and Product."""
    count = len(grads)
    inputs, results = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
    before, after = ctx.call.scales
    call = _of_backward(ctx.call)._replace(op=Op.SUM, scales=NO_SCALES)
    sums = _sums(call, grads)
    if ctx.call.op == Op.PRODUCT:
        rests = _products_of_others(call, [tensor * before for tensor in inputs])
        factor = before * after
        return (None, *[total * rest * factor for total, rest in zip(sums, rests, strict=True)])
    # What was compared is the input times `before`; a negative factor swaps nothing: it is applied
    # before the comparison on every rank.
    chosen = [
        (tensor * before * after == result).to(grad.dtype)
        for tensor, result, grad in zip(inputs, results, grads, strict=True)
    ]
    ties = _sums(call._replace(name=f"{call.name}.ties"), chosen)
    return (
        None,
        *[
            total * mine / tied.clamp(min=1) * (before * after)
            for total, mine, tied in zip(sums, chosen, ties, strict=True)
        ],
    )


def _products_of_others(call: Call, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each tensor the product of the other ranks' values; zeros are no trouble."""
    zero = [tensor == 0 for tensor in inputs]
    zeros = _sums(call._replace(name=f"{call.name}.zeros"), [each.to(torch.int64) for each in zero])
    rest_call = call._replace(name=f"{call.name}.rest", op=Op.PRODUCT)
    without = [
        torch.where(none, torch.ones_like(t), t) for none, t in zip(zero, inputs, strict=True)
    ]
    products = wait_for_group(
        rest_call, [piece_to_reduce(t, rest_call, in_place=False) for t in without]
    )
    return [
        torch.where(count - none.to(torch.int64) > 0, torch.zeros_like(product), product / mine)
        for count, none, product, mine in zip(zeros, zero, products, without, strict=True)
    ]


def _sums(call: Call, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return wait_for_group(
        call, [piece_to_reduce(tensor, call, in_place=False) for tensor in tensors]
    )


class Allgather(torch.autograd.Function):
    """Several tensors gathered in one call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.shapes = [tensor.shape for tensor in tensors]
        pieces = [piece_to_move(tensor, call) for tensor in tensors]
        pending = submit(call, pieces, sync=True)
        pending.wait()
        ctx.rows = pending.received_splits if len(pieces) == 1 else None  # of each rank
        return _in_graph(ctx, taken_all(pending, pieces))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call = _of_backward(ctx.call)
        if ctx.rows is None:
            starts = _first_rows(call, [shape[0] if shape else 1 for shape in ctx.shapes])
        else:
            starts = [sum(ctx.rows[: call.process_set.rank()])]
        averages = Allreduce.apply(
            call._replace(kind=Kind.ALLREDUCE, op=Op.AVERAGE, scales=NO_SCALES), *grads
        )
        return (
            None,
            *[
                average.narrow(0, start, shape[0] if shape else 1).reshape(shape)
                for average, start, shape in zip(averages, starts, ctx.shapes, strict=True)
            ],
        )


def _first_rows(call: Call, rows: list[int]) -> list[int]:
    """Return the first of this rank's rows in each gathered tensor."""
    call = call._replace(name=f"{call.name}.rows")
    counts = wait_for(call, piece_to_move(torch.tensor([rows]), call))
    return [int(each) for each in counts[: call.process_set.rank()].sum(0)]


class Broadcast(torch.autograd.Function):
    """A tensor given to all ranks."""

    @staticmethod
    def forward(ctx: Any, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        return wait_for(call, piece_to_broadcast(tensor, call, in_place=False))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call = _of_backward(ctx.call)._replace(kind=Kind.ALLREDUCE, op=Op.AVERAGE, root=-1)
        (average,) = Allreduce.apply(call, grad)
        ranks = call.process_set.ranks
        is_root = ranks[call.process_set.rank()] == ctx.call.root
        return None, average if is_root else average * 0


class Alltoall(torch.autograd.Function):
    """A tensor whose rows go to all ranks, and how many came from each."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, count_dtype: torch.dtype, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        piece = piece_to_move(tensor, call)
        pending = submit(call, [piece], sync=True)
        pending.wait()
        ctx.call = call._replace(splits=tuple(pending.received_splits))
        counts = torch.tensor(pending.received_splits, dtype=count_dtype)
        ctx.mark_non_differentiable(counts)
        return taken(pending, piece), counts

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, _counts: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        back, _ = Alltoall.apply(_of_backward(ctx.call), torch.int64, grad)
        return None, None, back


class Reducescatter(torch.autograd.Function):
    """Several tensors of whose reductions this rank gets some rows, in one call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if call.op not in (Op.SUM, Op.AVERAGE):
            raise NotSupportedError(
                f"{call.called}: the gradient is there for Sum and Average only; give "
                "tensor.detach()"
            )
        ctx.call = call
        return _in_graph(
            ctx, wait_for_group(call, [piece_to_reducescatter(tensor, call) for tensor in tensors])
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call = ctx.call
        factor = call.scales[0] * call.scales[1]
        if call.op == Op.SUM:
            factor *= call.process_set.size()
        back = _of_backward(call)._replace(kind=Kind.ALLGATHER, op=Op.SUM, scales=NO_SCALES)
        return (None, *Allgather.apply(back, *[grad * factor for grad in grads]))


def _in_graph(ctx: Any, results: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the results; those of inputs that require no gradient are to have none either."""
    wanted = ctx.needs_input_grad[1:]
    ctx.mark_non_differentiable(
        *[result for result, is_wanted in zip(results, wanted, strict=True) if not is_wanted]
    )
    return tuple(results)


def _of_backward(call: Call) -> Call:
    return call._replace(name=f"{call.name}.backward")
