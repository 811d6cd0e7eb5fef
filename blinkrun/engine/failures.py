"""In which words the engine refuses a request, or says that it has come to an end."""

from __future__ import annotations

from blinkrun.engine.request import Request
from blinkrun.errors import (
    AbortedError,
    BlinkrunError,
    CollectiveError,
    DuplicateNameError,
    NotInitializedError,
)
from blinkrun.types import Rank


def under_way(rank: Rank, request: Request) -> DuplicateNameError:
    """Return what a request gets whose name is not free yet."""
    return DuplicateNameError(
        f"rank {rank}: {request.kind.label} '{request.name}' is still under way;"
        " wait for it first or give this one another name"
    )


def of_values(rank: Rank, request: Request, defect: str) -> str:
    """Return what all ranks are told of a `defect` of this rank's values; empty if there is none.

    >>> from blinkrun.engine.request import Kind
    >>> of_values(1, Request("w", Kind.ALLREDUCE, where="train.py:3"), "holds NaN")
    "rank 1: allreduce 'w' at train.py:3 holds NaN"
    """
    where = f" at {request.where}" if request.where else ""
    what = f"rank {rank}: {request.kind.label} '{request.name}'{where}"
    return f"{what} {defect}" if defect else ""


def ended_by(rank: Rank, error: BaseException) -> BlinkrunError:
    """Return what every request gets after `error` has ended the engine."""
    if isinstance(error, CollectiveError | NotInitializedError):
        return error
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    failure = AbortedError(f"rank {rank}: the engine was ended by {what}", rank)
    failure.__cause__ = error
    return failure
