"""The control plane of a process that is alone."""

from __future__ import annotations

from typing import Any

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

    def finalize(self) -> None:
        """Do nothing."""

    def abort(self, code: int) -> None:
        """Do nothing: the caller is all there is, and ends by itself."""
        del code
