"""A control plane between threads of one process: ranks for tests, without MPI."""

from __future__ import annotations

import threading
from typing import Any

from blinkrun.types import Rank


class ThreadControl:
    """One rank of `size` threads; make them all with `thread_controls`."""

    def __init__(self, rank: Rank, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = size
        self._board = board
        self._barrier = barrier

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every thread; a thread that does not come breaks the barrier."""
        self._board[self.rank] = item
        self._barrier.wait()
        items = list(self._board)
        self._barrier.wait()
        return items

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of thread `root`."""
        return self.allgather(item)[root]

    def finalize(self) -> None:
        """Do nothing: threads end by themselves."""

    def abort(self, code: int) -> None:
        """Break the barrier, so that no thread waits for this one."""
        del code
        self._barrier.abort()


def thread_controls(size: int, timeout_s: float = 30.0) -> list[ThreadControl]:
    """Return the control planes of `size` threads; a wait of theirs ends after `timeout_s`."""
    board: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=timeout_s)
    return [ThreadControl(rank, size, board, barrier) for rank in range(size)]
