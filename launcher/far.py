"""Supervisors on other hosts: connections that prove themselves, beats, input over the wire.

What is sent to them waits in a buffer until the network takes it: a host that is cut off must not
hold up the launcher. They are asked for a sign of life regularly; one that gives none for the
limit is lost, and so is its host. Their clocks are their own: an event's time is moved by the
smallest difference seen between the moment at which something was sent and that at which it came.
"""

from __future__ import annotations

import hmac
import ipaddress
import marshal
import os
import re
import select
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blinkrun.launcher.agent import READ_BYTES
from blinkrun.launcher.agent_remote import (
    BEAT,
    LEAVE,
    MAGIC,
    NONCE_BYTES,
    STDIN,
    TAKEN,
    proof,
)
from blinkrun.launcher.agent_tools import GO, KILL, encode
from blinkrun.launcher.connection import Connection
from blinkrun.launcher.ddp_hook import HOST_INDEX, NUM_HOSTS
from blinkrun.launcher.hosts import Placement
from blinkrun.launcher.remote import AgentScript

BEATS = 8  # in the limit: some may come late
BEAT_S = 5.0  # at most between two
PROBE_S = 1.5  # for an answer where something has happened that a lost host would explain
LEAVE_S = 3.0  # for supervisors to leave nothing behind and go
PROOF_S = 10.0  # for one who connects to prove that it belongs to the job
INPUT_BYTES = 1 << 18  # of input that is under way
STDIN_FD = 0
OWN_WORDS = "blinkrun: "
LOST = "cannot reach the launcher: "

# Variables that are about the host or the terminal of the launcher, and wrong on another one.
_OF_A_HOST = re.compile(
    r"HOST(NAME|TYPE)?|(OLD)?PWD|SHLVL|_|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|WINDOWID|TMUX\w*|STY"
    r"|SSH_\w+|XDG_(RUNTIME_DIR|SESSION_\w+|SEAT|VTNR)|DBUS_\w+|KRB5CCNAME|MAIL|BASH_FUNC_.*"
    r"|SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|CPU_BIND\w*|LAUNCH_NODE_IPADDR|STEP_\w+)"
    r"|SLURMD_\w+|SLURM_TOPOLOGY_ADDR\w*|PBS_(NODENUM|TASKNUM|VNODENUM)|NOTIFY_SOCKET|INVOCATION_ID"
    r"|KUBERNETES_\w+|NVIDIA_VISIBLE_DEVICES"
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A job over several hosts: which ranks are where, and how the others reach the launcher.

    Attributes
    ----------
    placements : tuple of Placement
        The hosts, in the order of their ranks.
    addresses : tuple of str
        Addresses of this host for the supervisors of others.
    script : AgentScript
        What the MPI starts its helpers with.
    environ : mapping
        What the programs on other hosts see of the launcher's environment.
    limit_s : float
        How long a host may be silent.
    """

    placements: tuple[Placement, ...]
    addresses: tuple[str, ...]
    script: AgentScript
    environ: Mapping[str, str]
    limit_s: float

    def of_rank(self, rank: int, order: Mapping[str, Any], *, is_far: bool) -> dict[str, object]:
        """Return what is other in the order to start a rank, because of where it is."""
        index = next(at for at, place in enumerate(self.placements) if rank in place.ranks)
        environ = {**(self.environ if is_far else {}), **order["environ"]}
        environ.update({HOST_INDEX: str(index), NUM_HOSTS: str(len(self.placements))})
        names, _ = order["threads"]
        return {"environ": environ, "threads": (names, self.placements[index].num_ranks)}

    def misplaced(self, hosts: Mapping[int, str]) -> str | None:
        """Return which rank the MPI has put on a wrong host; None if all are where they belong.

        Parameters
        ----------
        hosts : mapping of int to str
            What each rank's host calls itself, which may be other than it is called here.
        """
        for place in self.placements:
            names = {rank: hosts[rank] for rank in place.ranks}
            for rank, name in names.items():
                if name != names[place.first_rank]:
                    return (
                        f"mpiexec put rank {rank} on host {name}, it belongs on host {place.name};"
                        " the MPI's own settings or a batch system interfere"
                    )
        return None

    def problems(self, mpi_text: str) -> list[str]:
        """Return why ranks on other hosts will not come up, as far as that is known by now.

        Parameters
        ----------
        mpi_text : str
            What the MPI has written; supervisors that find no launcher say so there.
        """
        lines = [line.strip() for line in mpi_text.splitlines(keepends=True) if line.endswith("\n")]
        said = [line[line.index(OWN_WORDS) + len(OWN_WORDS) :] for line in lines if LOST in line]
        return self.script.failures() or said[:1]


def portable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mean the same on another host.

    >>> portable({"PATH": "/bin", "SSH_CLIENT": "10.0.0.1", "DISPLAY": ":0", "HOSTNAME": "a"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in environ.items() if not _OF_A_HOST.fullmatch(name)}


class FarConnection(Connection):
    """A supervisor on another host; whoever connects has to prove that it is one."""

    is_far = True

    def __init__(self, link: socket.socket, secret: str) -> None:
        super().__init__(link)
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard_s = self.since_s = time.monotonic()
        self.port = 0  # that nobody uses on its host
        self.is_proven = False
        self.in_flight = 0  # bytes of input that the program has not read
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._claim = bytearray()
        self._offset_s = float("inf")
        self._outbox = bytearray(MAGIC + self._nonce)

    def read(self) -> list[tuple[int, bytes]] | None:
        """Return the frames that have come; None once the supervisor is gone, or is none."""
        try:
            data = self.link.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.heard_s = time.monotonic()
        if self.is_proven:
            try:
                return self.decoder.feed(data)
            except OSError:
                return None
        return [] if self._prove(data) else None

    def _prove(self, data: bytes) -> bool:
        """Take what was sent before the launcher's own proof; whether all is well so far."""
        self._claim += data
        theirs, claim = bytes(self._claim[:NONCE_BYTES]), bytes(self._claim[NONCE_BYTES:])
        wanted = proof(self._secret, b"rank", self._nonce, theirs)
        if len(claim) < len(wanted):
            return True
        if not hmac.compare_digest(claim, wanted):
            return False
        self.is_proven = True
        self._outbox += proof(self._secret, b"launcher", theirs, self._nonce)
        return True

    def hello(self, fields: Mapping[str, Any]) -> None:
        """Take note of who this is."""
        super().hello(fields)
        self.port = int(fields.get("port", 0))
        self._learn(fields)

    def _learn(self, fields: Mapping[str, Any]) -> None:
        self._offset_s = min(self._offset_s, time.monotonic() - fields["time"])

    def at(self, time_s: float) -> float:
        """Return a time of the supervisor's clock on the launcher's."""
        return time_s + self._offset_s

    def note(self, kind: int, body: bytes, now_s: float) -> None:
        """Take note of an event."""
        if kind == BEAT:
            fields = marshal.loads(body)
            self._learn(fields)
            self.cpu_s = fields["cpu_s"]
        elif kind == TAKEN:
            self.in_flight -= marshal.loads(body)
        else:
            super().note(kind, body, now_s)

    @property
    def has_to_write(self) -> bool:
        """Whether something waits for the network."""
        return bool(self._outbox)

    def flush(self) -> None:
        """Send what the network takes now."""
        try:
            sent = self.link.send(self._outbox[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:  # that it is gone is seen where it is read
            sent = len(self._outbox)
        del self._outbox[:sent]

    def send(self, kind: int, payload: object) -> None:
        """Queue a frame, and send what the network takes at once."""
        self._outbox += encode(kind, payload)
        self.flush()

    def go(self, order: Mapping[str, object], stdin: int | None) -> None:
        """Let the program start; its input, where it gets some, follows."""
        self.send(GO, {**order, "stdin": stdin is not None})

    def kill(self, number: int) -> None:
        """Have the program ended by a signal."""
        self.send(KILL, int(number))

    @property
    def address(self) -> str:
        """Address by which this host reaches the supervisor's."""
        return str(self.link.getpeername()[0])


class FarSide:
    """Looks after all supervisors on other hosts: beats, silence, input, the end."""

    def __init__(self, limit_s: float, *, wants_cpu: bool) -> None:
        self.limit_s = limit_s
        self._beat_s = min(BEAT_S, limit_s / BEATS)
        self._wants_cpu = wants_cpu
        self._next_beat_s = 0.0
        self._input_ended = False
        self._probed_s = 0.0

    @property
    def due_s(self) -> float:
        """When `tick` has something to do."""
        return self._next_beat_s

    def tick(
        self, links: Iterable[Connection], now_s: float, *, reads: bool
    ) -> list[FarConnection]:
        """Send beats that are due; return the supervisors that were not heard for too long.

        Where the launcher does not read them (`reads`), they are silent for that reason alone.
        """
        far = [link for link in links if isinstance(link, FarConnection)]
        if not reads:
            for link in far:
                link.heard_s = now_s
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_s
            for link in far:
                if link.rank >= 0:
                    link.send(BEAT, self._wants_cpu)
        return [
            link
            for link in far
            if now_s - link.heard_s > self.limit_s
            or (link.rank < 0 and now_s - link.since_s > PROOF_S)
        ]

    def probe(self, links: Iterable[Connection], now_s: float) -> None:
        """Ask all for a sign of life at once."""
        self._probed_s = now_s
        self._next_beat_s = 0.0
        self.tick(links, now_s, reads=True)

    def unanswered(self, links: Iterable[Connection]) -> list[FarConnection]:
        """Return those that were not heard since `probe`."""
        far = (link for link in links if isinstance(link, FarConnection) and link.rank >= 0)
        return [link for link in far if link.heard_s < self._probed_s]

    def takes_input(self, link: Connection | None) -> bool:
        """Whether input of the launcher should be read now, for a rank on another host."""
        if not isinstance(link, FarConnection) or self._input_ended or link.lost_s is not None:
            return False
        if link.in_flight >= INPUT_BYTES or link.code is not None:
            return False
        try:  # a job in the background must not be stopped because it might want to read
            return not os.isatty(STDIN_FD) or os.tcgetpgrp(STDIN_FD) == os.getpgrp()
        except OSError:
            return False

    def pass_input(self, link: Connection) -> None:
        """Read a piece of the launcher's input and send it on; an empty one is its end."""
        if not isinstance(link, FarConnection):
            return
        try:
            data = os.read(STDIN_FD, READ_BYTES)
        except OSError:
            data = b""
        self._input_ended = not data
        link.in_flight += len(data)
        link.send(STDIN, data)

    def dismiss(self, links: Collection[Connection]) -> None:
        """Tell all that the job is over, and wait until they have left nothing behind."""
        waiting = {
            link.fd: link for link in links if isinstance(link, FarConnection) and link.is_proven
        }
        for link in waiting.values():
            link.send(LEAVE, b"")
        deadline_s = time.monotonic() + LEAVE_S
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            poll = select.poll()
            for fd, link in waiting.items():
                poll.register(fd, select.POLLIN | (select.POLLOUT if link.has_to_write else 0))
            for fd, events in poll.poll(left_s * 1e3):
                if events & select.POLLOUT:
                    waiting[fd].flush()
                if events & ~select.POLLOUT and waiting[fd].read() is None:
                    del waiting[fd]


def meeting_point(first: Connection | None, addresses: Collection[str]) -> tuple[str, int | None]:
    """Return address and free port at which all can meet rank 0; None: any port of this host."""
    if isinstance(first, FarConnection):
        return first.address, first.port
    return next(iter(sorted(addresses, key=_is_ipv6))), None


def _is_ipv6(address: str) -> bool:
    return ipaddress.ip_address(address).version == 6
