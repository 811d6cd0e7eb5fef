"""Collectives on torch tensors, for Keras' torch backend; not differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blinkrun.adapter.operations import op_of
from blinkrun.adapter.process_sets import checked_root
from blinkrun.adapter.where import caller
from blinkrun.buffers import View, view
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import WORLD, Kind, Member, Request


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
        torch.empty_like(sent, memory_format=torch.contiguous_format),
        op=op,
        scales=(prescale_factor, postscale_factor),
    )
    return compression.decompress(result, context)


def allgather(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """Return the rows of all ranks."""
    rows = tensor.detach()
    return _run(Kind.ALLGATHER, name, rows.reshape(1) if rows.dim() == 0 else rows, None)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
    """Return the values of one rank."""
    given = tensor.detach()
    return _run(Kind.BROADCAST, name, given, torch.empty_like(given), root=checked_root(root_rank))


def reducescatter(tensor: torch.Tensor, name: str | None, op: int) -> torch.Tensor:
    """Return this rank's rows of a reduced tensor."""
    return _run(Kind.REDUCESCATTER, name, tensor.detach(), None, op=op_of(op, None))


def _run(  # noqa: PLR0913
    kind: Kind,
    name: str | None,
    tensor: torch.Tensor,
    result: torch.Tensor | None,
    *,
    op: int = 0,
    root: int = -1,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Any:
    current = engine.current()
    what = f"{kind.label} of '{name}'" if name else kind.label
    source = view(tensor.contiguous(), what)
    target = None if result is None else view(result, what)
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
    return handle.targets[0].owner


def _maker(dtype: torch.dtype, what: str) -> Callable[[tuple[int, ...]], View]:
    """Return what makes the memory of a result whose shape the engine finds out."""
    return lambda shape: view(torch.empty(shape, dtype=dtype), what)
