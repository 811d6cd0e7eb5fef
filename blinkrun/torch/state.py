"""Give every rank what one rank has: parameters and optimizer state.

Tensors travel as bytes, so every dtype works; small ones are joined, so that a model with
hundreds of buffers takes a handful of broadcasts. Those on a CUDA device travel there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

import blinkrun
from blinkrun.adapter.objects import broadcast_object
from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch import devices
from blinkrun.torch.agree import check_alike, describe
from blinkrun.torch.ops_gather import broadcast_

_JOINED_BYTES = 16 << 20  # tensors below this travel together, in pieces of at most this size


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]] | Iterable[torch.Tensor],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give all parameters and buffers the values that they have on `root_rank`.

    Parameters
    ----------
    params : mapping or iterable of (name, value), or of tensors
        ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``. Tensors of
        any dtype, contiguous or not, are overwritten in place, where they are: on the CPU or a
        CUDA device, alike on all ranks. Values that are no tensors
        (numbers, strings, None) are replaced if `params` is a mutable mapping. Mappings may have
        their names in any order, iterables have the same on every rank.
    root_rank : int, default 0
        The rank whose values count, as a rank of the job.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    MismatchError
        If a rank has other names, shapes or dtypes; raised on every rank, nothing is changed.
    UsageError
        If an iterable has a value that is no tensor and so cannot be replaced.
    """
    items = _named_values(params)
    root = checked_root(root_rank, process_set)
    check_alike([(name, describe(value)) for name, value in items], process_set)
    tensors = [value for _, value in items if isinstance(value, torch.Tensor)]
    _broadcast_tensors(tensors, root, process_set)
    plain = {name: value for name, value in items if not isinstance(value, torch.Tensor)}
    if plain:
        plain = broadcast_object(plain, root, process_set=process_set)
        if isinstance(params, MutableMapping):
            params.update(plain)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give `optimizer` the state and the hyperparameters that it has on `root_rank`.

    Works for any optimizer, also when only some ranks have state (a checkpoint loaded on one
    rank): the others are given all of it, and a rank that has state which the root has not loses
    it. Parameter groups must have as many parameters on every rank.

    If the root has no state yet, parameters that require a gradient and have none are given one of
    zeros, as Horovod leaves them.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Plain or wrapped by `DistributedOptimizer`.
    root_rank : int, default 0
        The rank whose state counts, as a rank of the job.
    model : torch.nn.Module, optional
        Accepted for Horovod scripts: sparse parameters need no special care.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    """
    root = checked_root(root_rank, process_set)
    is_root = blinkrun.rank() == root
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root, process_set=process_set)
    if not is_root:
        state = _with_tensors(skeleton, tensors, _device_of(optimizer))
    _broadcast_tensors(tensors, root, process_set)
    if not is_root:
        optimizer.load_state_dict(state)
    if not skeleton["state"]:
        _make_gradients(optimizer)


def _make_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad and param.grad is None and param.layout == torch.strided:
                param.grad = torch.zeros_like(param)


def _named_values(params: Any) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of `params`, checked; those of a mapping by name."""
    if isinstance(params, Mapping):
        items = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise UsageError(
            "broadcast_parameters takes a state_dict, named_parameters() or parameters(), got "
            f"{type(params).__name__}"
        )
    else:
        items = [
            (f"parameter {index}", item) if isinstance(item, torch.Tensor) else item
            for index, item in enumerate(params)
        ]
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2):
            raise UsageError(
                "broadcast_parameters takes a state_dict, named_parameters() or parameters(), got "
                f"an item of type {type(item).__name__}"
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


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return where the first parameter on a device is; the CPU if none is on one."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    found = (param.device for param in params if devices.index_of(param) is not None)
    return next(found, torch.device("cpu"))


def _broadcast_tensors(tensors: list[torch.Tensor], root: int, process_set: ProcessSet) -> None:
    """Broadcast dense tensors of any dtype and device in place, small ones of a place joined."""
    places: dict[int, list[torch.Tensor]] = {-1: []}
    for tensor in tensors:
        index = devices.index_of(tensor)
        places.setdefault(-1 if index is None else index, []).append(tensor)
    for _, those in sorted(places.items()):
        _broadcast_place(those, root, process_set)


def _broadcast_place(tensors: list[torch.Tensor], root: int, process_set: ProcessSet) -> None:
    joined: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes > _JOINED_BYTES:
            _broadcast_joined([tensor], root, process_set)
            continue
        if filled + num_bytes > _JOINED_BYTES:
            _broadcast_joined(joined, root, process_set)
            joined, filled = [], 0
        joined.append(tensor)
        filled += num_bytes
    _broadcast_joined(joined, root, process_set)


@torch.no_grad()
def _broadcast_joined(tensors: list[torch.Tensor], root: int, process_set: ProcessSet) -> None:
    """Broadcast the bytes of `tensors` in one call and write them back."""
    tensors = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not tensors:
        return
    parts = [_as_bytes(tensor) for tensor in tensors]
    line = parts[0] if len(parts) == 1 else torch.cat(parts)
    broadcast_(line, root, process_set=process_set)
    if blinkrun.rank() == root:
        return
    for tensor, part in zip(tensors, line.split([len(part) for part in parts]), strict=True):
        if part.data_ptr() != tensor.data_ptr():
            values = part.clone().view(tensor.dtype).view(tensor.shape)  # a clone is aligned
            tensor.copy_(values)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of `tensor` in order as bytes, without a copy if it lies so."""
    packed = tensor if tensor.is_cuda else tensor.cpu()
    packed = packed.contiguous().resolve_conj().resolve_neg()
    return packed.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _TensorHole:
    """Where a tensor was taken out of a state_dict."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_device: bool


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with a hole for each tensor in it, which go to `tensors` in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorHole(tuple(value.shape), value.dtype, devices.index_of(value) is not None)
    if isinstance(value, dict):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_without_tensors(item, tensors) for item in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Return `value` with a new tensor in each hole, which go to `tensors` in order."""
    if isinstance(value, _TensorHole):
        where = device if value.is_on_device else None
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=where))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors, device) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_with_tensors(item, tensors, device) for item in value)
    return value
