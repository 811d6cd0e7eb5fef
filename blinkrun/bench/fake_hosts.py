"""Fake hosts for measurements on one machine: network namespaces that a script joins by a bridge.

The script is `tests/support/fake_hosts.sh` of the source tree; it needs root. Each host has a name,
a network interface, a /dev/shm and an IPC namespace of its own, and nothing leaves the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from blinkrun.errors import LaunchError

STEP_S = 30.0  # the longest that a step of the script may take; they take milliseconds
GONE_S = 2.0  # what a killed process gets to be gone
_numbers = itertools.count()


@cache
def why_not(script: Path) -> str | None:
    """Return why there can be no fake hosts here, None if there can."""
    if not script.is_file():
        return f"fake hosts need {script}"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"fake hosts need {' and '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "fake hosts need root, which makes network namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "true"],
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    if tried.returncode != 0:
        return f"fake hosts need network namespaces, but {tried.stderr.strip()}"
    return None


@dataclass(frozen=True, slots=True)
class FakeHosts:
    """Hosts that `fake_hosts` has made.

    Attributes
    ----------
    script : Path
        What made them, and what runs a command on one of them as ssh does: a launch agent.
    count : int
        How many.
    prefix : str
        What their names begin with.
    """

    script: Path
    count: int
    prefix: str = field(default_factory=lambda: f"h{os.getpid()}{'abcdefgh'[next(_numbers) % 8]}")

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' names, which they resolve to each other's addresses."""
        return tuple(f"{self.prefix}{index}" for index in range(self.count))

    @property
    def agent(self) -> str:
        """What ``blinkrun --launch-agent`` takes."""
        return str(self.script)

    def slots(self, *slots: int) -> str:
        """Return what ``blinkrun -H`` takes: so many slots on each host, hosts with 0 left out."""
        pairs = zip(self.names, slots, strict=False)
        return ",".join(f"{name}:{number}" for name, number in pairs if number)

    def command(self, index: int, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on host `index`, as they are."""
        return [self.agent, self.names[index], *map(shlex.quote, words)]

    def rate(self, rate: str | None, index: int | None = None) -> None:
        """Limit all links, or that of one host, both ways: ``1gbit``, ``10mbit``; None is free."""
        self._step("rate", rate or "none", *([] if index is None else [str(index)]))

    def cut(self, index: int) -> None:
        """Take the network interface of host `index` down."""
        self._step("cut", str(index))

    def mend(self, index: int) -> None:
        """Take it up again."""
        self._step("mend", str(index))

    def processes(self, index: int) -> list[int]:
        """Return the processes on host `index`."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.names[index]],
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        return [int(word) for word in done.stdout.split()]

    def up(self) -> None:
        """Make the hosts."""
        self._step("up")

    def down(self) -> None:
        """Kill what still runs on the hosts and take them away."""
        deadline_s = time.monotonic() + GONE_S
        while left := [pid for index in range(self.count) for pid in self.processes(index)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        self._step("down")

    def _step(self, *words: str) -> None:
        environ = {**os.environ, "PREFIX": self.prefix, "N": str(self.count)}
        done = subprocess.run(
            [str(self.script), *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        if done.returncode != 0:
            said = " / ".join(done.stderr.strip().splitlines()[-3:])
            raise LaunchError(f"fake hosts: '{' '.join(words)}' failed: {said}")


@contextlib.contextmanager
def fake_hosts(script: Path, count: int = 2, rate: str | None = None) -> Iterator[FakeHosts]:
    """Make `count` hosts whose links have `rate`, and take them away in any case.

    Raises
    ------
    LaunchError
        If there can be none here; `why_not` tells beforehand.
    """
    reason = why_not(script)
    if reason is not None:
        raise LaunchError(reason)
    hosts = FakeHosts(script, count)
    try:
        hosts.up()
        if rate is not None:
            hosts.rate(rate)
        yield hosts
    finally:
        hosts.down()
