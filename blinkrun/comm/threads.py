"""A control plane between threads of one process: ranks for tests, without MPI."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blinkrun.comm.base import check_subset
from blinkrun.errors import CollectiveTimeoutError
from blinkrun.types import Rank


@dataclass
class _Board:
    """What the ranks of one control plane share."""

    items: list[Any]
    barrier: threading.Barrier


@dataclass
class _Job:
    """What all threads share: the boards of subsets, by the ranks and how many came before."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    boards: dict[Any, _Board] = field(default_factory=dict)
    ended: bool = False


class ThreadControl:
    """One rank of `size` threads; make them all with `thread_controls`."""

    def __init__(self, rank: Rank, size: int, board: _Board, job: _Job, path: Any = ()) -> None:
        self.rank = rank
        self.size = size
        self._board = board
        self._job = job
        self._path = path
        self._subs: dict[tuple[Rank, ...], int] = {}

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every thread; a thread that does not come breaks the barrier."""
        self._board.items[self.rank] = item
        self._board.barrier.wait()
        items = list(self._board.items)
        self._board.barrier.wait()
        return items

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of thread `root`."""
        return self.allgather(item)[root]

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> ThreadControl:
        """Return the control plane of `ranks` alone; they meet here."""
        chosen = check_subset(ranks, rank=self.rank, size=self.size)
        count = self._subs[chosen] = self._subs.get(chosen, 0) + 1
        path = (*self._path, chosen, count)
        with self._job.lock:
            board = self._job.boards.setdefault(path, _new_board(len(chosen), timeout_s))
            if self._job.ended:
                board.barrier.abort()
        control = ThreadControl(chosen.index(self.rank), len(chosen), board, self._job, path)
        try:
            board.barrier.wait()
        except threading.BrokenBarrierError:
            raise CollectiveTimeoutError(
                f"rank {self.rank} waited {timeout_s:g} s for the ranks {list(chosen)} to make"
                " their group",
                [rank for rank in chosen if rank != self.rank],
                timeout_s,
            ) from None
        return control

    def wire(self) -> None:
        """Return None: there is no MPI."""

    def finalize(self) -> None:
        """Do nothing: threads end by themselves."""

    def abort(self, code: int) -> None:
        """Break all barriers, so that no thread waits for this one."""
        del code
        with self._job.lock:
            self._job.ended = True
            for board in self._job.boards.values():
                board.barrier.abort()


def thread_controls(size: int, timeout_s: float = 30.0) -> list[ThreadControl]:
    """Return the control planes of `size` threads; a wait of theirs ends after `timeout_s`."""
    job = _Job()
    board = job.boards[()] = _new_board(size, timeout_s)
    return [ThreadControl(rank, size, board, job) for rank in range(size)]


def _new_board(size: int, timeout_s: float) -> _Board:
    return _Board([None] * size, threading.Barrier(size, timeout=timeout_s))
