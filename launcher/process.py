"""Starting and ending mpiexec, and catching the signals of the launcher itself."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

from blinkrun.errors import LaunchError
from blinkrun.launcher.agent_tools import kill_group

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_MAX_TEXT = 1 << 16
_READ_BYTES = 1 << 16
_CLOSE_S = 1.0


class MpiProcess:
    """A running mpiexec: in a session of its own, told to end when the launcher dies.

    The session matters: the kernel shares the cores between sessions, and yielding works only
    inside one, so all ranks should be in the same. mpiexec's own words are kept, not shown: the
    ranks' output takes another way, and the banner that an MPI prints about a failed rank says
    less than the launcher knows.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        prctl = ctypes.CDLL(None).prctl
        try:
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Safe: the launcher has one thread, and prctl is looked up already.
                preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
            )
        except OSError as err:
            raise LaunchError(f"{command[0]} does not start: {err.strerror}") from err
        self.pid = self._process.pid
        self.exit_fd = os.pidfd_open(self.pid)
        self._pipe = self._process.stdout
        self.output_fd = -1 if self._pipe is None else self._pipe.fileno()
        os.set_blocking(self.output_fd, False)
        self._text = bytearray()

    def read(self) -> bool:
        """Take in what mpiexec has written; whether there may be more later."""
        try:
            data = os.read(self.output_fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._text += data
        del self._text[:-_MAX_TEXT]
        return bool(data)

    def text(self) -> str:
        """Return the end of what mpiexec has written."""
        return self._text.decode(errors="replace").strip()

    def status(self) -> int | None:
        """Return mpiexec's exit code (negative for a signal), or None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to mpiexec and its helpers."""
        kill_group(self.pid, number)

    def close(self) -> None:
        """End mpiexec if it still runs, with time to remove its files, and free what is held."""
        if self.status() is None:
            self.signal(signal.SIGTERM)
            poll = select.poll()
            poll.register(self.exit_fd, select.POLLIN)
            poll.poll(_CLOSE_S * 1e3)
        self.signal(signal.SIGKILL)
        self._process.wait()
        os.close(self.exit_fd)
        if self._pipe is not None:
            self._pipe.close()


class SignalInbox:
    """Turns signals into bytes on a file descriptor, so that one loop serves everything."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._old_wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # A signal that the parent has set to be ignored stays so: nohup, and background jobs.
        self._old = {
            number: signal.signal(number, _note)
            for number in STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def read(self) -> list[int]:
        """Return the signals that have come."""
        try:
            return [number for number in os.read(self.fd, 64) if number in STOP_SIGNALS]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Put everything back as it was."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.fd)
        os.close(self._write_fd)


def _note(number: int, frame: FrameType | None) -> None:
    """Handle a signal: the wakeup descriptor has it already."""
