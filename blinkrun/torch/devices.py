"""Tensors on CUDA devices: where they are, in which stream they are used, and what waits for them.

All that the adapter asks of ``torch.cuda`` is here and in `blinkrun.buffers`. Nothing here waits
for a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from blinkrun import buffers
from blinkrun.engine import engine
from blinkrun.engine.handle import Handle
from blinkrun.engine.request import Kind
from blinkrun.errors import InvalidBufferError

_MADE_BY_ENGINE = (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER)


def index_of(tensor: torch.Tensor) -> int | None:
    """Return the number of the device that holds `tensor`; None for memory of the host."""
    return None if tensor.is_cpu else buffers.device_of(tensor)


def index_of_all(named: Iterable[tuple[str, torch.Tensor]]) -> int | None:
    """Return the device that holds all tensors of (name, tensor); None for memory of the host.

    Raises
    ------
    InvalidBufferError
        If they are in different places; names two of them.
    """
    first: tuple[str, int | None] | None = None
    for name, tensor in named:
        index = index_of(tensor)
        if first is None:
            first = name, index
        elif index != first[1]:
            way = "a rank uses one device, so move them to one"
            if None in (first[1], index):
                way = "move all of them to one place, or wrap an optimizer for each place"
            raise InvalidBufferError(
                f"parameter '{first[0]}' is on {place(first[1])}, '{name}' on {place(index)}; {way}"
            )
    return None if first is None else first[1]


def place(index: int | None) -> str:
    """Return what messages call a place.

    >>> place(1), place(None)
    ('cuda:1', 'the CPU')
    """
    return "the CPU" if index is None else f"cuda:{index}"


def view_at(tensor: torch.Tensor) -> tuple[int | None, int]:
    """Return the device of `tensor`, and the stream in whose order it is used now."""
    index = index_of(tensor)
    return index, 0 if index is None else buffers.stream_of(tensor)


def follow(pending: Handle) -> None:
    """Let the current stream go on only after the results of a request that is done."""
    passage = pending.passage
    if passage is None or pending.error is not None:
        return
    owners = [view.owner for view in pending.targets]
    stream = buffers.stream_of(owners[0])
    pending.wait_on(stream)
    if stream not in passage.streams or pending.request.kind in _MADE_BY_ENGINE:
        for owner in owners:
            buffers.record_stream(owner, stream)


def make(shape: Sequence[int], dtype: torch.dtype, index: int) -> torch.Tensor:
    """Return a new tensor that the engine's stream uses first."""
    own = torch.cuda.ExternalStream(engine.current().devices.lane(index).stream, device=index)
    # The device first: torch.cuda.stream alone would make a context on the one that was current.
    with torch.cuda.device(index), torch.cuda.stream(own):
        return torch.empty(shape, dtype=dtype, device=torch.device("cuda", index))


def plain_bytes(num_bytes: int, index: int) -> torch.Tensor:
    """Return bytes of a device outside of its arena."""
    return torch.empty(num_bytes, dtype=torch.uint8, device=torch.device("cuda", index))


def as_tensor(memory: Any, index: int) -> torch.Tensor:
    """Return bytes of a device's arena as a tensor of uint8 that keeps them alive."""
    return torch.as_tensor(memory, device=torch.device("cuda", index))
