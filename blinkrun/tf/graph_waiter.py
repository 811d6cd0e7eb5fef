"""The thread that does the engine's work while calls of graphs are under way.

TensorFlow's threads must not wait in an op: there may be one of them only, and the ops that others
wait for would not run. So a call is finished by whoever does the engine's work when it is through,
and this thread does that work if nobody else waits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from blinkrun.engine import engine
from blinkrun.errors import BlinkrunError
from blinkrun.tf import capi

RECLAIM_FIRST_S = 0.1  # how long the thread is idle before it looks for memory to let go,
RECLAIM_MOST_S = 10.0  # and how long at most between two looks


class Waiter:
    """Counts the calls under way, and works for them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked child, which has no such thread."""
        self._changed = threading.Condition()
        self._under_way = 0
        self._thread: threading.Thread | None = None

    def begun(self) -> None:
        """Note a call that is under way."""
        with self._changed:
            self._under_way += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="blinkrun-tf", daemon=True)
                self._thread.start()
            elif self._under_way == 1:
                self._changed.notify()

    def ended(self) -> None:
        """Note that a call is through."""
        with self._changed:
            self._under_way -= 1

    def _is_idle(self) -> bool:
        return not self._under_way

    def _run(self) -> None:
        while True:
            self._sleep()
            with contextlib.suppress(BlinkrunError):  # the calls themselves get what went wrong
                engine.current().work_until(self._is_idle)
            if not self._is_idle():  # the engine has ended, and ends them
                time.sleep(0.001)

    def _sleep(self) -> None:
        """Wait for a call; meanwhile let go of memory that TensorFlow gives back."""
        pause_s: float | None = RECLAIM_FIRST_S
        with self._changed:
            while self._is_idle():
                if not self._changed.wait(pause_s) and pause_s is not None:
                    left = capi.reclaim()
                    pause_s = min(2 * pause_s, RECLAIM_MOST_S) if left else None


waiter = Waiter()
os.register_at_fork(after_in_child=waiter.forget)
