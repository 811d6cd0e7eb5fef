"""Rows of a figure on all cores: each is a simulation by itself."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from typing import TypeVar

_PR_SET_PDEATHSIG = 1  # prctl(2), Linux

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def mapped(
    function: Callable[[_In], _Out],
    items: Iterable[_In],
    *,
    said: Callable[[int, int], None] | None = None,
) -> list[_Out]:
    """Return `function` of every item, in their order, computed in as many processes as cores.

    Parameters
    ----------
    function : callable
        At the top of a module, so that another process finds it.
    items : iterable
        What it takes, one at a time.
    said : callable, optional
        Called with how many are done and how many there are, after each.

    Notes
    -----
    Ctrl-C reaches the caller alone, whose leaving the pool ends the other processes. However the
    caller ends, they end with it.
    """
    work = list(items)
    workers = min(len(work), len(os.sched_getaffinity(0)))
    if workers <= 1:
        return [_told(function(item), at, len(work), said) for at, item in enumerate(work)]
    # fresh processes: what runs beside us, threads of a test for one, is not copied
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_begin, initargs=(os.getpid(),)) as pool:
        found = pool.imap(function, work)
        return [_told(result, at, len(work), said) for at, result in enumerate(found)]


def _begin(caller: int) -> None:
    """Leave Ctrl-C to the caller, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != caller:  # it has ended already
        os._exit(1)


def _told(result: _Out, at: int, total: int, said: Callable[[int, int], None] | None) -> _Out:
    if said is not None:
        said(at + 1, total)
    return result
