"""Fake hosts that are as far apart as real ones: process ids and environment of their own as well.

On a host of `support.fake_hosts` an agent's program sees all processes of the machine, inherits the
caller's environment, and ends with the agent. Here each host has a first process that stays, and
the agent enters its namespaces with an environment as ssh gives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.fake_hosts import fake_hosts
from support.launching import Launch

from blinkrun.bench.fake_hosts import FakeHosts

DEADLINE_S = 30.0
POLL_S = 0.02
_FIRST = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm; hostname {name}; echo up; exec sleep 3600"
# As ssh is called, and as it fails: hands its three streams over and waits for the exit code.
_AGENT = """\
#!{python} -SE
import socket, sys
link = socket.socket(socket.AF_UNIX)
try:
    link.connect(f"{folder}/{{sys.argv[1]}}.sshd")
except FileNotFoundError:
    sys.exit(f"ssh: Could not resolve hostname {{sys.argv[1]}}: Name or service not known")
except ConnectionRefusedError:
    sys.exit(f"ssh: connect to host {{sys.argv[1]}} port 22: Connection refused")
socket.send_fds(link, [" ".join(sys.argv[2:]).encode()], [0, 1, 2])
sys.exit(int(link.recv(8) or b"255"))
"""


class Host:
    """A host with its first process, and a thread that serves the agent as sshd does."""

    def __init__(self, name: str, folder: Path) -> None:
        words = ["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--mount", "--pid"]
        words += ["--fork", "--mount-proc", "sh", "-c", _FIRST.format(name=name)]
        self._holder = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self._holder.stdout is not None
        with self._holder.stdout as said:
            assert said.readline() == b"up\n"
        self.first = children(self._holder.pid)[0]
        self.commands: list[str] = []  # all that the agent was asked to run here
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / f"{name}.sshd"))
        (folder / f"{address_of(name)}.sshd").symlink_to(f"{name}.sshd")
        self._server.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def enter(self, cwd: str) -> list[str]:
        """Return the words that run a command on this host."""
        return [
            "nsenter",
            "-t",
            str(self.first),
            "-u",
            "-i",
            "-m",
            "-p",
            "-n",
            f"--wdns={cwd}",
            "--",
        ]

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._server.accept()
                threading.Thread(target=self._run, args=(link,), daemon=True).start()

    def _run(self, link: socket.socket) -> None:
        command, fds, _, _ = socket.recv_fds(link, 1 << 20, 3)
        self.commands.append(command.decode())
        words = [*self.enter("/"), "env", "-i", "HOME=/", "USER=root", "PATH=/usr/bin:/bin"]
        words += ["sh", "-c", command.decode()]
        started = subprocess.Popen(words, stdin=fds[0], stdout=fds[1], stderr=fds[2])
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the agent is gone, which ends nothing here
            link.sendall(str(started.wait()).encode())
        link.close()

    def stop_serving(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends the thread's accept as well
        self._server.close()

    def kill(self) -> None:
        """End the first process, and with it all others."""
        with contextlib.suppress(OSError):
            os.kill(self.first, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()


def address_of(name: str) -> str:
    """Return the address of a fake host."""
    return f"10.77.0.{int(name[-1]) + 1}"


class DistantHosts:
    """Hosts with a first process each; `agent` is what ``--launch-agent`` takes."""

    def __init__(self, hosts: FakeHosts, folder: Path) -> None:
        self.hosts = hosts
        self.names = hosts.names
        self._hosts = [Host(name, folder) for name in self.names]
        self.agent = str(folder / "agent")
        Path(self.agent).write_text(_AGENT.format(folder=folder, python=sys.executable))
        Path(self.agent).chmod(0o755)

    def commands(self, index: int) -> list[str]:
        """Return what the agent was asked to run on host `index`."""
        return self._hosts[index].commands

    def refuse(self, index: int) -> None:
        """Let the agent find nobody on host `index`."""
        self._hosts[index].stop_serving()

    def launch(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        names_agent: bool = True,
    ) -> DistantLaunch:
        """Start ``blinkrun args`` on the first host; hosts must be named in `args` or `environ`."""
        return DistantLaunch(
            [*(["--launch-agent", self.agent] if names_agent else []), *args],
            cwd=cwd,
            environ=environ,
            stdin=stdin,
            before=(*self._hosts[0].enter(str(cwd)), sys.executable),
        )

    def processes(self, index: int) -> list[str]:
        """Return the commands that run on host `index`, without the first one."""
        found = []
        for pid in self.hosts.processes(index):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words != [b""] and not any(
                    b"sleep 3600" in word for word in (*words, b" ".join(words))
                ):
                    found.append(b" ".join(words).decode(errors="replace"))
        return found

    def left(self, index: int) -> list[str]:
        """Return what still runs on host `index` after a moment, or lies in its shared memory."""
        deadline_s = time.monotonic() + DEADLINE_S / 6
        while (left := self.processes(index)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        with contextlib.suppress(OSError):
            left += os.listdir(f"/proc/{self._hosts[index].first}/root/dev/shm")
        return left

    def kill(self, index: int) -> None:
        """Let host `index` die: cut off, then nothing runs on it any more."""
        self.hosts.cut(index)
        self._hosts[index].kill()

    def close(self) -> None:
        """End all that runs on the hosts."""
        for host in self._hosts:
            host.stop_serving()
            host.kill()


class DistantLaunch(Launch):
    """A running `blinkrun` on the first host; signals go to it and not to what entered the host."""

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        os.kill(children(self.pid)[0], number)


def children(pid: int) -> list[int]:
    """Return the processes that `pid` has started."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if words:
            return [int(word) for word in words]
        time.sleep(POLL_S)
    raise AssertionError(f"process {pid} starts none")


@contextlib.contextmanager
def distant_hosts(folder: Path, count: int = 2) -> Iterator[DistantHosts]:
    """Make `count` hosts for a test; skips it where there can be none (``--require=hosts``)."""
    with fake_hosts(count) as hosts:
        distant = DistantHosts(hosts, folder)
        try:
            yield distant
        finally:
            distant.close()
