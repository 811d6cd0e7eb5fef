"""How the ranks of one host come to share memory: memfds, handed over a unix socket.

Each rank makes a memfd, its arena. The first rank listens on an abstract socket (no file, no
/dev/shm, gone with the process), whose random name the control plane tells the others. They send
their arenas and get everyone's, and the control block's, back. Only processes of the same user
are answered.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blinkrun.comm.base import ControlPlane
from blinkrun.errors import LaunchError
from blinkrun.types import Rank

_HELLO = struct.Struct("<16sI")
_MAX_FDS = 250  # per message; the kernel's limit is 253


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """File descriptors of this process; the caller closes them once they are mapped."""

    control: int
    arenas: tuple[int, ...]

    def close(self) -> None:
        """Close all of them."""
        for fd in (self.control, *self.arenas):
            os.close(fd)


def make_memory(name: str, num_bytes: int) -> int:
    """Return a new memfd of `num_bytes`; pages exist only once they are touched."""
    fd = os.memfd_create(f"blinkrun-{name}", os.MFD_CLOEXEC)
    os.ftruncate(fd, num_bytes)
    return fd


def exchange(
    control: ControlPlane,
    ranks: Sequence[Rank],
    *,
    make_control: Callable[[], int],
    arena_bytes: int,
    timeout_s: float,
) -> SharedFiles:
    """Return the shared files of the `ranks` of this host; all ranks of `control` must call it.

    The first rank calls `make_control` for the control block's file.

    Raises
    ------
    LaunchError
        If the ranks cannot reach each other on this host within `timeout_s`.
    """
    arena = make_memory(f"arena-{control.rank}", arena_bytes)
    leads = control.rank == ranks[0]
    listener = _listen(len(ranks)) if leads and len(ranks) > 1 else None
    secret = secrets.token_bytes(16) if listener else b""
    address = listener.getsockname() if listener else b""
    invitations = control.allgather((address, secret))
    if len(ranks) == 1:
        return SharedFiles(make_control(), (arena,))
    address, secret = invitations[ranks[0]]
    index = ranks.index(control.rank)
    try:
        if listener is not None:
            files = _serve(listener, ranks, secret, arena, make_control, timeout_s)
        else:
            files = _visit(address, index, secret, arena, len(ranks), timeout_s)
    except OSError as err:
        raise LaunchError(
            f"rank {control.rank} cannot share memory with rank {ranks[0]} of the same host"
            f" ({err or type(err).__name__}); ranks in different containers or network namespaces"
            " cannot reach each other's sockets: set BLINKRUN_HOST to another name in each of them,"
            " and they count as hosts of their own"
        ) from err
    return files


def _listen(backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0blinkrun-{secrets.token_hex(8)}")
    listener.listen(backlog)
    return listener


def _serve(  # noqa: PLR0913, PLR0917 - one call
    listener: socket.socket,
    ranks: Sequence[Rank],
    secret: bytes,
    arena: int,
    make_control: Callable[[], int],
    timeout_s: float,
) -> SharedFiles:
    """Collect the arena of every other rank, then send all files to each."""
    arenas = {0: arena}
    with contextlib.ExitStack() as open_sockets:
        open_sockets.enter_context(listener)
        listener.settimeout(timeout_s)
        guests = []
        while len(arenas) < len(ranks):
            try:
                guest, _ = listener.accept()
            except TimeoutError:
                late = [ranks[i] for i in range(len(ranks)) if i not in arenas]
                raise OSError(f"ranks {late} did not come within {timeout_s:g} s") from None
            open_sockets.enter_context(guest)
            guest.settimeout(timeout_s)
            hello = _hello(guest, secret)
            if hello is None:
                guest.close()
                continue
            index, theirs = hello
            arenas[index] = theirs
            guests.append(guest)
        files = SharedFiles(make_control(), tuple(arenas[i] for i in range(len(ranks))))
        for guest in guests:
            _send_all(guest, (files.control, *files.arenas))
    return files


def _hello(guest: socket.socket, secret: bytes) -> tuple[int, int] | None:
    """Return the index and the arena of a guest, or None for a stranger."""
    if not _same_user(guest):
        return None
    message, fds, _, _ = socket.recv_fds(guest, _HELLO.size, 1)
    if len(message) == _HELLO.size and len(fds) == 1:
        said, index = _HELLO.unpack(message)
        if said == secret:
            return index, fds[0]
    for fd in fds:
        os.close(fd)
    return None


def _visit(  # noqa: PLR0913, PLR0917 - one call
    address: bytes, index: int, secret: bytes, arena: int, size: int, timeout_s: float
) -> SharedFiles:
    """Send own arena, take everyone's files."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
        host.settimeout(timeout_s)
        host.connect(address)
        if not _same_user(host):
            raise OSError("the socket belongs to another user")
        socket.send_fds(host, [_HELLO.pack(secret, index)], [arena])
        fds: list[int] = []
        while len(fds) < size + 1:
            message, more, _, _ = socket.recv_fds(host, 1, _MAX_FDS)
            if not message:
                raise OSError("the other rank closed the connection")
            fds += more
    os.close(arena)  # the same memory came back among the others
    return SharedFiles(fds[0], tuple(fds[1:]))


def _send_all(guest: socket.socket, fds: Sequence[int]) -> None:
    for start in range(0, len(fds), _MAX_FDS):
        socket.send_fds(guest, [b"f"], fds[start : start + _MAX_FDS])


def _same_user(peer: socket.socket) -> bool:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.getuid())
