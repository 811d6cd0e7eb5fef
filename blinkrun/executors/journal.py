"""The journal: a ring of bytes in the memory that the ranks of a host share.

Implements `engine.journal.Journal`. A waiting rank takes what comes into memory of its own, so
that a slow reader does not hold up the others; an append is there for all ranks at once or not at
all, even if its writer dies. In a job on several hosts the first rank of each has a thread that
brings the posts of all hosts into the rings in one order (csrc/relay.hpp).
"""

from __future__ import annotations

from typing import Any, NoReturn

from blinkrun.executors import native
from blinkrun.types import Rank


class NativeJournal:
    """One rank's end of the journal of a group. All methods may be called from any thread.

    Senders are numbered as the communicator numbers its ranks. Between hosts nothing goes before
    the first rank of each has made its end.

    Parameters
    ----------
    group : native.Group
        Of the native core; it stays usable while the journal is.
    timeout_s : float
        Longest wait for room, in seconds, for messages; the group has its own copy.
    """

    def __init__(self, group: native.Group, timeout_s: float) -> None:
        self._group = group
        self._timeout_s = timeout_s
        group.start_relay()

    def post(self, message: bytes, *, urgent: bool = False) -> None:
        """Append a message; an urgent one also ends `sleep` on all ranks, this one among them.

        Waits while the ring is full, which it is when a rank has neither read nor waited for long.

        Raises
        ------
        CollectiveTimeoutError
            If a rank left no room within the group's timeout; `err.ranks` names it.
        AbortedError
            If the job was aborted; PeerLeftError or CollectiveTimeoutError if that was why.
        NotInitializedError
            If this rank has left the group.
        """
        try:
            self._group.journal_post(message, urgent)
        except native.Failure as failure:
            self._fail(failure)

    def read(self) -> list[tuple[Rank, bytes]]:
        """Return the messages that this rank has not read yet, its own among them; never waits."""
        return self._group.journal_read()

    def wait(self, timeout_s: float, *, may_spin: bool) -> bool:
        """Wait for an unread message; False if none came within `timeout_s`.

        Parameters
        ----------
        timeout_s : float
            In seconds; 0 only looks.
        may_spin : bool
            Whether the thread may keep its core for about a millisecond before it sleeps, which
            makes an answer come some 50 us sooner.

        Raises
        ------
        AbortedError, PeerLeftError, CollectiveTimeoutError, NotInitializedError
            As of `post`.
        """
        try:
            return self._group.journal_wait(timeout_s, may_spin)
        except native.Failure as failure:
            self._fail(failure)

    def sleep(self, timeout_s: float) -> bool:
        """Sleep until an urgent post, `kick`, a half full ring or a rank's leaving; False if none.

        What came before counts too, once: it ends the next `sleep`. Raises as `wait` does.
        """
        try:
            return self._group.journal_sleep(timeout_s)
        except native.Failure as failure:
            self._fail(failure)

    def kick(self) -> None:
        """End this rank's `sleep`, now or the next one."""
        self._group.journal_kick()

    def gone(self) -> tuple[Rank, ...]:
        """Return the other ranks that have left or died."""
        return tuple(self._group.gone_everywhere())

    def _fail(self, failure: Any) -> NoReturn:
        raise native.translate(failure, self._timeout_s) from None
