"""The control plane of a process that is alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinkrun.comm.base import check_subset
from blinkrun.types import Rank


class LoopbackControl:
    """One rank: what it sends comes back."""

    rank: Rank = 0
    size: int = 1

    def allgather(self, item: Any) -> list[Any]:
        """Return ``[item]``."""
        return [item]

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return `item`."""
        del root
        return item

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> LoopbackControl:
        """Return another loopback: the only subset is this rank."""
        del timeout_s
        check_subset(ranks, rank=self.rank, size=self.size)
        return LoopbackControl()

    def wire(self) -> None:
        """Return None: there is no MPI."""

    def finalize(self) -> None:
        """Do nothing."""

    def abort(self, code: int) -> None:
        """Do nothing: the caller is all there is, and ends by itself."""
        del code
