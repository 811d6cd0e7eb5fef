"""Signals that end this process, as exceptions that come only where nothing is lost by them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Ending:
    """Turns SIGINT, SIGTERM and SIGHUP into exceptions, but not while they are held back."""

    def __init__(self) -> None:
        self._is_held = False
        self._came: int | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals for as long as the context lasts; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = {signal.SIGINT: signal.default_int_handler}
        before = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is usual.get(number, signal.SIG_DFL):
                before[number] = signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait until the context ends: what is begun in it must not be lost."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._came is not None:
            _leave(self._came)

    def _take(self, number: int, frame: object) -> None:
        if self._is_held:
            self._came = number
        else:
            _leave(number)


def _leave(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
