"""A collective on its way, as the ``_async`` calls return it."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from blinkrun import buffers
from blinkrun.executors import native
from blinkrun.executors.base import Request


class Failing(Protocol):
    """What turns a failure of the core into one of ours."""

    def fail(self, failure: Exception) -> NoReturn:
        """Raise our exception."""


class Handle:
    """A collective on its way, made by the ``_async`` calls.

    On memory of the host the buffers must not be touched until `wait` has returned. On a device
    the call runs in the communicator's own stream, and `wait` orders the caller's behind it.
    """

    def __init__(self, communicator: Failing, job: Any, result: Any, request: Request) -> None:
        self._communicator = communicator
        self._job = job
        self._result = result
        self._request = request

    def done(self) -> bool:
        """Whether the collective is through, with or without success; does not block."""
        return bool(self._job.done())

    def wait(self) -> Any:
        """Wait for the collective and return its result; raises what the call would have raised.

        On a device nothing waits but the current stream of the arrays' library, of which the
        result may be used: from there it is seen once it is there.
        """
        if self._request.stream is None:
            return self.synchronize()
        anchor = self._request.keep[0] if self._result is None else self._result
        stream = buffers.stream_of(anchor)
        self._job.wait_on(stream)
        if stream != self._request.stream and self._result is not None:
            buffers.record_stream(self._result, stream)  # it was made in another one
        return self._result

    def synchronize(self) -> Any:
        """Return the result when it is there, on a device too; raises what went wrong."""
        try:
            self._job.wait()
        except native.Failure as failure:
            self._communicator.fail(failure)
        return self._result
