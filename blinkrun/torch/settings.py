"""How a DistributedOptimizer reduces, and which parameters it may take."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blinkrun import env, log
from blinkrun.adapter.bucket_sizes import choose_bucket_bytes, choose_direct_bytes
from blinkrun.adapter.operations import checked_compressor
from blinkrun.adapter.overlap import Overlap, choose_overlap
from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.engine.request import ADASUM
from blinkrun.errors import InvalidBufferError, MismatchError, UsageError
from blinkrun.torch import devices
from blinkrun.torch.agree import describe, first_difference
from blinkrun.torch.check import check_parameters
from blinkrun.torch.codec import Codec
from blinkrun.torch.dtypes import DTYPES
from blinkrun.torch.exchange import Exchange
from blinkrun.torch.memory import grad_strides
from blinkrun.torch.owners import has_owner
from blinkrun.torch.reducer import Reducer
from blinkrun.types import Op

Named = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a DistributedOptimizer was asked for, checked.

    The fields are the arguments of `DistributedOptimizer`; None is for those that the environment
    or the machine decides.
    """

    names: dict[int, str] | None
    compression: Any
    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    groups: int | Sequence[Sequence[torch.Tensor]] | None
    sparse_as_dense: bool
    process_set: ProcessSet
    bucket_bytes: int | None
    overlap: str | None
    check_every: int | None

    def __post_init__(self) -> None:
        at_least("backward_passes_per_step", self.backward_passes_per_step, 1)
        if self.compression is not None:
            checked_compressor(self.compression)
        if self.op not in (Op.AVERAGE, Op.SUM, ADASUM):
            raise UsageError(f"op is {self.op!r}; gradients are reduced by Average, Sum or Adasum")
        if self.gradient_predivide_factor != 1.0 and self.op != Op.AVERAGE:
            raise UsageError("gradient_predivide_factor goes with op=Average only")
        if not self.gradient_predivide_factor > 0:
            raise UsageError(
                f"gradient_predivide_factor is {self.gradient_predivide_factor}, need above 0"
            )
        if self.bucket_bytes is not None:
            at_least("bucket_bytes", self.bucket_bytes, 1)
        if self.check_every is not None:
            at_least("check_every", self.check_every, 0)
        _check_groups(self.groups)

    @property
    def scales(self) -> tuple[float, float]:
        """Factors before and after the reduction."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    def summary(self) -> list[tuple[str, str]]:
        """Return what must be the same on all ranks, in words."""
        compression = getattr(self.compression, "__name__", type(self.compression).__name__)
        return [
            ("op", "Adasum" if self.op == ADASUM else Op(self.op).name.title()),
            ("compression", compression),
            ("gradient_predivide_factor", str(self.gradient_predivide_factor)),
            ("sparse_as_dense", str(bool(self.sparse_as_dense))),
        ]


class Settings:
    """How a DistributedOptimizer reduces, whatever its parameters; collective over the set."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.exchange = Exchange(arguments.process_set, "DistributedOptimizer")
        self.passes = arguments.backward_passes_per_step
        communicator = self._communicator()
        self.overlap = choose(communicator, arguments.overlap)
        bucket_bytes = arguments.bucket_bytes
        if bucket_bytes is None:
            bucket_bytes = choose_bucket_bytes(None)
        check_every = arguments.check_every
        if check_every is None:
            check_every = env.count(env.CHECK_PARAMETERS, 0)
        self._sizes = bucket_bytes, choose_direct_bytes(communicator), check_every

    def _communicator(self) -> Any:
        """Return that of the process set; the world's where this rank is not in it."""
        if self.exchange.ranks:
            number = self.arguments.process_set.process_set_id
            return self.exchange.engine.communicator(number)
        return self.exchange.engine.world

    @property
    def check_every(self) -> int:
        """Steps between checks that parameters agree; 0 for never."""
        return self._sizes[2]

    def named(self, optimizer: Any) -> Named:
        """Return the parameters that `optimizer` trains, checked, in the order of its groups.

        Whole numbers that a module keeps as parameters are not among them: they have no gradients.
        """
        named: Named = []
        names = self.arguments.names
        for g, group in enumerate(optimizer.param_groups):
            for p, param in enumerate(group["params"]):
                name = f"group{g}.param{p}" if names is None else names.get(id(param))
                if name is None:
                    raise UsageError(
                        f"named_parameters has no name for parameter {p} of group {g}, shape "
                        f"{tuple(param.shape)}; name every parameter of the optimizer"
                    )
                if not _is_countable(param.dtype):
                    named.append((name, param))
        for name, param in named:
            _check_parameter(name, param)
        return named

    def reducer_for(self, optimizer: Any) -> Reducer:
        """Return the reducer of the parameters of `optimizer`, checked to be alike on all ranks."""
        named = self.named(optimizer)
        groups = group_indices(self.arguments.groups, [param for _, param in named])
        self._agree(named, groups)
        bucket_bytes, direct_bytes, _ = self._sizes
        if devices.index_of_all(named) is not None:
            direct_bytes = None  # a copy there costs less than a way around the arena
            wanted = self.arguments.overlap
            self.overlap = choose(self._communicator(), wanted, on_device=True)
        reducer = Reducer(
            self.exchange,
            named,
            op=self.arguments.op,
            scales=self.arguments.scales,
            passes=self.passes,
            bucket_bytes=bucket_bytes,
            direct_bytes=direct_bytes,
            overlap=self.overlap.on,
            groups=groups,
            codec=Codec(self.arguments.compression),
            sparse_as_dense=self.arguments.sparse_as_dense,
        )
        self._say(reducer)
        return reducer

    def reduce_loss(self, loss: Any) -> Any:
        """Return what a closure returned, reduced over all ranks; None stays None."""
        if loss is None or self.exchange.is_alone:
            return loss
        is_tensor = isinstance(loss, torch.Tensor)
        value = loss.detach().clone() if is_tensor else torch.tensor(float(loss)).double()
        line = value.contiguous().view(-1)
        self.exchange.agree_on("loss", line, Op(self.arguments.op))
        return line.view(value.shape) if is_tensor else line.item()

    def check(self, named: Named, step: int) -> None:
        """Compare the parameters of all ranks, if that is due after `step` steps."""
        if self.check_every and step % self.check_every == 0 and not self.exchange.is_alone:
            check_parameters(self.exchange, named, step)

    def _agree(self, named: Named, groups: Sequence[Sequence[int]]) -> None:
        """Raise if ranks have other parameters or arguments; take over the first one's sizes."""
        if self.exchange.is_alone:
            return
        shapes = [(n, f"{describe(p)} with strides {grad_strides(p)}") for n, p in named]
        arguments = [*self.arguments.summary(), ("groups", str([list(g) for g in groups]))]
        everyone = self.exchange.gather("parameters", (shapes, arguments, self._sizes))
        me = self.exchange.rank
        for other, (their_shapes, their_arguments, _) in zip(
            self.exchange.ranks, everyone, strict=True
        ):
            if their_shapes != shapes:
                text = first_difference(other, their_shapes, me, shapes)
                counts = [f"{len(each[0])} parameters" for each in everyone]
                calls = dict(zip(self.exchange.ranks, counts, strict=True))
                raise MismatchError(text, calls)
            for (what, theirs), (_, mine) in zip(their_arguments, arguments, strict=True):
                if theirs != mine:
                    raise MismatchError(
                        f"rank {other}: DistributedOptimizer has {what}={theirs}, rank {me} has "
                        f"{what}={mine}; every rank must call it with the same",
                        {other: f"{what}={theirs}", me: f"{what}={mine}"},
                    )
        self._sizes = everyone[0][2]

    def _say(self, reducer: Reducer) -> None:
        if self.exchange.rank != 0 or not env.is_on(env.VERBOSE):
            return
        buckets = reducer.layout.buckets
        megabytes = sum(bucket.num_bytes for bucket in buckets) / 1e6
        plural = "" if len(buckets) == 1 else "s"
        log.say(
            f"gradients: {megabytes:.1f} MB in {len(buckets)} bucket{plural}, overlap "
            f"{'on' if self.overlap.on else 'off'} ({self.overlap.reason})",
            self.exchange.rank,
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


def group_indices(
    groups: int | Sequence[Sequence[torch.Tensor]] | None, params: Sequence[torch.Tensor]
) -> list[list[int]]:
    """Return the groups as positions in `params`; a number divides those that are trained evenly.

    >>> group_indices(2, [torch.nn.Parameter(torch.ones(1)) for _ in range(5)])
    [[0, 1, 2], [3, 4]]
    """
    if groups is None:
        return []
    if isinstance(groups, int):
        trained = [index for index, param in enumerate(params) if param.requires_grad]
        count = min(groups, len(trained))
        sizes = [len(trained) // count + (g < len(trained) % count) for g in range(count)]
        ends = list(itertools.accumulate(sizes))
        return [trained[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    places = {id(param): index for index, param in enumerate(params)}
    found = [[places[id(p)] for p in group if id(p) in places] for group in groups]
    return [group for group in found if group]


def choose(world: Any, wanted: str | None, *, on_device: bool = False) -> Overlap:
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
        on_device=on_device,
    )


def at_least(name: str, value: int, least: int) -> int:
    """Return `value`, or raise UsageError if it is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}, need a whole number of at least {least}")
    return value


def _check_groups(groups: Any) -> None:
    if groups is None:
        return
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, list | tuple) for group in groups
    ):
        raise UsageError(
            f"groups is {groups!r}; give a number above 0 or a list of lists of parameters"
        )
    seen: set[int] = set()
    for param in itertools.chain.from_iterable(groups):
        if not isinstance(param, torch.Tensor):
            raise UsageError(f"groups consist of parameters, got {type(param).__name__}")
        if id(param) in seen:
            raise UsageError(f"groups have a parameter of shape {tuple(param.shape)} twice")
        seen.add(id(param))


def _is_countable(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _check_parameter(name: str, param: torch.Tensor) -> None:
    """Raise if the gradient of `param` cannot be reduced."""
    if param.device.type not in ("cpu", "cuda") or param.layout != torch.strided:
        raise InvalidBufferError(
            f"parameter '{name}' is {param.layout} on {param.device}; only dense parameters on "
            "the CPU or a CUDA device are reduced"
        )
    if param.dtype not in DTYPES or not param.dtype.is_floating_point:
        raise InvalidBufferError(
            f"parameter '{name}' is {param.dtype}; gradients are reduced in float16, bfloat16, "
            "float32 and float64"
        )
    if has_owner(param):
        raise UsageError(f"parameter '{name}' belongs to another DistributedOptimizer already")
