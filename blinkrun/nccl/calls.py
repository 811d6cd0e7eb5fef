"""Collectives on addresses, with the element types of NCCL that the core does not have."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.communicator import Communicator
from blinkrun.executors.base import Request
from blinkrun.nccl.constants import ElementType
from blinkrun.nccl.status import Status, refused
from blinkrun.types import Collective, Op, Rank

_REDUCING = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)
DEFAULT_STREAMS = (0, 1, 2)  # null, legacy and per-thread


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


def check_stream(stream: int | None) -> None:
    """Raise NcclError (invalid argument) unless `stream` is a default stream or null.

    Nothing here waits for work on a GPU: to accept its streams would be to break their order.
    """
    if stream not in (None, *DEFAULT_STREAMS):
        raise refused(
            Status.INVALID_ARGUMENT,
            f"stream is {stream:#x}, but this version moves CPU memory in the calling thread; pass"
            " 0 (the null stream)",
        )


def run(communicator: Communicator, call: Call) -> None:
    """Carry out `call` in this thread."""
    integral = not call.element.dtype.is_float
    if call.collective not in _REDUCING or not integral:
        _run(communicator, call, call.op)
    elif call.op is Op.AVERAGE:
        _run(communicator, call, Op.SUM)
        _divide(_result(communicator, call), communicator.size)
    elif call.op in (Op.MIN, Op.MAX) and call.element.is_wide_unsigned:
        _run_biased(communicator, call)
    else:
        _run(communicator, call, call.op)


def _run(communicator: Communicator, call: Call, op: Op, send: int | None = None) -> None:
    takes_result = call.collective is not Collective.REDUCE or communicator.rank == call.root
    gives_input = call.collective is not Collective.BROADCAST or communicator.rank == call.root
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
