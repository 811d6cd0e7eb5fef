"""One supervisor, as the launcher sees it: what it is told, and what it has told."""

from __future__ import annotations

import contextlib
import marshal
import socket
from collections.abc import Mapping
from typing import Any

from blinkrun.launcher.agent import READ_BYTES
from blinkrun.launcher.agent_tools import (
    DONE,
    EXIT,
    GO,
    KILL,
    REPORT,
    STARTED,
    TOLD,
    Decoder,
    encode,
)
from blinkrun.launcher.outcome import RankRecord, Report

SEND_S = 10.0  # for the order to start, which may be long and is read at once


class Connection:
    """One supervisor, known by its rank once it has said hello; keeps what it has told."""

    is_far = False  # whether it is on another host

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.fd = link.fileno()
        self.decoder = Decoder()
        self.rank = -1
        self.size = -1
        self.host = ""
        self.pid = 0  # of the rank's program
        self.cpu_s = 0.0  # that a program on another host has used
        self.code: int | None = None
        self.ended_s: float | None = None
        self.ordered = False
        self.report: Report | None = None
        self.told_s: float | None = None
        self.lost_s: float | None = None
        self.silent_s: float | None = None  # how long it was not heard, where that is why
        self.is_done = False

    def hello(self, fields: Mapping[str, Any]) -> None:
        """Take note of who this is."""
        self.rank = int(fields["rank"])
        self.size = int(fields["size"])
        self.host = str(fields["host"])

    @property
    def has_to_write(self) -> bool:
        """Whether `flush` has something to do."""
        return False

    def flush(self) -> None:
        """Send what waits; here nothing ever does."""

    def at(self, time_s: float) -> float:
        """Return a time of the supervisor's clock on the launcher's."""
        return time_s

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
            self.report = _parsed(fields, self.at(fields.get("time", now_s))) or self.report
        elif kind == EXIT:
            self.code = fields["code"]
            self.ended_s = self.at(fields["time"])
            self.ordered = fields["ordered"]
        elif kind == TOLD:
            self.told_s = self.at(fields["time"])
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
            silent_s=self.silent_s,
            tail=tail,
        )


def _parsed(fields: Mapping[str, Any], time_s: float) -> Report | None:
    """Return the report in an event: JSON lines of the program's runner, or the fields as such."""
    text = fields.get("json")
    if not isinstance(text, bytes):
        return Report.parse(fields, time_s)
    import json  # noqa: PLC0415  (most jobs end without it being needed before the end)

    try:
        last = json.loads(text.splitlines()[-1])
    except ValueError:
        return None  # the program has written to a descriptor that is not its own
    return Report.parse(last, time_s) if isinstance(last, dict) else None
