"""Batch normalization over the joined batch of all ranks."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from blinkrun.adapter.operations import Sum
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.errors import UsageError
from blinkrun.torch.ops_reduce import allreduce

_numbers = itertools.count()


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d` to `3d`, whose statistics in training are those of all ranks' batches.

    Every rank of the process set makes it, in the same order among such modules, and runs it as
    often as the others: its forward and backward passes are collective in training mode. Batches
    may be of different sizes; a rank's may be empty. Outputs and gradients of the input are those
    of one process on the joined batch. Gradients of weight and bias are this rank's part, as those
    of every other module: `DistributedOptimizer` reduces them.

    Parameters
    ----------
    num_features : int
        Channels `C` of inputs of shape (N, C, ...).
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Of the running statistics; None for their plain average.
    affine : bool, default True
        Whether weight and bias are learned.
    track_running_stats : bool, default True
        Whether running statistics are kept for evaluation; without, batches always give their own.
    process_set : ProcessSet
        The ranks whose batches are joined.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Horovod's
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **kwargs)
        self.process_set = process_set
        self._label = f"SyncBatchNorm.{next(_numbers)}"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's
        """Return `input` normalized; in training mode every rank calls it."""
        batch = input
        self._check_input_dim(batch)
        tracks = self.training and self.track_running_stats
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        is_plain = not self.training and self.running_mean is not None
        if is_plain or (self.process_set.size() or 1) == 1 or not self.process_set.included():
            return self._own_batch(batch, tracks)
        output, mean, var, count = _Normalize.apply(
            batch, self.weight, self.bias, self.eps, self._label, self.process_set
        )
        if tracks and self.running_mean is not None:
            self._track(mean, var, count)
        return output

    def _check_input_dim(self, batch: torch.Tensor) -> None:
        if batch.dim() < 2:
            raise UsageError(f"SyncBatchNorm takes at least 2 dimensions, got {batch.dim()}")
        if batch.size(1) != self.num_features:
            raise UsageError(
                f"SyncBatchNorm has num_features={self.num_features}, the input of shape "
                f"{tuple(batch.shape)} has {batch.size(1)}"
            )

    def _factor(self) -> float:
        """Return by how much running statistics follow this batch."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked)

    def _own_batch(self, batch: torch.Tensor, tracks: bool) -> torch.Tensor:
        """Normalize as torch's own module does, over this rank's batch or by running statistics."""
        keeps = not self.training or self.track_running_stats
        return functional.batch_norm(
            batch,
            self.running_mean if keeps else None,
            self.running_var if keeps else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self._factor() if tracks else 0.0,
            self.eps,
        )

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        factor = self._factor()
        unbiased = var * (count / (count - 1)).to(var.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Return `module` with every BatchNorm in it replaced by one over all ranks.

        Parameters and running statistics are taken over: the same tensors.
        """
        converted = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(converted, name, getattr(module, name))
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return converted


class _Normalize(torch.autograd.Function):
    """Normalization by the statistics of all ranks; gives output, mean, variance, count."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        label: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = _moments(batch).expand(process_set.size(), -1)
        mine = torch.zeros_like(rows)
        mine[process_set.rank()] = rows[0]
        # A row for each rank, so that ranks that have joined count for nothing.
        gathered = allreduce(mine, op=Sum, name=f"{label}.moments", process_set=process_set)
        mean, var, count = _joined(gathered)
        # Looked at only where this rank's batch does not tell: on a device that waits.
        if batch.numel() <= batch.size(1) and count <= 1:
            raise UsageError(
                f"SyncBatchNorm needs more than 1 value per channel in training, the joined batch "
                f"has {int(count)} (this rank's batch: {tuple(batch.shape)})"
            )
        wide = _wide(batch)
        scale = (var + eps).rsqrt().to(wide.dtype)
        mean, var = mean.to(wide.dtype), var.to(wide.dtype)
        ctx.save_for_backward(batch, weight, mean, scale, count)
        ctx.label, ctx.process_set = label, process_set
        factor = scale if weight is None else scale * weight
        offset = -mean * factor if bias is None else bias - mean * factor
        output = torch.addcmul(_across(offset, batch), wide, _across(factor, batch))
        ctx.mark_non_differentiable(mean, var, count)
        return output.to(batch.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        batch, weight, mean, scale, count = ctx.saved_tensors
        wide = _wide(grad)
        normal = (_wide(batch) - _across(mean, batch)) * _across(scale, batch)
        sums = torch.stack([_over_batch(wide), _over_batch(wide * normal)])
        grad_bias, grad_weight = sums.unbind()
        grad_input = None
        if ctx.needs_input_grad[0]:
            name = f"{ctx.label}.gradients"
            means = allreduce(sums, op=Sum, name=name, process_set=ctx.process_set)
            means /= count.to(means.dtype)
            centred = wide - _across(means[0], batch) - normal * _across(means[1], batch)
            factor = scale if weight is None else scale * weight
            grad_input = (centred * _across(factor, batch)).to(batch.dtype)
        return (
            grad_input,
            grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            grad_bias.to(grad.dtype if weight is None else weight.dtype)
            if ctx.needs_input_grad[2]
            else None,
            None,
            None,
            None,
        )


def _moments(batch: torch.Tensor) -> torch.Tensor:
    """Return (count, means, variances) of a batch as one line; an empty one has zeros.

    >>> _moments(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist()
    [2.0, 2.0, 0.0, 1.0, 0.0]
    """
    wide = _wide(batch.detach())
    count = batch.numel() // max(batch.size(1), 1)
    line = wide.new_zeros(1 + 2 * batch.size(1), dtype=torch.float64)
    if count:
        dims = [d for d in range(batch.dim()) if d != 1]
        var, mean = torch.var_mean(wide, dims, correction=0)
        line[0] = count
        line[1:] = torch.cat([mean, var]).double()
    return line


def _joined(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean, variance and count of the joined batch from each rank's line of moments.

    By the parallel formula of Chan et al. (1979), which does not lose digits as squares of sums do.

    >>> mean, var, count = _joined(torch.tensor([[1.0, 2.0, 1.0], [1.0, 6.0, 0.0]]))
    >>> mean.tolist(), var.tolist(), count.item()
    ([4.0], [4.5], 2.0)
    """
    counts, means, variances = rows[:, :1], *rows[:, 1:].chunk(2, dim=1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    var = (counts * (variances + (means - mean).square())).sum(0) / count
    return mean, var, count


def _wide(values: torch.Tensor) -> torch.Tensor:
    """Return `values` in the type that they are computed in, at least float32."""
    return values if values.dtype == torch.float64 else values.float()


def _across(values: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return a value per channel in the shape that broadcasts over `batch`."""
    return values.view(1, -1, *[1] * (batch.dim() - 2))


def _over_batch(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each channel."""
    return values.sum([d for d in range(values.dim()) if d != 1])
