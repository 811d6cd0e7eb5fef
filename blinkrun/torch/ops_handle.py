"""Handles of asynchronous calls, and what waits for other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blinkrun.errors import UsageError


class Handle:
    """A collective under way; give it to `synchronize` or `poll`.

    It may be dropped: the call goes on, and keeps its tensors until it is through. What an in-place
    call on a tensor that is not contiguous gives is written back by `synchronize` or `poll`.
    """

    __slots__ = ("_finish", "_pending", "_result", "name")

    def __init__(self, pending: Any, finish: Callable[[Any], Any]) -> None:
        self._pending = pending
        self._finish: Callable[[Any], Any] | None = finish
        self._result: Any = None
        self.name: str = pending.name

    def done(self) -> bool:
        """Whether the call is through, with or without success; never blocks."""
        pending = self._pending
        if pending is None:
            return True
        if not pending.is_through():
            return False
        if pending.error is None:
            self.wait()
        return True

    def wait(self) -> Any:
        """Return the result, waiting for it if need be; may be called again.

        On a device it is there for what comes next in the current stream: this waits until all
        ranks have called, not for the device.

        Raises
        ------
        MismatchError
            If ranks asked for different things under this name; on every rank.
        PeerLeftError, CollectiveTimeoutError, AbortedError
            If the job has ended for this rank.
        """
        pending, finish = self._pending, self._finish
        if pending is None or finish is None:
            return self._result
        pending.wait()
        self._result = finish(pending)
        self._pending = self._finish = None  # the memory of the inputs is free again
        return self._result


def synchronize(handle: Handle) -> Any:
    """Return the result of an asynchronous call, waiting until it is there.

    Parameters
    ----------
    handle : Handle
        What an ``_async`` call returned. A second call returns the same result again.

    Returns
    -------
    torch.Tensor, list of torch.Tensor or (torch.Tensor, torch.Tensor)
        A list for grouped calls; for `alltoall_async` also the received splits.
    """
    return _checked(handle, "synchronize").wait()


def poll(handle: Handle) -> bool:
    """Whether an asynchronous call is through; `synchronize` then does not block."""
    return bool(_checked(handle, "poll").done())


def _checked(handle: Any, what: str) -> Any:
    if isinstance(handle, torch.Tensor) or not (
        hasattr(handle, "wait") and hasattr(handle, "done")
    ):
        raise UsageError(
            f"{what} takes what an _async call returned, got {type(handle).__name__} {handle!r:.60}"
        )
    return handle
