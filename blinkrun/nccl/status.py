"""NCCL's result codes, and which of them stands for which of our errors."""

from __future__ import annotations

from enum import IntEnum

from blinkrun.errors import (
    AbortedError,
    BlinkrunError,
    CollectiveTimeoutError,
    DeviceError,
    InvalidBufferError,
    LaunchError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    UsageError,
)


class Status(IntEnum):
    """NCCL's ``ncclResult_t``."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7


_TEXTS = {
    Status.SUCCESS: "no error",
    Status.UNHANDLED_CUDA_ERROR: "unhandled cuda error",
    Status.SYSTEM_ERROR: "unhandled system error",
    Status.INTERNAL_ERROR: "internal error",
    Status.INVALID_ARGUMENT: "invalid argument",
    Status.INVALID_USAGE: "invalid usage",
    Status.REMOTE_ERROR: "remote process exited or there was a network error",
    Status.IN_PROGRESS: "NCCL operation in progress",
}
_STATUS_OF: tuple[tuple[type[BlinkrunError], Status], ...] = (
    (MismatchError, Status.INVALID_USAGE),
    (InvalidBufferError, Status.INVALID_ARGUMENT),
    (UsageError, Status.INVALID_ARGUMENT),
    (NotInitializedError, Status.INVALID_ARGUMENT),
    (PeerLeftError, Status.REMOTE_ERROR),
    (AbortedError, Status.REMOTE_ERROR),
    (CollectiveTimeoutError, Status.REMOTE_ERROR),
    (DeviceError, Status.UNHANDLED_CUDA_ERROR),
    (LaunchError, Status.SYSTEM_ERROR),
)


class NcclError(BlinkrunError, RuntimeError):
    """A call that NCCL would have answered with a code other than success.

    Attributes
    ----------
    status : int
        NCCL's code.
    detail : str
        What was wrong, in words that NCCL does not have.
    """

    def __init__(self, status: int, detail: str = "") -> None:
        known = Status(status)
        self.status = int(known)
        self.detail = detail
        text = f"NCCL_ERROR_{known.name}: {_TEXTS[known]}"
        super().__init__(f"{text}: {detail}" if detail else text)

    def __reduce__(self) -> tuple[type[NcclError], tuple[int, str]]:
        return type(self), (self.status, self.detail)


def refused(status: Status, detail: str) -> NcclError:
    """Return the error of a call that was not carried out."""
    return NcclError(status, detail)


def translate(error: BlinkrunError) -> NcclError:
    """Return what NCCL would have said."""
    if isinstance(error, NcclError):
        return error
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return NcclError(status, str(error))
    return NcclError(Status.INTERNAL_ERROR, str(error))
