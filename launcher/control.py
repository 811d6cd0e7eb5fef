"""The launcher's side of the connections to the supervisors of the ranks."""

from __future__ import annotations

import marshal
import os
import socket
import struct
from collections.abc import Sequence

from blinkrun.launcher.agent import CONTROL, TOKEN, host_mark
from blinkrun.launcher.agent_tools import HELLO
from blinkrun.launcher.connection import Connection
from blinkrun.launcher.far import FarConnection

SPARE_LINKS = 64  # connections of others than this job's ranks, which prove nothing


class ControlServer:
    """Listens for supervisors; those of this host by an abstract unix socket: no file, no port.

    With `addresses`, those of other hosts reach it there over TCP; see `far`.
    """

    def __init__(self, num_ranks: int, addresses: Sequence[str] = (), limit_s: float = 0.0) -> None:
        self.job = os.urandom(8).hex()
        self._token = os.urandom(16).hex()
        self._name = f"blinkrun-{os.getpid()}-{os.urandom(8).hex()}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind("\0" + self._name)
        self._server.listen(num_ranks + 16)
        self._server.setblocking(False)
        self.fd = self._server.fileno()
        self.far = FarServer(addresses, self._token, num_ranks) if addresses else None
        self._limit_s = limit_s

    def environ(self) -> dict[str, str]:
        """Return the variables by which the supervisors find and convince the launcher.

        The first is the socket's name; where there are other hosts, what tells this one from them,
        after how many seconds of silence a supervisor there gives up, and the addresses follow.
        """
        words = [self._name]
        if self.far is not None:
            words += [host_mark(), f"{self._limit_s:g}", ",".join(self.far.addresses)]
        return {CONTROL: "|".join(words), TOKEN: self._token}

    def accept(self) -> Connection | None:
        """Return a new connection, of a process of this user only."""
        try:
            link, _ = self._server.accept()
        except OSError:
            return None
        peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", peer)[1] != os.getuid():
            link.close()
            return None
        link.setblocking(False)
        return Connection(link)

    def greet(self, connection: Connection, kind: int, body: bytes) -> bool:
        """Take the first frame of a connection; whether it is a supervisor of this job."""
        # One on another host has proven that it knows the token before its first frame.
        token = b"" if connection.is_far else self._token.encode()
        if kind != HELLO or not body.startswith(token):
            return False
        fields = marshal.loads(body[len(token) :])  # only after the token: it trusts its input
        connection.hello(fields)
        return True

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        if self.far is not None:
            self.far.close()


class FarServer:
    """Listens on TCP: a port of the system's choice at each of some addresses of this host."""

    def __init__(self, addresses: Sequence[str], secret: str, num_ranks: int) -> None:
        self._secret = secret
        self._servers = {}
        self.addresses = []
        self._num_open = num_ranks + SPARE_LINKS
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = socket.create_server((address, 0), family=family, backlog=num_ranks + 16)
            server.setblocking(False)
            port = server.getsockname()[1]
            self._servers[server.fileno()] = server
            self.addresses.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")

    @property
    def fds(self) -> Sequence[int]:
        """Descriptors that become readable when somebody connects."""
        return list(self._servers)

    def accept(self, fd: int, num_links: int) -> FarConnection | None:
        """Return a new connection, of anybody; no more than a job can have with some to spare."""
        try:
            link, _ = self._servers[fd].accept()
        except OSError:
            return None
        if num_links >= self._num_open:
            link.close()
            return None
        return FarConnection(link, self._secret)

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()
