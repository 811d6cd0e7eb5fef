"""Check that all ranks have the same parameters, and say which one differs and where."""

from __future__ import annotations

from typing import Any

import torch

from blinkrun.adapter.objects import allgather_object
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine.request import CPU, CUDA
from blinkrun.errors import MismatchError
from blinkrun.torch import devices

_ADVICE = "every rank must build the same model"


def describe(value: Any) -> str:
    """Return dtype, shape and kind of device of a tensor in words; the CPU goes without saying."""
    if not isinstance(value, torch.Tensor):
        return "no tensor"
    kind = value.device.type if devices.index_of(value) is None else CUDA
    where = "" if kind == CPU else f" on {kind}"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{where}"


def check_alike(
    parameters: list[tuple[str, str]], process_set: ProcessSet = global_process_set
) -> None:
    """Raise on every rank of a process set if one has another list of (name, description).

    Raises
    ------
    MismatchError
        Names a rank and the first parameter that differs between it and this rank.
    """
    everyone = dict(
        zip(process_set.ranks, allgather_object(parameters, process_set=process_set), strict=True)
    )
    me = process_set.ranks[process_set.rank()]
    for other, theirs in everyone.items():
        if theirs != parameters:
            raise MismatchError(
                first_difference(other, theirs, me, parameters),
                {rank: f"{len(theirs)} parameters" for rank, theirs in everyone.items()},
            )


def first_difference(
    other: int, theirs: list[tuple[str, str]], me: int, mine: list[tuple[str, str]]
) -> str:
    """Return a line that names the first parameter in which the lists of two ranks differ.

    >>> print(first_difference(1, [("v", "int8 ()")], 0, [("w", "int8 ()")]))
    rank 1 has parameter 'v' where rank 0 has 'w'; every rank must build the same model
    """
    for (their_name, their_kind), (my_name, my_kind) in zip(theirs, mine, strict=False):
        if their_name != my_name:
            return (
                f"rank {other} has parameter '{their_name}' where rank {me} has '{my_name}'; "
                f"{_ADVICE}"
            )
        if their_kind != my_kind:
            return (
                f"rank {other}: parameter '{my_name}' is {their_kind}, rank {me} has {my_kind}; "
                f"{_ADVICE}"
            )
    longer, names = (other, theirs) if len(theirs) > len(mine) else (me, mine)
    return (
        f"rank {other} has {len(theirs)} parameters, rank {me} has {len(mine)}; only rank "
        f"{longer} has '{names[min(len(theirs), len(mine))][0]}'; {_ADVICE}"
    )
