"""Refuses requests that can never run, before other ranks hear of them."""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.engine.arithmetic import is_finite
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, Kind, Request
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.types import DType, Op

_REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCESCATTER)
_NO_SCALES = (1.0, 1.0)


def check(request: Request, parts: Sequence[Part], *, check_nan: bool) -> str:
    """Return what ``--check-nan`` has against the values, empty if nothing.

    Raises
    ------
    UsageError
        If there is not one part for each member.
    InvalidBufferError
        If the operation does not go with the type of a tensor.
    """
    if len(parts) != len(request.members):
        raise UsageError(
            f"'{request.name}' has {len(request.members)} members and {len(parts)} parts"
        )
    if request.kind not in _REDUCTIONS:
        return ""
    defect = ""
    for part in parts:
        source = part.source
        _check_arithmetic(request, source.dtype)
        is_checked = check_nan and source.dtype.is_float
        if is_checked and not is_finite(source.pointer, source.count, source.dtype):
            defect = "holds NaN or infinity"
    return defect


def _check_arithmetic(request: Request, dtype: DType) -> None:
    if request.op == ADASUM and not dtype.is_float:
        raise InvalidBufferError(
            f"{request.kind.label} '{request.name}': Adasum is for floats, not {dtype.label}"
        )
    if dtype is DType.BOOL and (request.op == Op.AVERAGE or request.scales != _NO_SCALES):
        raise InvalidBufferError(
            f"{request.kind.label} '{request.name}': bool has no averages or scales; convert it to"
            " a number"
        )
