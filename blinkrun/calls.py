"""From the arguments of a collective to a request for the executor, checked beforehand."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from blinkrun import buffers
from blinkrun.buffers import View, is_torch, view
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.executors.base import Request
from blinkrun.types import Collective, DType, Op, Rank

# To look up a member of an enumeration takes longer than what is done with it here.
_ALLTOALL, _BOOL = Collective.ALLTOALL, DType.BOOL
_DIVIDED = (Collective.REDUCESCATTER, _ALLTOALL)
_GATHERED = (Collective.ALLGATHER, _ALLTOALL)


def make_request(
    collective: Collective,
    array: Any,
    out: Any,
    *,
    size: int,
    op: Op = Op.SUM,
    root: Rank = 0,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Request:
    """Return the call of `collective` on `array` and `out`, the latter None if there is no result.

    On a device an `array` that is not contiguous is copied, in the order of its stream, unless it
    is `out` as well.

    Raises
    ------
    InvalidBufferError
        If a buffer cannot be used, or the two do not fit together.
    UsageError
        If root or operation do not exist.
    """
    name = collective.label
    check_root(root, size)
    given = _given(array, out, name)
    taken = given if out is array else None if out is None else view(out, f"{name}: out")
    op = _check_op(name, op, given.dtype, scales)
    count = _check_counts(collective, given, taken, size)
    stream = None if given.device is None else given.stream
    if taken is not None:
        if taken is not given and not (given.device is None and taken.device is None):
            _check_places(name, given, taken)
            stream = _stream_of(name, (array, given), (out, taken))
        _check_output(name, given, taken)
        if collective is _ALLTOALL and given.count and given.pointer == taken.pointer:
            given = view(_copy(array, given), name)
    return Request(
        collective,
        given.dtype,
        op,
        root,
        given.pointer,
        0 if taken is None else taken.pointer,
        count,
        float(scales[0]),
        float(scales[1]),
        (given.owner, out),
        stream,
        -1 if given.device is None else given.device,
    )


def barrier_request() -> Request:
    """Return the call that moves nothing."""
    return Request(Collective.BARRIER, DType.UINT8, Op.SUM, 0, 0, 0, 0, 1.0, 1.0)


def check_root(root: Rank, size: int) -> None:
    """Raise UsageError unless `root` is one of the ranks."""
    try:
        number = operator.index(root)
    except TypeError:
        raise UsageError(f"root {root!r} is no rank; give a whole number") from None
    if not 0 <= number < size:
        raise UsageError(f"root {root} is none of the ranks 0 to {size - 1}")


def _check_counts(collective: Collective, given: View, taken: View | None, size: int) -> int:
    """Return the elements of a block, or raise if the buffers do not fit together."""
    divided = collective in _DIVIDED
    if divided and given.count % size:
        raise InvalidBufferError(
            f"{collective.label}: array has {given.count} elements, no multiple of the {size} ranks"
        )
    count = given.count // size if divided else given.count
    expected = count * size if collective in _GATHERED else count
    if taken is not None and taken.count != expected:
        raise InvalidBufferError(
            f"{collective.label}: out has {taken.count} elements, needs {expected}"
        )
    return count


def _check_op(name: str, op: Op, dtype: DType, scales: tuple[float, float]) -> Op:
    if not isinstance(op, Op):
        try:
            op = Op(op)
        except ValueError:
            known = ", ".join(f"blinkrun.{each.name.capitalize()}" for each in Op)
            raise UsageError(f"{name}: {op!r} is no operation; use one of {known}") from None
    if dtype is _BOOL and (op is Op.AVERAGE or scales != (1.0, 1.0)):
        raise InvalidBufferError(f"{name}: bool has no averages or scales; convert it to a number")
    return op


def _check_output(name: str, given: View, taken: View) -> None:
    if not taken.writable:
        raise InvalidBufferError(f"{name}: out is read-only")
    if taken is given:
        return
    if taken.dtype is not given.dtype:
        raise InvalidBufferError(
            f"{name}: array is {given.dtype.label}, out is {taken.dtype.label}; they must agree"
        )
    given_bytes, taken_bytes = given.nbytes, taken.nbytes
    offset = given.pointer - taken.pointer
    if offset >= taken_bytes or -offset >= given_bytes or not (given_bytes and taken_bytes):
        return
    small, large = given_bytes, taken_bytes
    if small > large:
        small, large, offset = large, small, -offset
    if offset < 0 or offset % small or offset + small > large:
        raise InvalidBufferError(f"{name}: array and out overlap without being the same memory")


def _check_places(name: str, given: View, taken: View) -> None:
    """Raise unless both are on one device, or both on the host."""
    if given.device != taken.device:
        raise InvalidBufferError(
            f"{name}: array is {_place(given)}, out is {_place(taken)}; both must be on one device"
        )


def _stream_of(name: str, given: tuple[Any, View], taken: tuple[Any, View]) -> int:
    """Return the stream in whose order both arrays (with their views) are used."""
    (array, source), (out, target) = given, taken
    if source.stream == target.stream or buffers.is_in_no_stream(out):
        return source.stream
    if buffers.is_in_no_stream(array):
        return target.stream
    raise InvalidBufferError(
        f"{name}: array is used in stream {source.stream:#x}, out in stream {target.stream:#x};"
        " both must be in the order of one stream"
    )


def _place(found: View) -> str:
    return "memory of the host" if found.device is None else f"on device {found.device}"


def _given(array: Any, out: Any, name: str) -> View:
    """Return the memory of `array`; of a copy if it is on a device, not contiguous, not `out`."""
    try:
        return view(array, f"{name}: array")
    except InvalidBufferError:
        if buffers.device_of(array) is None or buffers.is_packed(array):
            raise
    if out is array:
        raise InvalidBufferError(
            f"{name}: array is not contiguous and cannot be worked on in place; pass"
            " .contiguous() of it, or another out"
        )
    return view(buffers.packed_copy(array), f"{name}: array")


def _copy(array: Any, given: View) -> Any:
    if given.device is not None:
        return buffers.packed_copy(array)
    return array.clone() if is_torch(array) else np.array(array, copy=True)
