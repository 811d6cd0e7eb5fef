"""What the ranks need to find each other: a small control plane. Data never takes it."""

from __future__ import annotations

from typing import Any, Protocol

from blinkrun.types import Rank


class ControlPlane(Protocol):
    """Exchange of small Python objects between all ranks; every call is collective."""

    rank: Rank
    size: int

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank, in the order of ranks."""
        ...

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`."""
        ...

    def finalize(self) -> None:
        """End the control plane; waits for the other ranks where the system under it does."""
        ...

    def abort(self, code: int) -> None:
        """End all ranks now. Returns only where nothing but this process can be ended."""
        ...
