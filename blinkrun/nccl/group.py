"""Calls that wait for `groupEnd`, and how they then run together.

A group belongs to the thread that opened it. What it holds is sorted into strands, which nothing
holds up but themselves: for each communicator its collectives in the order of the calls, all its
sends and receives as one exchange, and each communicator that is being made. Strands run at the
same time, the first in the calling thread and each other one in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from blinkrun.nccl.status import Status, refused


class Work(Protocol):
    """Something that a call asks for."""

    @property
    def strand(self) -> Hashable:
        """What it must run with: works of one strand run together."""
        ...

    def together(self, works: list[Work]) -> Callable[[], None]:
        """Return what carries out `works`, those of this one's strand in the order of calls."""
        ...


@dataclass(slots=True)
class _Open:
    depth: int = 0
    works: list[Work] = field(default_factory=list)


class _Local(threading.local):
    def __init__(self) -> None:
        self.open = _Open()


_local = _Local()


def is_open() -> bool:
    """Whether this thread is between groupStart and groupEnd."""
    return _local.open.depth > 0


def submit(work: Work) -> None:
    """Carry out `work`, at the end of the group if one is open."""
    if is_open():
        _local.open.works.append(work)
    else:
        work.together([work])()


def groupStart() -> None:
    """Let the calls of this thread wait for `groupEnd`; groups can be nested.

    Needed where one thread calls for several communicators (`NcclCommunicator.initAll`), and for
    sends and receives that wait for each other.
    """
    _local.open.depth += 1


class outside:  # noqa: N801 - reads as a word
    """A group of its own, whatever group is open around it: its works run when it ends."""

    def __enter__(self) -> None:
        self._around, _local.open = _local.open, _Open(depth=1)

    def __exit__(self, kind: object, *_: object) -> None:
        works, _local.open = _local.open.works, self._around
        if kind is None:
            _run_works(works)


def groupEnd() -> None:
    """Carry out what was called since `groupStart`, all of it together; returns when it is done.

    Raises
    ------
    NcclError
        Invalid usage if no group is open; else the first error of the calls, after all of them
        have ended.
    """
    group = _local.open
    if group.depth == 0:
        raise refused(Status.INVALID_USAGE, "groupEnd without groupStart")
    group.depth -= 1
    if group.depth:
        return
    works, group.works = group.works, []
    _run_works(works)


def _run_works(works: list[Work]) -> None:
    strands: dict[Hashable, list[Work]] = {}
    for work in works:
        strands.setdefault(work.strand, []).append(work)
    _run_all(each[0].together(each) for each in strands.values())


def _run_all(strands: Iterable[Callable[[], None]]) -> None:
    """Run all at the same time; raise the first error by their order."""
    runs = [_Run(strand) for strand in strands]
    threads = [threading.Thread(target=run, name="blinkrun-nccl", daemon=True) for run in runs[1:]]
    for thread in threads:
        thread.start()
    for run in runs[:1]:
        run()
    for thread in threads:
        thread.join()
    for run in runs:
        if run.error is not None:
            raise run.error


class _Run:
    """A strand, and the error that ended it."""

    def __init__(self, strand: Callable[[], None]) -> None:
        self._strand = strand
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._strand()
        except BaseException as err:  # raised by the thread that called groupEnd
            self.error = err
