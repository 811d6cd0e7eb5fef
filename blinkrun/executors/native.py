"""The compiled core: the one file that imports it, and the one where its errors become ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blinkrun import _core
from blinkrun.comm.base import Wire
from blinkrun.errors import (
    AbortedError,
    BlinkrunError,
    CollectiveError,
    CollectiveTimeoutError,
    InternalError,
    InvalidBufferError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
)
from blinkrun.types import DType

Failure = _core.Failure
Group = _core.Group
Job = _core.Job
Proxy = _core.Proxy
control_bytes: Callable[[int, int], int] = _core.control_bytes
format_control: Callable[[int, int, int], None] = _core.format_control
flatten = _core.flatten
device_layout: Callable[[], dict[str, int]] = _core.device_layout
ARENA_RESERVED: int = _core.ARENA_RESERVED
EAGER_AREA: int = _core.EAGER_AREA
JOURNAL_BYTES: int = _core.JOURNAL_BYTES
KERNEL_FUNCTIONS: list[str] = _core.KERNEL_FUNCTIONS
set_kernel_functions: Callable[[list[int]], None] = _core.set_kernel_functions
kernel_inputs = _core.kernel_inputs
kernel_results = _core.kernel_results
reclaim: Callable[[], int] = _core.reclaim
kernel_callbacks = _core.kernel_callbacks
close_kernels: Callable[[], None] = _core.close_kernels
run_callback: Callable[[int], None] = _core.run_callback
pack: Callable[[int, list[tuple[int, int, int]]], None] = _core.pack
unpack: Callable[[int, list[tuple[int, int, int]]], None] = _core.unpack

# numpy type -> DType; bfloat16 is added by `register_bfloat16`.
NUMPY_DTYPES: dict[np.dtype[Any], DType] = {
    np.dtype(np.uint8): DType.UINT8,
    np.dtype(np.int8): DType.INT8,
    np.dtype(np.int32): DType.INT32,
    np.dtype(np.int64): DType.INT64,
    np.dtype(np.float16): DType.FLOAT16,
    np.dtype(np.float32): DType.FLOAT32,
    np.dtype(np.float64): DType.FLOAT64,
    np.dtype(np.bool_): DType.BOOL,
}
for _numpy, _dtype in NUMPY_DTYPES.items():
    _core.register_dtype(_numpy.num, int(_dtype))


def register_bfloat16() -> np.dtype[Any]:
    """Return numpy's bfloat16 (of ml_dtypes) and let the core know it."""
    import ml_dtypes  # noqa: PLC0415 - 30 ms that most programs need not pay

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    NUMPY_DTYPES[bfloat16] = DType.BFLOAT16
    _core.register_dtype(bfloat16.num, int(DType.BFLOAT16))
    return bfloat16


def isa() -> str:
    """Return the instruction set that the reduction kernels use: base, avx2 or avx512."""
    return str(_core.isa())


@contextlib.contextmanager
def watchdog(seconds: float, text: str) -> Iterator[None]:
    """Say `text` and end this process if what is done meanwhile takes longer.

    For calls that hold the interpreter's lock and nothing else can end.
    """
    dog = _core.Watchdog(seconds, text)
    try:
        yield
    finally:
        dog.stop()


def wire_words(wire: Wire) -> dict[str, int]:
    """Return `wire` as the core's `Group` takes it."""
    return {**wire.functions, **wire.handles, **wire.sizes}


def translate(failure: Exception, timeout_s: float) -> BlinkrunError:
    """Return our exception for a `Failure` of the core, whose args are (kind, text, ranks)."""
    kind, text, ranks = failure.args
    match kind:
        case 0:
            error: BlinkrunError = MismatchError(text)
        case 1:
            error = CollectiveTimeoutError(text, ranks, timeout_s)
        case 2:
            error = PeerLeftError(text, ranks[0])
        case 3:
            error = AbortedError(text, ranks[0])
        case 4:
            error = InvalidBufferError(text)
        case 5:
            error = NotInitializedError("the journal")
        case 6:
            error = CollectiveError(f"MPI between hosts: {text}")
        case _:
            error = InternalError(text)
    return error
