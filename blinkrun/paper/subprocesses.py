"""Runs blinkrun's own command as a process that never outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from blinkrun.errors import LaunchError, UsageError

COMMAND = (sys.executable, "-m", "blinkrun")
_GRACE_S = 10.0  # for a command to end its ranks


def run_until(argv: Sequence[str], timeout_s: float, what: str) -> None:
    """Run ``blinkrun argv`` and wait for its end; whatever happens, it does not outlive us.

    Parameters
    ----------
    argv : sequence of str
    timeout_s : float
        Until it is ended.
    what : str
        Of the command, for messages.

    Raises
    ------
    UsageError
        If the command calls its input wrong (exit code 2), in its words.
    LaunchError
        If it fails otherwise, or is not through in time.
    """
    with subprocess.Popen(
        [*COMMAND, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches us alone, and we end it
    ) as process:
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{what}: not through after {timeout_s:g} s, ended") from None
        finally:
            _end(process)
    last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    if process.returncode == 2:
        raise UsageError(f"{what}: {last.removeprefix('blinkrun: ')}")
    if process.returncode:
        raise LaunchError(f"{what}: ended with {process.returncode}: {last}")


def _end(process: subprocess.Popen[str]) -> None:
    """Let the command end its ranks, as at Ctrl-C; end it the hard way if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
