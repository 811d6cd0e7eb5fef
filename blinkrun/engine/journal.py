"""The journal: messages of all ranks in one order, which every rank reads from its start.

This is all that the negotiation needs of the machine. Inside a host it is a ring of bytes in shared
memory (`executors`); every rank replays the same messages in the same order through the same state
machine (`negotiate`), so all ranks come to the same decisions without asking each other.
"""

from __future__ import annotations

from typing import Protocol

from blinkrun.types import Rank


class Journal(Protocol):
    """One rank's end of the journal. All methods may be called from any thread."""

    def post(self, message: bytes, *, urgent: bool = False) -> None:
        """Append a message; an urgent one also wakes ranks that have nothing to offer.

        Waits for room while the ring is full. Raises as collectives do when the job is aborted.
        """
        ...

    def read(self) -> list[tuple[Rank, bytes]]:
        """Return the messages that this rank has not read yet, its own among them; never waits."""
        ...

    def wait(self, timeout_s: float, *, may_spin: bool) -> bool:
        """Wait for an unread message; False if none came in time. For the thread that drives."""
        ...

    def sleep(self, timeout_s: float) -> bool:
        """Wait for an urgent message, a nearly full ring or `kick`; False if none came in time.

        For the helper thread while this rank has nothing to offer: other posts do not wake it.
        """
        ...

    def kick(self) -> None:
        """End this rank's `sleep`, now or the next one."""
        ...

    def gone(self) -> tuple[Rank, ...]:
        """Return the ranks that have left or died."""
        ...
