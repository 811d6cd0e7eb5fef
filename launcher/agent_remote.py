"""What a supervisor does besides when it is on another host than the launcher.

Loaded by `agent` there only, by its name from the same folder. The launcher is reached over TCP;
both ends prove that they know the job's secret before either reads more than a few bytes of the
other. Nobody on this host but the supervisors knows of the job's end, or of a launcher that is
gone: they listen for its beats, and leave nothing behind when these stay away.
"""

from __future__ import annotations

import _socket as socket
import hashlib
import hmac
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

if TYPE_CHECKING or "blinkrun" in sys.modules:
    from blinkrun.launcher import agent_tools as tools
else:  # beside `agent`, which is run by its path
    tools = __import__("agent_tools")

BEAT, TAKEN, STDIN, LEAVE = b"BAIL"  # beats go both ways; the others are the launcher's, but TAKEN
MAGIC = b"blinkrun control 1\n"
NONCE_BYTES = 32
ADDRESS_S = 5.0  # for one address of the launcher to answer
HELPER_S = 1.0  # for the MPI's helper to end by itself, and again after SIGTERM
HELPERS = ("prte", "orte", "hydra", "pmi_proxy")  # as their names begin
SIGTERM, SIGKILL = 15, 9
STDIN_PIECE = 1 << 16


def proof(secret: str, side: bytes, *nonces: bytes) -> bytes:
    """Return what only one who knows `secret` can say, as `side` of one conversation."""
    return hmac.new(secret.encode(), side + b"".join(nonces), hashlib.sha256).digest()


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ``10.0.0.1:4000`` or ``[fe80::1]:4000``."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def connect(addresses: str, secret: str) -> socket.socket:
    """Return the connection to the launcher, which has proven that it knows `secret`.

    Raises
    ------
    OSError
        If no address of those, which commas divide, is the launcher's.
    """
    problems = []
    for text in addresses.split(","):
        host, port = split_address(text)
        link = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            link.settimeout(ADDRESS_S)
            link.connect((host, port))
            _introduce(link, secret)
        except OSError as err:
            link.close()
            problems.append(f"{text}: {err.strerror or err}")
            continue
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        return link
    raise OSError(f"{'; '.join(problems)}; is a firewall between? --network-interface chooses")


def _introduce(link: socket.socket, secret: str) -> None:
    """Prove to the launcher that this is a rank of its job, and see its proof."""
    greeting = _exactly(link, len(MAGIC) + NONCE_BYTES)
    if not greeting.startswith(MAGIC):
        raise OSError("something else than the launcher answers")
    theirs = greeting[len(MAGIC) :]
    own = os.urandom(NONCE_BYTES)
    link.sendall(own + proof(secret, b"rank", theirs, own))
    answer = _exactly(link, hashlib.sha256().digest_size)
    if not hmac.compare_digest(answer, proof(secret, b"launcher", own, theirs)):
        raise OSError("it is not this job's launcher")


def _exactly(link: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        piece = link.recv(num_bytes - len(data))
        if not piece:
            raise OSError("the connection was closed; it is not this job's launcher")
        data += piece
    return data


def group_cpu_seconds(group: int) -> float:
    """Return the CPU time that the living processes of a process group have used."""
    ticks = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[2]) == group:  # proc(5): pgrp is field 5, utime 14, stime 15
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def free_port(link: socket.socket) -> int:
    """Return a port that nobody uses at the address by which the launcher is reached."""
    probe = socket.socket(link.family)
    try:
        probe.bind((link.getsockname()[0], 0))
        return int(probe.getsockname()[1])
    finally:
        probe.close()


class Remote:
    """The part of a supervisor that is for other hosts: beats, input over the wire, the end."""

    def __init__(self, limit_s: float, helper: int) -> None:
        self.limit_s = limit_s
        self.heard_s = time.monotonic()
        self.helper = helper
        self.helper_fd = _helper_fd(helper)
        self.stdin_read = self.stdin_write = -1
        self.input = bytearray()
        self.input_ended = False
        self.lingers = False

    def wait_ms(self, wait_ms: float | None) -> float:
        """Return how long the supervisor may sleep."""
        due_ms = max(0.0, self.heard_s + self.limit_s - time.monotonic()) * 1e3 + 1
        return due_ms if wait_ms is None else min(due_ms, wait_ms)

    def register(self, poll: select.poll) -> None:
        """Wait for the program to take its input, where there is some."""
        if self.stdin_write >= 0 and (self.input or self.input_ended):
            poll.register(self.stdin_write, select.POLLOUT)

    def take(self, supervisor: Any, kind: int, body: bytes) -> None:
        """Carry out an order of the launcher that is for other hosts only."""
        if kind == BEAT:
            cpu_s = 0.0
            if supervisor.child and supervisor.code is None and marshal.loads(body):
                cpu_s = group_cpu_seconds(supervisor.child)
            supervisor.send(BEAT, {"time": time.monotonic(), "cpu_s": cpu_s})
        elif kind == STDIN:
            self.input += body
            self.input_ended = self.input_ended or not body
        elif kind == LEAVE:
            self.leave(supervisor)

    def tick(self, supervisor: Any) -> None:
        """Pass input on; end if the launcher has not been heard for too long."""
        if self.stdin_write >= 0:
            self._feed(supervisor)
        if time.monotonic() - self.heard_s > self.limit_s:
            supervisor.orphaned()

    def open_stdin(self) -> int:
        """Return where the program reads what the launcher sends as its input."""
        self.stdin_read, self.stdin_write = os.pipe()
        os.set_blocking(self.stdin_write, False)
        return self.stdin_read

    def _feed(self, supervisor: Any) -> None:
        try:
            while self.input:
                sent = os.write(self.stdin_write, self.input[:STDIN_PIECE])
                del self.input[:sent]
                supervisor.send(TAKEN, sent)
        except BlockingIOError:
            return
        except OSError:  # the program reads no more
            supervisor.send(TAKEN, len(self.input))
            self.input.clear()
            self.input_ended = True
        if self.input_ended:
            os.close(self.stdin_write)
            self.stdin_write = -1

    def linger(self, supervisor: Any) -> None:
        """The rank is over: let the MPI know, and stay until the whole job is.

        What the program has started, and memory that it has left, may serve other ranks of this
        host until then.
        """
        self.lingers = True
        with tools.Quietly():  # the MPI may have ended the stub already
            os.write(supervisor.code_fd, bytes([supervisor.exit_code() & 255]))
        supervisor.stub = self.stdin_write = -1
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        # The MPI's helper waits until all that it shares with a rank is closed.
        kept = (0, 1, 2, supervisor.control.fileno(), self.helper_fd)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                with tools.Quietly():  # one was that of the list itself
                    os.close(int(name))

    def leave(self, supervisor: Any) -> None:
        """The job is over and all is well: leave nothing on this host."""
        supervisor.clear()
        os._exit(0)

    def end_helper(self) -> None:
        """Let the MPI's helper of this host end, which may not know that the job has.

        As long as its descriptor is not readable, no other process can have its number.
        """
        if self.helper_fd < 0:
            return
        poll = select.poll()
        poll.register(self.helper_fd, select.POLLIN)
        for number in (SIGTERM, SIGKILL):
            if poll.poll(HELPER_S * 1e3):
                return
            tools.kill_quietly(self.helper, number)


def _helper_fd(helper: int) -> int:
    """Return a descriptor of the process that started this rank, if it is one of an MPI's."""
    try:
        with open(f"/proc/{helper}/comm") as file:
            name = file.read()
        return os.pidfd_open(helper) if name.startswith(HELPERS) else -1
    except OSError:
        return -1
