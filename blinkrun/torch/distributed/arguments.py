"""What torch passes to a process group, in the forms that its versions and callers use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from blinkrun.calls import check_root
from blinkrun.errors import InvalidBufferError
from blinkrun.torch.distributed.calls import checked
from blinkrun.types import Rank

_TORCH_FILE = os.path.join(os.path.dirname(torch.distributed.__file__), "distributed_c10d.py")


def is_within(name: str) -> bool:
    """Whether torch's blocking ``send`` or ``recv`` asks, and not a script that goes on."""
    frame: Any = sys._getframe(1)
    for _ in range(5):  # the method here, isend or irecv, wrappers of torch
        frame = frame.f_back
        if frame is None:
            return False
        if frame.f_code.co_name == name and frame.f_code.co_filename == _TORCH_FILE:
            return True
    return False


def op_of(opts: Any) -> Any:
    """Return the `ReduceOp` of options, or of a call that gives it in their place."""
    if opts is None:
        return ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def options_and_root(args: Sequence[Any], kwargs: dict[str, Any], size: int) -> tuple[Any, Rank]:
    """Return the options and the root of a call that torch makes with either.

    Raises
    ------
    UsageError
        If no rank of `size` has that number.
    """
    given = args[0] if args else kwargs.get("opts", kwargs.get("root"))
    if given is None:
        return None, 0
    opts = None if isinstance(given, int) else given
    root = given if opts is None else opts.rootRank
    check_root(root, size)
    return opts, root


def as_list(tensors: Any) -> list[torch.Tensor]:
    """Return a list of what may be one tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def only_one(tensors: Any, what: str) -> torch.Tensor:
    """Return the only tensor: lists are from the time of several devices in a process."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidBufferError(f"{what}: one tensor per rank, got a list of {len(tensors)}")
    return tensors[0]  # type: ignore[no-any-return]


def inner_list(tensors: Any, what: str) -> list[torch.Tensor]:
    """Return a list of tensors that may be in a list of its own."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        if len(tensors) != 1:
            raise InvalidBufferError(f"{what}: one list per rank, got {len(tensors)}")
        tensors = tensors[0]
    return [checked(each, what) for each in tensors]


def pairs_of(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], what: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return outputs and inputs of a coalesced call, pair by pair."""
    if len(outputs) != len(inputs):
        raise InvalidBufferError(f"{what}: {len(outputs)} outputs for {len(inputs)} inputs")
    return [
        (checked(output, what), checked(source, what))
        for output, source in zip(outputs, inputs, strict=True)
    ]


def split_rows(
    tensor: torch.Tensor, splits: Sequence[int], size: int, name: str
) -> list[torch.Tensor]:
    """Return the rows of `tensor` for each rank; without splits all ranks get as many."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise InvalidBufferError(
                f"all_to_all_single: {name} has {rows} rows, no multiple of the {size} ranks; give"
                " its split sizes"
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise InvalidBufferError(
            f"all_to_all_single: {name} splits {list(splits)} must be {size} numbers that sum to"
            f" the {rows} rows"
        )
    return list((tensor if tensor.dim() else tensor.view(1)).split(list(splits)))
