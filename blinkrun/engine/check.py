"""Refuses requests that can never run, before other ranks hear of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blinkrun.buffers import View
from blinkrun.engine.arithmetic import is_own
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, Kind, Request
from blinkrun.engine.transfer import rows
from blinkrun.errors import InvalidBufferError, NotSupportedError, UsageError
from blinkrun.types import DType, Op

_REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCESCATTER)
_SAME_SHAPE = (Kind.ALLREDUCE, Kind.BROADCAST)
_OPS = {Kind.ALLREDUCE: (*Op, ADASUM), Kind.REDUCESCATTER: tuple(Op)}
_NO_SCALES = (1.0, 1.0)


def check(
    request: Request,
    parts: Sequence[Part],
    *,
    size: int,
    is_finite: Callable[[View], bool] | None = None,
) -> str:
    """Return what ``--check-nan`` has against the values, empty if nothing.

    Parameters
    ----------
    size : int
        Ranks of the process set.
    is_finite : callable, optional
        Whether values hold neither NaN nor infinity; given with ``--check-nan``.

    Raises
    ------
    UsageError
        If there is not one part for each member.
    InvalidBufferError
        If the operation does not go with the type of a tensor, or the splits with its rows.
    NotSupportedError
        If the operation is not there for the memory of a device.
    """
    if len(parts) != len(request.members):
        raise UsageError(
            f"'{request.name}' has {len(request.members)} members and {len(parts)} parts"
        )
    if request.kind in _SAME_SHAPE:
        for part in parts:
            _check_target(request, part)
    if request.kind is Kind.ALLTOALL:
        for part in parts:
            _check_splits(request, rows(part.source.shape), size)
    if request.kind not in _REDUCTIONS:
        return ""
    if request.op not in _OPS[request.kind]:
        raise UsageError(f"{request.kind.label} '{request.name}' has no operation {request.op}")
    defect = ""
    for part in parts:
        source = part.source
        _check_arithmetic(request, source.dtype)
        if source.device is not None:
            _check_on_device(request, source.dtype)
        if is_finite is not None and source.dtype.is_float and not is_finite(source):
            defect = "holds NaN or infinity, which --check-nan (BLINKRUN_CHECK_NAN) refuses"
    return defect


def _check_target(request: Request, part: Part) -> None:
    source, target = part.source, part.target
    if target is source:
        return
    fits = target is not None and (target.count, target.dtype) == (source.count, source.dtype)
    if target is not None and fits and target.writable and target.device == source.device:
        return
    what = f"{request.kind.label} '{request.name}'"  # which takes longer than the checks
    if target is None:
        raise UsageError(f"{what} has no target; its shape is known from the start")
    if not fits:
        raise InvalidBufferError(
            f"{what}: the target holds {target.count} {target.dtype.label}, the source"
            f" {source.count} {source.dtype.label}; they must agree"
        )
    if target.device != source.device:
        raise InvalidBufferError(
            f"{what}: source and target must be both on the host or both on one device"
        )
    raise InvalidBufferError(f"{what}: the target is read-only")


def _check_splits(request: Request, num_rows: int, size: int) -> None:
    name, splits = request.name, request.splits
    if not splits and num_rows % size:
        raise InvalidBufferError(
            f"alltoall '{name}': {num_rows} rows do not divide evenly among {size} ranks; give"
            " splits"
        )
    if splits and len(splits) != size:
        raise InvalidBufferError(
            f"alltoall '{name}': {len(splits)} splits for {size} ranks; give one for each"
        )
    if splits and (min(splits) < 0 or sum(splits) != num_rows):
        raise InvalidBufferError(
            f"alltoall '{name}': splits {list(splits)} make {sum(splits)} rows, the tensor has"
            f" {num_rows}; they must add up to it, none below 0"
        )


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


def _check_on_device(request: Request, dtype: DType) -> None:
    what = f"{request.kind.label} '{request.name}'"
    if request.op == ADASUM:
        raise NotSupportedError(
            f"{what}: Adasum is not there for memory of a device; give the tensor on the CPU"
        )
    if is_own(request.op, dtype, request.scales):
        raise NotSupportedError(
            f"{what}: averages and scales of {dtype.label} are not there for memory of a device;"
            " use op=Sum and divide, or give floats"
        )
