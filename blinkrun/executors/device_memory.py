"""What a rank holds of the runtime, and how it is given back: never while someone may still use it.

Freeing memory that another process has open is undefined, and a kernel that writes to freed memory
ends its whole process. So a rank first says, in memory that all ranks of the host share, that it
has let go of theirs, and frees its own once all have said so; what cannot be freed yet is kept for
the next occasion.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from blinkrun.errors import DeviceError
from blinkrun.executors import native
from blinkrun.executors.device_api import DeviceApi

if TYPE_CHECKING:
    from blinkrun.executors.device_state import DeviceState

ABORT_S = 5.0  # what kernels get to end once they are told to
LEAVE_S = 1.0  # what other ranks get to let go before their memory is left for later
_STEP_S = 0.002


class Finals:
    """Words in memory that the ranks of a host share: how each of them has left its group.

    A rank's word is 0 until it has let go of the others' memory; then it is, plus one, the number
    of the last call that it has finished.

    Parameters
    ----------
    group : native.Group
        Of the ranks of the host.
    addresses : sequence of int
        Of the word of every rank.
    index : int
        This rank's place among them.
    """

    def __init__(self, group: native.Group, addresses: Sequence[int], index: int) -> None:
        self._group = group
        self._words = [ctypes.c_uint64.from_address(address) for address in addresses]
        self._index = index

    def __getitem__(self, index: int) -> int:
        return int(self._words[index].value)

    def say(self, through: int) -> None:
        """Say that this rank has left after call `through`."""
        self._words[self._index].value = through + 1

    def all_have_left(self) -> bool:
        """Whether nobody has this rank's memory any more: all have said so, or are gone."""
        missing = {at for at, word in enumerate(self._words) if not word.value} - {self._index}
        return not missing or missing <= set(self._group.gone())


class Holdings:
    """Allocations, mappings, streams and events of one rank's group of devices.

    Attributes
    ----------
    own : list of callable
        What gives back memory that other ranks use.
    rest : list of callable
        What gives back all else; latest first.
    first : list of callable
        What ends before anything is given back.
    shared : list of object
        Keeps memory that the ranks of the host share.
    finals : Finals or None
        How the ranks leave, once they have agreed on it.
    state : DeviceState or None
        What is under way.
    after : int
        An event after the last call.
    """

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self.own: list[Callable[[], None]] = []
        self.rest: list[Callable[[], None]] = []
        self.shared: list[Any] = []
        self.first: list[Callable[[], None]] = []
        self.finals: Finals | None = None
        self.state: DeviceState | None = None
        self.after = 0
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
        ended = state is None or self._wait(state)
        if state is not None:
            state.stop_watching()
        _give_back(self.first)
        if not ended:  # a kernel still runs, or never began: its memory must stay
            _leftovers.append(self)
            return
        self._give_back_rest()
        sweep()
        if not _until(self._can_free, LEAVE_S):
            _leftovers.append(self)

    def _can_free(self) -> bool:
        """Free what other ranks had, if they have let go."""
        if self.finals is not None and not self.finals.all_have_left():
            return False
        _give_back(self.own)
        self.shared.clear()
        return True

    def retry(self) -> bool:
        """Whether everything is given back by now; does not wait."""
        state = self.state
        if self.rest:
            if state is not None and not state.is_idle():
                return False
            self._give_back_rest()
        return self._can_free()

    def _wait(self, state: DeviceState) -> bool:
        """Wait for kernels under way, then end them; whether none runs any more."""

        def over() -> bool:
            return state.is_idle() or state.is_aborted()

        def ended() -> bool:
            return state.is_idle() or self._has_failed()

        if not _until(over, LEAVE_S) and not self._has_failed():
            _until(over, state.timeout_s)
        if state.captured or not state.is_idle():
            state.abort()
        return _until(ended, ABORT_S)

    def _has_failed(self) -> bool:
        """Whether the device has, so that nothing runs there any more."""
        try:
            self.api.is_through(self.after)
        except DeviceError:
            return True
        return False

    def _give_back_rest(self) -> None:
        if self.state is not None:
            self.state.detach()
        _give_back(self.rest)
        if self.finals is not None:
            self.finals.say(0 if self.state is None else self.state.through)


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
