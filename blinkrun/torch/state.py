"""Give every rank what one rank has: parameters, optimizer state, Python objects.

Tensors travel as bytes, so every dtype works; small ones are joined, so that a model with
hundreds of buffers takes a handful of broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

import blinkrun
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch.agree import check_alike, describe
from blinkrun.torch.ops import _root

_JOINED_BYTES = 16 << 20  # tensors below this travel together, in pieces of at most this size


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of `root_rank` on every rank; it is pickled, so keep it small.

    Parameters
    ----------
    obj : any picklable object
        What `root_rank` sends; ignored on other ranks.
    root_rank : int, default 0
        The rank that sends.
    name : str, optional
        Accepted for Horovod scripts.
    """
    return blinkrun.world().broadcast_object(obj, root=_root(root_rank))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks in rank order, on every rank; they are pickled."""
    return list(blinkrun.world().allgather_object(obj))


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0
) -> None:
    """Give all parameters and buffers the values that they have on `root_rank`.

    Parameters
    ----------
    params : mapping or iterable of (name, value)
        ``model.state_dict()`` or ``model.named_parameters()``. Tensors of any dtype, contiguous
        or not, are overwritten in place. Values that are no tensors (numbers, strings, None) are
        replaced if `params` is a mutable mapping.
    root_rank : int, default 0
        The rank whose values count.

    Raises
    ------
    MismatchError
        If a rank has other names, shapes or dtypes; raised on every rank, nothing is changed.
    UsageError
        If an iterable has a value that is no tensor and so cannot be replaced.
    """
    items = _named_values(params)
    check_alike([(name, describe(value)) for name, value in items])
    root = _root(root_rank)
    _broadcast_tensors([value for _, value in items if isinstance(value, torch.Tensor)], root)
    plain = {name: value for name, value in items if not isinstance(value, torch.Tensor)}
    if plain:
        plain = broadcast_object(plain, root)
        if isinstance(params, MutableMapping):
            params.update(plain)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give `optimizer` the state and the hyperparameters that it has on `root_rank`.

    Works for any optimizer, also when only some ranks have state (a checkpoint loaded on one
    rank): the others are given all of it, and a rank that has state which the root has not loses
    it. Parameter groups must have as many parameters on every rank.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Plain or wrapped by `DistributedOptimizer`.
    root_rank : int, default 0
        The rank whose state counts.
    """
    root = _root(root_rank)
    is_root = blinkrun.world().rank == root
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root)
    if not is_root:
        state = _with_tensors(skeleton, tensors)
    _broadcast_tensors(tensors, root)
    if not is_root:
        optimizer.load_state_dict(state)


def _named_values(params: Any) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of `params`, checked."""
    items = list(params.items() if isinstance(params, Mapping) else params)
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2):
            raise UsageError(
                "broadcast_parameters takes a state_dict or named_parameters(), got an item of "
                f"type {type(item).__name__}"
            )
        name, value = item
        if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
            raise UsageError(f"parameter '{name}' has no shape yet; run the model once before")
        if isinstance(value, torch.Tensor):
            _check_layout(name, value)
        elif not isinstance(params, MutableMapping):
            raise UsageError(
                f"'{name}' is no tensor but {type(value).__name__}; give a state_dict, in which "
                "it can be replaced"
            )
    return items


def _check_layout(name: str, value: torch.Tensor) -> None:
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise InvalidBufferError(
            f"'{name}' is sparse, quantized or on the meta device; only dense tensors with "
            "memory can be broadcast"
        )


def _broadcast_tensors(tensors: list[torch.Tensor], root: int) -> None:
    """Broadcast dense tensors of any dtype and device in place, small ones joined."""
    joined: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes > _JOINED_BYTES:
            _broadcast_joined([tensor], root)
            continue
        if filled + num_bytes > _JOINED_BYTES:
            _broadcast_joined(joined, root)
            joined, filled = [], 0
        joined.append(tensor)
        filled += num_bytes
    _broadcast_joined(joined, root)


@torch.no_grad()
def _broadcast_joined(tensors: list[torch.Tensor], root: int) -> None:
    """Broadcast the bytes of `tensors` in one call and write them back."""
    tensors = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not tensors:
        return
    world = blinkrun.world()
    parts = [_as_bytes(tensor) for tensor in tensors]
    line = parts[0] if len(parts) == 1 else torch.cat(parts)
    world.broadcast(line, root=root, out=line)
    if world.rank == root:
        return
    for tensor, part in zip(tensors, line.split([len(part) for part in parts]), strict=True):
        if part.data_ptr() != tensor.data_ptr():
            values = part.clone().view(tensor.dtype).view(tensor.shape)  # a clone is aligned
            tensor.copy_(values)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of `tensor` in order as bytes, without a copy if it lies so."""
    packed = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    return packed.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _TensorHole:
    """Where a tensor was taken out of a state_dict."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with a hole for each tensor in it, which go to `tensors` in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorHole(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_without_tensors(item, tensors) for item in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with a new tensor in each hole, which go to `tensors` in order."""
    if isinstance(value, _TensorHole):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value
