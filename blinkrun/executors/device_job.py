"""A call that runs in the communicator's own stream, and the events that such calls need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from blinkrun.errors import DeviceError, UsageError
from blinkrun.executors.device_api import DeviceApi

_LOOKS = 200  # at an event before the waiting thread sleeps between them
_LONGEST_NAP_S = 1e-3


class Events:
    """Events of a device, used again; safe to call from several threads."""

    def __init__(self, api: DeviceApi) -> None:
        self._api = api
        self._free: list[int] = []
        self._is_closed = False

    def take(self) -> int:
        """Return an event that nobody uses."""
        try:
            return self._free.pop()
        except IndexError:
            return self._api.new_event()

    def give_back(self, event: int) -> None:
        """Take back an event; what waits for it goes on doing so."""
        if self._is_closed:
            with contextlib.suppress(DeviceError):  # as the runtime itself may have ended
                self._api.free_event(event)
        else:
            self._free.append(event)

    def close(self) -> None:
        """Destroy the events that nobody uses, and the others as they are given back."""
        self._is_closed = True
        while self._free:
            self._api.free_event(self._free.pop())


class DeviceJob:
    """A call on its way on the device.

    Where the call was captured in a graph there is nothing to wait for on the host.

    Attributes
    ----------
    is_captured : bool
        Whether it was.
    """

    def __init__(
        self, api: DeviceApi, events: Events, event: int | None, wait: Callable[[int], None]
    ) -> None:
        self._api = api
        self._events = events
        self._event = event
        self._wait = wait
        self.is_captured = event is None

    def __del__(self) -> None:
        if self._event is not None:
            self._events.give_back(self._event)

    def done(self) -> bool:
        """Whether the call is through, well or badly; does not block."""
        return self._event is None or self._api.is_through(self._event)

    def wait(self) -> None:
        """Return when the call is through; the kernel's deadline ends it at the latest.

        Raises
        ------
        CollectiveError
            What the call, or one before it, ended with.
        UsageError
            If it was captured in a graph.
        """
        if self._event is None:
            raise UsageError("a call that a graph has captured cannot be waited for on the host")
        self._wait(self._event)

    def wait_on(self, stream: int) -> None:
        """Let `stream` go on only when the call is through; the host does not wait."""
        if self._event is not None:
            self._api.wait(stream, self._event)


def wait_for(ready: Callable[[], bool]) -> None:
    """Return when `ready()`; a signal's handler may end it."""
    for _ in range(_LOOKS):
        if ready():
            return
    nap_s = 2e-5
    while not ready():
        time.sleep(nap_s)
        nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)
