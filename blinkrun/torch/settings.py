"""How a DistributedOptimizer reduces, and which parameters it may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from blinkrun import env, log
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch.agree import check_alike, describe
from blinkrun.torch.ops import DTYPES
from blinkrun.torch.overlap import Overlap, choose_overlap
from blinkrun.torch.reducer import Reducer, grad_strides, has_owner
from blinkrun.types import Op

DEFAULT_BUCKET_BYTES = 25 << 20
DIRECT_BYTES = 4 << 20

Named = list[tuple[str, torch.Tensor]]


class Settings:
    """How a DistributedOptimizer reduces, whatever its parameters."""

    def __init__(  # noqa: PLR0913 - one per argument of DistributedOptimizer
        self,
        world: Any,
        *,
        op: Op,
        passes: int,
        bucket_bytes: int | None,
        overlap: str | None,
        names: dict[int, str] | None,
    ) -> None:
        if op not in (Op.AVERAGE, Op.SUM):
            raise UsageError(f"op is {op!r}; gradients are reduced by Average or Sum")
        self.world = world
        self.op = op
        self.passes = _at_least_one("backward_passes_per_step", passes)
        self.overlap = choose(world, overlap)
        if bucket_bytes is None:
            bucket_bytes = env.size_bytes(env.BUCKET, DEFAULT_BUCKET_BYTES)
        sizes = _at_least_one("bucket_bytes", bucket_bytes), choose_direct_bytes(world)
        # The environment and the cores may differ between hosts; rank 0's count.
        self.bucket_bytes, self.direct_bytes = world.broadcast_object(sizes, root=0)
        self.names = names

    def reducer_for(self, optimizer: Any) -> Reducer:
        """Return the reducer of the parameters of `optimizer`, checked to be alike on all ranks."""
        everything = _named_parameters(optimizer, self.names)
        self._frozen = [(name, param) for name, param in everything if not param.requires_grad]
        named = [(name, param) for name, param in everything if param.requires_grad]
        for name, param in named:
            _check_parameter(name, param)
        check_alike([(n, f"{describe(p)} with strides {grad_strides(p)}") for n, p in named])
        reducer = Reducer(
            self.world,
            named,
            op=self.op,
            passes=self.passes,
            bucket_bytes=self.bucket_bytes,
            direct_bytes=self.direct_bytes,
            overlap=self.overlap.on,
        )
        self._say(reducer)
        return reducer

    def check_still_frozen(self) -> None:
        """Raise if a parameter has a gradient that was frozen when the optimizer was wrapped."""
        for name, param in self._frozen:
            if param.grad is not None:
                raise UsageError(
                    f"parameter '{name}' has a gradient but was frozen when DistributedOptimizer "
                    "was called; call it with requires_grad set, freeze afterwards"
                )

    def reduce_loss(self, loss: Any) -> Any:
        """Return what a closure returned, reduced over all ranks; None stays None."""
        if loss is None or self.world.size == 1:
            return loss
        is_tensor = isinstance(loss, torch.Tensor)
        value = loss.detach().clone() if is_tensor else torch.tensor(float(loss)).double()
        line = value.contiguous().view(-1)
        self.world.allreduce(line, self.op, line)
        return line.view(value.shape) if is_tensor else line.item()

    def _say(self, reducer: Reducer) -> None:
        if self.world.rank != 0 or not env.is_on(env.VERBOSE):
            return
        buckets = reducer.layout.buckets
        megabytes = sum(bucket.num_bytes for bucket in buckets) / 1e6
        plural = "" if len(buckets) == 1 else "s"
        log.say(
            f"gradients: {megabytes:.1f} MB in {len(buckets)} bucket{plural}, overlap "
            f"{'on' if self.overlap.on else 'off'} ({self.overlap.reason})",
            self.world.rank,
        )


def names_by_identity(named: Iterable[tuple[str, torch.Tensor]] | None) -> dict[int, str] | None:
    """Return the name of each parameter by identity, or None if none were given."""
    if named is None:
        return None
    items = list(named)
    if not all(isinstance(item, tuple) and len(item) == 2 for item in items):
        raise UsageError("named_parameters takes pairs, as model.named_parameters() gives")
    twice = [name for name, count in Counter(name for name, _ in items).items() if count > 1]
    if twice:
        raise UsageError(f"named_parameters has the name '{twice[0]}' twice")
    return {id(param): name for name, param in items}


def _named_parameters(optimizer: Any, names: dict[int, str] | None) -> Named:
    """Return the parameters that `optimizer` trains, in the order of its groups."""
    named: Named = []
    for g, group in enumerate(optimizer.param_groups):
        for p, param in enumerate(group["params"]):
            name = f"group{g}.param{p}" if names is None else names.get(id(param))
            if name is None:
                raise UsageError(
                    f"named_parameters has no name for parameter {p} of group {g}, shape "
                    f"{tuple(param.shape)}; name every parameter of the optimizer"
                )
            named.append((name, param))
    return named


def _check_parameter(name: str, param: torch.Tensor) -> None:
    """Raise if the gradient of `param` cannot be reduced."""
    if param.device.type != "cpu" or param.layout != torch.strided:
        raise InvalidBufferError(
            f"parameter '{name}' is {param.layout} on {param.device}; only dense parameters on "
            "the CPU are reduced"
        )
    if param.dtype not in DTYPES or not param.dtype.is_floating_point:
        raise InvalidBufferError(
            f"parameter '{name}' is {param.dtype}; gradients are reduced in float16, bfloat16, "
            "float32 and float64"
        )
    if has_owner(param):
        raise UsageError(f"parameter '{name}' belongs to another DistributedOptimizer already")


def choose(world: Any, wanted: str | None) -> Overlap:
    """Return whether to overlap here; None asks the environment."""
    options = ("auto", "on", "off")
    if wanted is None:
        wanted = env.choice(env.OVERLAP, options, "auto")
    if wanted not in options:
        raise UsageError(f"overlap is {wanted!r}; choose one of {', '.join(options)}")
    return choose_overlap(
        wanted,
        cores=world.cores,
        local_size=world.local_size,
        cross_size=world.cross_size,
        threads=torch.get_num_threads(),
    )


def choose_direct_bytes(world: Any) -> int | None:
    """Return the size from which gradients are not copied; None copies all.

    Two ranks on two cores took 3.8 ms to copy 25 MB and reduce them in the arena, 2.7 ms to reduce
    them from where they were. But that way ranks wait for each other at every chunk: where they
    share cores, the copy is no slower.
    """
    return DIRECT_BYTES if world.local_size <= world.cores else None


def _at_least_one(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}, need a whole number of at least 1")
    return value
