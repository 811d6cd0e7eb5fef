"""Collectives on addresses, with the element types of NCCL that the core does not have."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun import buffers
from blinkrun.communicator import Communicator
from blinkrun.executors.base import Request
from blinkrun.nccl.constants import ElementType
from blinkrun.nccl.status import Status, refused
from blinkrun.types import Collective, Op, Rank

_REDUCING = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)
DEFAULT_STREAMS = (0, 1, 2)  # null, legacy and per-thread


@dataclass(frozen=True, slots=True)
class Place:
    """Where the buffers of a call are; `device` is None for memory of the host."""

    device: int | None = None
    stream: int = 0


HOST = Place()


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, checked; `count` is of the smaller of the two buffers, in elements."""

    collective: Collective
    send: int
    recv: int
    count: int
    element: ElementType
    op: Op
    root: Rank
    place: Place


def check_count(count: int) -> int:
    """Return `count`; raises NcclError (invalid argument) if nothing can have it."""
    if not 0 <= count < 2**63:
        raise refused(Status.INVALID_ARGUMENT, f"count is {count}, need 0 or more")
    return count


def check_rank(rank: Rank, size: int, what: str) -> Rank:
    """Return `rank`; raises NcclError (invalid argument) unless it is one of `size`."""
    if not 0 <= rank < size:
        raise refused(
            Status.INVALID_ARGUMENT, f"{what} {rank} is none of the ranks 0 to {size - 1}"
        )
    return rank


def check_pointer(pointer: int, count: int, what: str) -> int:
    """Return `pointer`; raises NcclError (invalid argument) if it is null with elements."""
    if count and not pointer:
        raise refused(Status.INVALID_ARGUMENT, f"{what} is null, but count is {count}")
    return pointer


def place_of(pointers: Sequence[int], stream: int | None, joined: int | None) -> Place:
    """Return where the buffers of a call are.

    Parameters
    ----------
    pointers : sequence of int
        Of the buffers that this rank gives or takes; empty if it moves nothing.
    stream : int or None
        As the caller gave it.
    joined : int or None
        The device on which the communicator has run calls: that of one that moves nothing.

    Raises
    ------
    NcclError
        Invalid argument, if not all are on one device or on the host, or if memory of the host
        comes with a stream: to accept that would be to break the order of its work.
    """
    if not pointers and joined is None:
        return HOST  # nothing moves, so that no stream's order can be broken
    found = [buffers.device_at(pointer) for pointer in pointers] or [joined]
    if len(set(found)) > 1:
        places = " and ".join("the host" if one is None else f"device {one}" for one in found)
        raise refused(Status.INVALID_ARGUMENT, f"buffers are in memory of {places}, need one")
    (device,) = set(found)
    if device is not None:
        return Place(device, 0 if stream in (None, 1) else int(stream or 0))
    if stream not in (None, *DEFAULT_STREAMS):
        raise refused(
            Status.INVALID_ARGUMENT,
            f"stream is {stream:#x}, but the buffers are memory of the host, which moves in the"
            " calling thread; pass 0 (the null stream)",
        )
    return HOST


def run(communicator: Communicator, call: Call) -> None:
    """Carry out `call` in this thread; one on a device is put into its stream."""
    integral = not call.element.dtype.is_float
    if call.collective not in _REDUCING or not integral or call.place.device is not None:
        _run(communicator, call, call.op)
    elif call.op is Op.AVERAGE:
        _run(communicator, call, Op.SUM)
        _divide(_result(communicator, call), communicator.size)
    elif call.op in (Op.MIN, Op.MAX) and call.element.is_wide_unsigned:
        _run_biased(communicator, call)
    else:
        _run(communicator, call, call.op)


def check_device_can(collective: Collective, element: ElementType, op: Op) -> None:
    """Raise NcclError (invalid argument) for a reduction that only the host has."""
    if collective not in _REDUCING or element.dtype.is_float:
        return
    if op is Op.AVERAGE or (op in (Op.MIN, Op.MAX) and element.is_wide_unsigned):
        raise refused(
            Status.INVALID_ARGUMENT,
            f"{op.name.lower()} of {element.name} is not there on devices; use"
            + (" a sum and divide it" if op is Op.AVERAGE else " a signed type or floats"),
        )


def check_aligned(pointers: Sequence[int], element: ElementType) -> None:
    """Raise NcclError (invalid argument) unless a device can read elements there."""
    for pointer in pointers:
        if pointer % element.dtype.itemsize:
            raise refused(
                Status.INVALID_ARGUMENT,
                f"buffer {pointer:#x} is not aligned to {element.name}",
            )


def _run(communicator: Communicator, call: Call, op: Op, send: int | None = None) -> None:
    takes_result = call.collective is not Collective.REDUCE or communicator.rank == call.root
    gives_input = call.collective is not Collective.BROADCAST or communicator.rank == call.root
    device = call.place.device
    communicator.run_request(
        Request(
            call.collective,
            call.element.dtype,
            op,
            call.root,
            (call.send if send is None else send) if gives_input else 0,
            call.recv if takes_result else 0,
            call.count,
            1.0,
            1.0,
            stream=None if device is None else call.place.stream,
            device=-1 if device is None else device,
        )
    )


def _run_biased(communicator: Communicator, call: Call) -> None:
    """Compare unsigned numbers as signed ones: with the highest bit flipped they order alike."""
    blocks = communicator.size if call.collective is Collective.REDUCESCATTER else 1
    given = _array(call.send, call.count * blocks, call.element.name)
    highest = given.dtype.type(1 << (given.dtype.itemsize * 8 - 1))
    flipped = given ^ highest
    _run(communicator, call, call.op, flipped.ctypes.data)
    result = _result(communicator, call)
    np.bitwise_xor(result, highest, out=result)


def _divide(sums: npt.NDArray[Any], size: int) -> None:
    """Divide in place, towards zero as C does."""
    wide = sums.astype(np.int64) if sums.itemsize == 1 else sums  # size may be more than 127
    divisor = wide.dtype.type(size)
    inexact = (wide % divisor != 0) & (wide < 0)
    sums[...] = wide // divisor + inexact


def _result(communicator: Communicator, call: Call) -> npt.NDArray[Any]:
    """Return what the call has left at this rank, empty where that is nothing."""
    takes_result = call.collective is not Collective.REDUCE or communicator.rank == call.root
    return _array(call.recv, call.count if takes_result else 0, call.element.name)


def _array(pointer: int, count: int, dtype: str) -> npt.NDArray[Any]:
    if count == 0:
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(pointer)
    return np.frombuffer(memoryview(memory), dtype)
