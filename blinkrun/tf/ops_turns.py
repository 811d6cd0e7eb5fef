"""Calls of one name that a graph begins while an earlier one is under way: one after the other.

The engine refuses a name that is under way. In a graph that is nobody's mistake: a function may be
called twice in a step, and a loop may be ahead of itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from blinkrun.engine import engine
from blinkrun.engine.handle import Handle
from blinkrun.errors import BlinkrunError, InternalError


class Started(Protocol):
    """A call under way, as `blinkrun.tf.call.Started` is one."""

    handle: Handle

    def wait(self) -> list[Any]:
        """Return the results, waiting for them if need be; raises what went wrong."""
        ...


Begin = Callable[[], Started]
Key = tuple[int | None, str | None]

_lock = threading.Lock()
_lines: dict[Key, deque[Later]] = {}  # who waits, by process set and name of what is under way


class Later:
    """A call whose turn has not come yet."""

    def __init__(self, begin: Begin) -> None:
        self._begin: Begin | None = begin
        self._is_begun = threading.Event()
        self._started: Started | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._given_up = ""

    def begin(self) -> Started | None:
        """Begin, now that it is its turn; None if that failed, of which `wait` tells."""
        begin, self._begin = self._begin, None
        try:
            self._started = begin() if begin else None
        except Exception as err:
            self._error = err
        with _lock:
            self._is_begun.set()
            given_up = self._given_up
        if given_up:
            self._abandon(given_up)
        for call in self._callbacks:
            self._call_when_through(call)
        return self._started

    def add_done_callback(self, call: Callable[[], None]) -> None:
        """Have `call` called once, in any thread, when `wait` no longer blocks; now, if so now."""
        with _lock:
            if not self._is_begun.is_set():
                self._callbacks.append(call)
                return
        self._call_when_through(call)

    def abandon(self, reason: str) -> None:
        """Have the engine give it up, unless all ranks have begun it; once it is its turn."""
        with _lock:
            if not self._is_begun.is_set():
                self._given_up = reason
                return
        self._abandon(reason)

    def _abandon(self, reason: str) -> None:
        if self._started is not None:
            with contextlib.suppress(BlinkrunError):  # the engine has ended: so has the call
                engine.current().abandon(self._started.handle, reason)

    def _call_when_through(self, call: Callable[[], None]) -> None:
        if self._started is None:
            call()
        else:
            self._started.handle.add_done_callback(lambda _: call())

    def wait(self) -> list[Any]:
        """Return the results, waiting for them if need be; raises what went wrong.

        What was begun before is carried on by another thread, and ends by its deadline.
        """
        self._is_begun.wait()
        if self._started is None:
            raise self._error or InternalError("a call was begun twice")
        return self._started.wait()


def in_turn(key: Key, begin: Begin) -> Started | Later:
    """Begin a call now, or when all of the same process set and name that came before are through.

    Never waits. What `begin` raises now is raised here, later when the result is waited for.
    """
    with _lock:
        line = _lines.get(key)
        if line is not None:
            later = Later(begin)
            line.append(later)
            return later
        _lines[key] = deque()
    try:
        started = begin()
    except BaseException:
        _begin_next(key)
        raise
    started.handle.add_done_callback(lambda _: _begin_next(key))
    return started


def _begin_next(key: Key) -> None:
    """Let the next of a name begin: the one before is through, or has not begun."""
    started = None
    while started is None:
        with _lock:
            line = _lines[key]
            if not line:
                del _lines[key]
                return
            later = line.popleft()
        started = later.begin()
    started.handle.add_done_callback(lambda _: _begin_next(key))
