"""A control plane between processes of one host that share a secret: no MPI, no launcher, no files.

Whoever knows the id (bytes that one process made up and gave the others by any way) finds the
first rank at an abstract unix socket whose name follows from it. The others connect, and stay
connected: the first rank collects what they say and tells everyone.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from blinkrun.comm.base import check_subset
from blinkrun.errors import CollectiveTimeoutError, LaunchError, PeerLeftError, UsageError
from blinkrun.types import Rank

CONNECT_LOOK_S = 0.002  # pause between two tries to reach a first rank that is not there yet
_LENGTH = struct.Struct("<Q")


class SocketControl:
    """One of `size` ranks that know the same `secret`; every one of them must make it.

    Parameters
    ----------
    secret : bytes
        At least 16 bytes that nobody else knows and that no other group uses at the time.
    rank, size : int
        This rank's number, and how many there are; the same size on all.
    timeout_s : float
        Longest wait for the others, here and in every call, in seconds.

    Raises
    ------
    UsageError
        If the secret is too short, or the rank is none of `size`.
    CollectiveTimeoutError
        If some do not come; `err.ranks` are those, as far as this rank can know.
    LaunchError
        If they disagree about their number, or two say that they are the same rank.
    """

    def __init__(self, secret: bytes, *, rank: Rank, size: int, timeout_s: float) -> None:
        if len(secret) < 16:
            raise UsageError(f"the secret has {len(secret)} bytes, need at least 16")
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is none of the ranks 0 to {size - 1}")
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._secret = secret
        self._subs: dict[tuple[Rank, ...], int] = {}
        self._peers: dict[Rank, socket.socket] = {}  # all others on the first rank, else the first
        deadline = time.monotonic() + timeout_s
        try:
            if rank == 0:
                self._gather_guests(deadline)
            else:
                self._visit(deadline)
        except BaseException:
            self.finalize()
            raise

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank; items are pickled."""
        if self.rank != 0:
            self._say(0, item)
            items: list[Any] = self._hear(0)
            return items
        items = [item, *(self._hear(rank) for rank in range(1, self.size))]
        for rank in range(1, self.size):
            self._say(rank, items)
        return items

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`; it is pickled."""
        return self.allgather(item if self.rank == root else None)[root]

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> SocketControl:
        """Return the control plane of `ranks` alone; they meet at a socket of their own."""
        chosen = check_subset(ranks, rank=self.rank, size=self.size)
        count = self._subs[chosen] = self._subs.get(chosen, 0) + 1
        secret = hmac.digest(self._secret, repr((chosen, count)).encode(), "sha512")
        return SocketControl(
            secret, rank=chosen.index(self.rank), size=len(chosen), timeout_s=timeout_s
        )

    def wire(self) -> None:
        """Return None: there is no MPI."""

    def finalize(self) -> None:
        """Close the connections."""
        while self._peers:
            self._peers.popitem()[1].close()

    def abort(self, code: int) -> None:
        """Close the connections, so that no rank waits for this one."""
        del code
        self.finalize()

    # ---- inside --------------------------------------------------------------------------------

    def _address(self) -> str:
        return f"\0blinkrun-{hashlib.sha256(b'address' + self._secret).hexdigest()[:32]}"

    def _pass(self, rank: Rank) -> bytes:
        """What only a holder of the secret can say: that it is `rank`."""
        return hmac.digest(self._secret, b"rank %d" % rank, "sha256")

    def _gather_guests(self, deadline: float) -> None:
        if self.size == 1:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(self._address())
            except OSError as err:
                raise LaunchError(
                    "rank 0 of this id is there already; every group needs an id of its own, and"
                    f" every rank its own number ({err.strerror})"
                ) from err
            listener.listen(self.size)
            while len(self._peers) < self.size - 1:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    guest, _ = listener.accept()
                except TimeoutError:
                    raise self._late(
                        [rank for rank in range(1, self.size) if rank not in self._peers]
                    ) from None
                self._welcome(guest)
            for rank in range(1, self.size):
                self._say(rank, None)

    def _welcome(self, guest: socket.socket) -> None:
        """Take a guest in, or send a stranger away."""
        guest.settimeout(self._timeout_s)
        hello = None
        if _same_user(guest):
            with contextlib.suppress(OSError, EOFError):
                hello = _read(guest, _HELLO.size)
        if hello is None:
            guest.close()
            return
        rank, size, word = _HELLO.unpack(hello)
        problem = ""
        if not hmac.compare_digest(word, self._pass(rank)):
            guest.close()
            return
        if size != self.size:
            problem = f"rank {rank} says that there are {size} ranks, rank 0 says {self.size}"
        elif not 0 < rank < self.size:
            problem = f"rank {rank} is none of the ranks 0 to {self.size - 1}"
        elif rank in self._peers:
            problem = f"two processes say that they are rank {rank}"
        if problem:
            with guest:
                _send(guest, pickle.dumps(problem))
            for each in self._peers.values():
                with contextlib.suppress(OSError):
                    _send(each, pickle.dumps(problem))
            raise LaunchError(f"{problem}; all must be given the same id and number of ranks")
        self._peers[rank] = guest

    def _visit(self, deadline: float) -> None:
        while True:
            first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            first.settimeout(self._timeout_s)
            try:
                first.connect(self._address())
                break
            except OSError:  # not there yet, or too many at a time
                first.close()
            if time.monotonic() > deadline:
                raise self._late([0])
            time.sleep(CONNECT_LOOK_S)
        self._peers[0] = first
        if not _same_user(first):
            raise LaunchError("the socket of this id belongs to another user")
        self._exchange(
            0,
            lambda: _send(
                first, _HELLO.pack(self.rank, self.size, self._pass(self.rank)), head=False
            ),
        )
        problem = self._hear(0)
        if problem:
            raise LaunchError(f"{problem}; all must be given the same id and number of ranks")

    def _say(self, rank: Rank, item: Any) -> None:
        peer = self._peer(rank)
        self._exchange(rank, lambda: _send(peer, pickle.dumps(item)))

    def _hear(self, rank: Rank) -> Any:
        peer = self._peer(rank)

        def hear() -> bytes:
            (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size))
            return _read(peer, length)

        return pickle.loads(self._exchange(rank, hear))

    def _peer(self, rank: Rank) -> socket.socket:
        if rank not in self._peers:
            raise PeerLeftError(f"rank {self.rank} has closed its connections", self.rank)
        return self._peers[rank]

    def _exchange(self, rank: Rank, act: Callable[[], Any]) -> Any:
        """Return what `act` on the connection to `rank` returns; its failures are ours."""
        try:
            return act()
        except TimeoutError:
            raise self._late([rank]) from None
        except (OSError, EOFError):
            raise PeerLeftError(
                f"rank {rank} has ended its connection to rank {self.rank}", rank
            ) from None

    def _late(self, ranks: list[Rank]) -> CollectiveTimeoutError:
        names = ", ".join(map(str, ranks))
        return CollectiveTimeoutError(
            f"rank {self.rank} waited {self._timeout_s:g} s for rank{'s' * (len(ranks) > 1)}"
            f" {names} to come; all {self.size} ranks must be there, with the same id",
            ranks,
            self._timeout_s,
        )


_HELLO = struct.Struct("<qq32s")  # rank, size, proof of the secret


def _send(peer: socket.socket, data: bytes, *, head: bool = True) -> None:
    peer.sendall(_LENGTH.pack(len(data)) + data if head else data)


def _read(peer: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = peer.recv(min(num_bytes, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _same_user(peer: socket.socket) -> bool:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.getuid())
