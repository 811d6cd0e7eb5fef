"""What a rank holds of the runtime, and how it is given back: never while someone may still use it.

Freeing memory that another process has open is undefined, and a kernel that writes to freed memory
ends its whole process. So a rank first says, in memory that all ranks of the host share, that it
has let go of theirs, and frees its own once all have said so; what cannot be freed yet is kept for
the next occasion.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from blinkrun.errors import DeviceError
from blinkrun.executors.device_api import DeviceApi
from blinkrun.executors.device_state import DeviceState

ABORT_S = 5.0  # what kernels get to end once they are told to
LEAVE_S = 1.0  # what other ranks get to let go before their memory is left for later
_STEP_S = 0.002


class Holdings:
    """Allocations, mappings, streams and events of one rank's group of devices.

    Attributes
    ----------
    own : list of callable
        What gives back memory that other ranks use.
    rest : list of callable
        What gives back all else; latest first.
    shared : list of object
        Keeps memory that the ranks of the host share.
    """

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self.own: list[Callable[[], None]] = []
        self.rest: list[Callable[[], None]] = []
        self.shared: list[Any] = []
        self.state: DeviceState | None = None
        self.first: list[Callable[[], None]] = []  # to end before anything is given back
        self._lock = threading.Lock()
        self._is_released = False
        self._process = os.getpid()

    def release(self) -> None:
        """Wait for kernels under way, at most the timeout, and give everything back. Idempotent."""
        if os.getpid() != self._process:  # a child of the rank's process has nothing of it
            return
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        state = self.state
        ended = True
        if state is not None:
            ended = _until(lambda: state.through >= state.launched, self._patience(state))
            if not ended or state.captured:
                state.abort()
                ended = _until(lambda: state.through >= state.launched, ABORT_S)
            state.stop_watching()
        _give_back(self.first)
        if not ended:  # a kernel still runs, or never began: its memory must stay
            _leftovers.append(self)
            return
        self._give_back_rest()
        if state is None:
            _give_back(self.own)
            self.shared.clear()
            return
        state.say_final()
        sweep()
        if not _until(self._can_free, LEAVE_S):
            _leftovers.append(self)

    def _can_free(self) -> bool:
        """Free what other ranks had, if they have let go."""
        if self.state is not None and not self.state.all_final():
            return False
        _give_back(self.own)
        self.shared.clear()
        return True

    def retry(self) -> bool:
        """Whether everything is given back by now; does not wait."""
        state = self.state
        if self.rest:
            if state is not None and state.through < state.launched:
                return False
            self._give_back_rest()
            if state is not None:
                state.say_final()
        return self._can_free()

    def _give_back_rest(self) -> None:
        if self.state is not None:
            self.state.detach()
        _give_back(self.rest)

    @staticmethod
    def _patience(state: DeviceState) -> float:
        return ABORT_S if state.is_aborted() else state.timeout_s


_leftovers: list[Holdings] = []


def sweep() -> None:
    """Give back what earlier groups could not, as far as that is possible by now; does not wait."""
    waiting, _leftovers[:] = _leftovers[:], []
    _leftovers.extend(each for each in waiting if not each.retry())


def _until(ready: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_STEP_S)
    return True


def _give_back(functions: list[Callable[[], None]]) -> None:
    while functions:
        with contextlib.suppress(DeviceError):  # a device that has failed takes nothing back
            functions.pop()()
