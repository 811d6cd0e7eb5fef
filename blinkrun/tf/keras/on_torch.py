"""What there is for Keras' torch backend: its gradients, compressors, collectives on its tensors.

The only module here that imports torch, and it imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from blinkrun.adapter.gradients import Gradient, Gradients
from blinkrun.adapter.operations import op_of
from blinkrun.adapter.process_sets import checked_root
from blinkrun.adapter.where import caller
from blinkrun.buffers import View, view
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import WORLD, Kind, Member, Request
from blinkrun.tf.keras.settings import Settings, group_places

_ABSENT = "None"


class Reducer:
    """Reduces the gradients of one optimizer.

    Parameters
    ----------
    settings : Settings
        How.
    owner : str
        What the names of its requests begin with; the same on all ranks.
    """

    def __init__(self, settings: Settings, owner: str) -> None:
        self._settings = settings
        self._owner = owner
        self._owners: dict[tuple[str, ...], str] = {}
        self._made: dict[tuple[Any, ...], Gradients] = {}

    @torch.no_grad()
    def reduce(
        self, grads: Sequence[Any], names: tuple[str, ...], variables: Sequence[Any]
    ) -> list[Any]:
        """Return gradients of variables reduced over the ranks; None stays None."""
        results: list[Any] = list(grads)
        compression = self._settings.compression
        places = tuple(i for i, grad in enumerate(grads) if grad is not None)
        sent = [compression.compress(_dense(grads[i])) for i in places]
        values = [
            view(tensor.contiguous(), names[i]) for i, (tensor, _) in zip(places, sent, strict=True)
        ]
        key = (names, places)
        if key not in self._made:
            self._made[key] = self._gradients(values, names, places, variables)
        if any(value.device is not None for value in values):
            reduced = _on_device(self._made[key], values)
        else:
            reduced = [_tensor(array) for array in self._made[key].reduce(values)]
        for i, tensor, (_, context) in zip(places, reduced, sent, strict=True):
            results[i] = compression.decompress(tensor, context)
        return results

    @staticmethod
    def divided(grad: Any, by: int) -> Any:
        """Return a gradient divided by a number; None stays None."""
        return None if grad is None else grad / by

    def _gradients(
        self,
        values: Sequence[Any],
        names: tuple[str, ...],
        places: Sequence[int],
        variables: Sequence[Any],
    ) -> Gradients:
        owner = self._owners.setdefault(names, f"{self._owner}.{len(self._owners)}")
        gradients = [
            Gradient(names[i], value.dtype, value.shape)
            for i, value in zip(places, values, strict=True)
        ]
        facts = [(name, _ABSENT) for name in names]
        for i, each in zip(places, gradients, strict=True):
            facts[i] = (each.name, each.describe())
        return Gradients(
            gradients,
            owner=owner,
            process_set=self._settings.process_set,
            op=self._settings.op,
            scales=self._settings.scales,
            bucket_bytes=self._settings.bucket_bytes,
            groups=group_places(self._settings.groups, [variables[i] for i in places]),
            facts=facts,
        )


def _dense(grad: Any) -> Any:
    return grad if grad.layout is torch.strided else grad.to_dense()


def _on_device(gradients: Gradients, values: Sequence[View]) -> list[torch.Tensor]:
    """Return gradients on a device reduced: all in one request, which the engine fuses."""
    results = [torch.empty_like(value.owner) for value in values]
    targets = [view(result, gradients.owner) for result in results]
    is_written = gradients.reduce_on_device(values, targets)
    return results if is_written else [value.owner for value in values]


def _tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


# ---- compressors -------------------------------------------------------------------------------


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        """Return `tensor` itself."""
        return tensor


class _Narrow:
    """Converts floating-point tensors wider than `dtype` to it; others stay as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return `tensor` in the 16-bit type, and its own dtype; None if it was left alone."""
        if not tensor.is_floating_point() or tensor.dtype.itemsize <= cls.dtype.itemsize:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return `tensor` in the dtype that it had."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Narrow):
    """Half the bytes of float32; the range ends at 65504, also for the sum over ranks."""

    dtype = torch.float16


class BF16Compressor(_Narrow):
    """Half the bytes of float32 with its range, and 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


# ---- collectives, not differentiable -----------------------------------------------------------


def allreduce(  # noqa: PLR0913
    tensor: torch.Tensor,
    *,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    op: int | None,
    compression: Any,
) -> torch.Tensor:
    """Return a tensor reduced over all ranks."""
    op = op_of(op, average)
    sent, context = compression.compress(tensor.detach())
    result = _run(
        Kind.ALLREDUCE,
        name,
        sent,
        is_alike=True,
        op=op,
        scales=(prescale_factor, postscale_factor),
    )
    return compression.decompress(result, context)


def allgather(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """Return the rows of all ranks."""
    rows = tensor.detach()
    return _run(Kind.ALLGATHER, name, rows.reshape(1) if rows.dim() == 0 else rows)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
    """Return the values of one rank."""
    root = checked_root(root_rank)
    return _run(Kind.BROADCAST, name, tensor.detach(), is_alike=True, root=root)


def reducescatter(tensor: torch.Tensor, name: str | None, op: int) -> torch.Tensor:
    """Return this rank's rows of a reduced tensor."""
    return _run(Kind.REDUCESCATTER, name, tensor.detach(), op=op_of(op, None))


def _run(  # noqa: PLR0913
    kind: Kind,
    name: str | None,
    tensor: torch.Tensor,
    *,
    is_alike: bool = False,
    op: int = 0,
    root: int = -1,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Any:
    current = engine.current()
    what = f"{kind.label} of '{name}'" if name else kind.label
    given = tensor.cpu().contiguous()  # a tensor on a device goes by way of the host
    source = view(given, what)
    target = view(torch.empty_like(given), what) if is_alike else None
    request = Request(
        name or current.next_name(kind.label),
        kind,
        (Member(source.dtype, source.shape),),
        WORLD,
        op,
        root,
        scales,
        where=caller(),
    )
    handle = current.submit(request, [Part(source, target, _maker(tensor.dtype, what))], sync=True)
    handle.wait()
    return handle.targets[0].owner.to(tensor.device)


def _maker(dtype: torch.dtype, what: str) -> Callable[[tuple[int, ...]], View]:
    """Return what makes the memory of a result whose shape the engine finds out."""
    return lambda shape: view(torch.empty(shape, dtype=dtype), what)
