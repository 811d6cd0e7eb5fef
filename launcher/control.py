"""The launcher's side of the connections to the supervisors of the ranks."""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
from collections.abc import Mapping

from blinkrun.launcher.agent import (
    CONTROL,
    DONE,
    EXIT,
    GO,
    HELLO,
    KILL,
    READ_BYTES,
    REPORT,
    STARTED,
    TOKEN,
    TOLD,
    Decoder,
    encode,
)
from blinkrun.launcher.outcome import RankRecord, Report

Fields = Mapping[str, object]
SEND_S = 10.0  # for the order to start, which may be long and is read at once


class Connection:
    """One supervisor, known by its rank once it has said hello; keeps what it has told."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.fd = link.fileno()
        self.decoder = Decoder()
        self.rank = -1
        self.size = -1
        self.host = ""
        self.pid = 0  # of the rank's program
        self.code: int | None = None
        self.ended_s: float | None = None
        self.ordered = False
        self.report: Report | None = None
        self.told_s: float | None = None
        self.lost_s: float | None = None
        self.is_done = False

    def read(self) -> list[tuple[int, bytes]] | None:
        """Return the frames that have come; None once the supervisor is gone."""
        try:
            data = self.link.recv(READ_BYTES)
            return self.decoder.feed(data) if data else None
        except BlockingIOError:
            return []
        except OSError:
            return None

    def go(self, order: Mapping[str, object], stdin: int | None) -> None:
        """Let the program start, with the launcher's stdin where given."""
        frame = encode(GO, order)
        self.link.settimeout(SEND_S)
        # A supervisor that is going: its end is read from the same socket.
        with contextlib.suppress(OSError):
            if stdin is not None:
                sent = socket.send_fds(self.link, [frame], [stdin])
                frame = frame[sent:]
            self.link.sendall(frame)
        self.link.setblocking(False)

    def kill(self, number: int) -> None:
        """Have the program ended by a signal: a few bytes, which a supervisor always takes."""
        with contextlib.suppress(OSError):
            self.link.sendall(encode(KILL, int(number)))

    def note(self, kind: int, body: bytes, now_s: float) -> None:
        """Take note of an event; output is not one."""
        fields = marshal.loads(body)
        if kind == STARTED:
            self.pid = fields["pid"]
        elif kind == REPORT:
            self.report = _parsed(fields, now_s) or self.report
        elif kind == EXIT:
            self.code = fields["code"]
            self.ended_s = fields["time"]
            self.ordered = fields["ordered"]
        elif kind == TOLD:
            self.told_s = fields["time"]
        elif kind == DONE:
            self.is_done = True

    def record(self, tail: tuple[str, ...]) -> RankRecord:
        """Return what is known of this rank."""
        return RankRecord(
            rank=self.rank,
            host=self.host,
            code=self.code,
            ended_s=self.ended_s,
            ordered=self.ordered,
            report=self.report,
            told_s=self.told_s,
            lost_s=self.lost_s,
            tail=tail,
        )


def _parsed(fields: Fields, now_s: float) -> Report | None:
    """Return the report in an event: JSON lines of the program's runner, or the fields as such."""
    text = fields.get("json")
    if not isinstance(text, bytes):
        return Report.parse(fields, now_s)
    import json  # noqa: PLC0415  (most jobs end without it being needed before the end)

    try:
        last = json.loads(text.splitlines()[-1])
    except ValueError:
        return None  # the program has written to a descriptor that is not its own
    time_s = fields.get("time", now_s)
    return Report.parse(last, float(str(time_s))) if isinstance(last, dict) else None


class ControlServer:
    """Listens for supervisors on an abstract unix socket: no file, no port, this host only."""

    def __init__(self, num_ranks: int) -> None:
        self.job = os.urandom(8).hex()
        self._token = os.urandom(16).hex()
        self._name = f"blinkrun-{os.getpid()}-{os.urandom(8).hex()}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind("\0" + self._name)
        self._server.listen(num_ranks + 16)
        self._server.setblocking(False)
        self.fd = self._server.fileno()

    def environ(self) -> dict[str, str]:
        """Return the variables by which the supervisors find and convince the launcher."""
        return {CONTROL: self._name, TOKEN: self._token}

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
        token, rest = body[: len(self._token)], body[len(self._token) :]
        if kind != HELLO or token != self._token.encode():
            return False
        fields = marshal.loads(rest)  # only after the token: marshal trusts its input
        connection.rank = int(fields["rank"])
        connection.size = int(fields["size"])
        connection.host = str(fields["host"])
        return True

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
