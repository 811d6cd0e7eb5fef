"""The launcher is signalled or killed: nothing of the job stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.launching import MARK, PROGRAM, Launch, marked, stray_segments
from support.places import TESTS

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def started(tmp_path: Path, what: str, *options: str) -> Launch:
    job = Launch(["-np", "2", *options, PROGRAM, what], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    return job


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_signal_ends_the_job(tmp_path: Path, number: signal.Signals) -> None:
    job = started(tmp_path, "wait")
    job.signal(number)
    ended = job.end()
    assert ended.code == 128 + number
    assert ended.last_words == f"blinkrun: ended by {number.name}\n"


def test_ranks_and_their_children_may_tidy_up(tmp_path: Path) -> None:
    job = started(tmp_path, "tidy")
    job.signal(signal.SIGTERM)
    job.end()
    found = sorted(path.name for path in tmp_path.glob("tidy.*"))
    assert found == ["tidy.0", "tidy.1", "tidy.child.0", "tidy.child.1"]


def test_ranks_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    job = started(tmp_path, "stubborn")
    signalled_s = time.monotonic()
    job.signal(signal.SIGTERM)
    assert job.end().code == 143
    assert time.monotonic() - signalled_s < 5


def test_a_second_ctrl_c_ends_the_job_at_once(tmp_path: Path) -> None:
    job = started(tmp_path, "stubborn")
    signalled_s = time.monotonic()
    job.signal(signal.SIGINT)
    while time.monotonic() < signalled_s + 0.3:  # two that come together are one to the kernel
        time.sleep(0.02)
    job.signal(signal.SIGINT)
    assert job.end().code == 130
    assert time.monotonic() - signalled_s < 3


@pytest.mark.parametrize("what", ["wait", "stubborn"])
def test_nothing_stays_when_the_launcher_is_killed(tmp_path: Path, what: str) -> None:
    job = started(tmp_path, what)
    job.signal(signal.SIGKILL)
    assert job.end().code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_no_shared_memory_and_no_folder_stays(tmp_path: Path, number: signal.Signals) -> None:
    before = stray_segments()
    program = str(TESTS / "launch/cases/core_program.py")
    (tmp_path / "tmp").mkdir()
    environ = {"BLINKRUN_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    job = Launch(["-np", "2", program, "sleep"], cwd=tmp_path, environ=environ)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    job.signal(number)
    job.end()
    assert not stray_segments() - before
    assert not list((tmp_path / "tmp").iterdir())


def test_a_signal_during_start_up_ends_the_job(tmp_path: Path) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit\n"
        "touch up.mpi; exec sleep 300\n"
    )
    fake.chmod(0o755)
    job = Launch(["-np", "2", "--mpi", str(fake), "true"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.mpi")
    job.signal(signal.SIGTERM)
    assert job.end().code == 143


def test_a_launcher_that_dies_during_start_up_takes_mpiexec_along(tmp_path: Path) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit\n"
        "touch up.mpi; exec sleep 300\n"
    )
    fake.chmod(0o755)
    job = Launch(["-np", "2", "--mpi", str(fake), "true"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.mpi")
    job.signal(signal.SIGKILL)
    assert job.end().code == -signal.SIGKILL


def resident_kib(pid: int) -> int:
    """Return the memory of a process, 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) if found else 0


def test_output_that_nobody_reads_takes_bounded_memory_and_can_be_ended(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    job = subprocess.Popen(
        [sys.executable, "-m", "blinkrun", "-np", "2", PROGRAM, "flood", "200"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,  # read by nobody: the launcher's output is stuck
        stderr=subprocess.DEVNULL,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.read(1) == b"["
        sizes = [0, 1]
        while sizes[-1] > sizes[-2]:  # until it grows no more
            time.sleep(0.3)
            sizes.append(sum(map(resident_kib, marked(mark))))
        assert len(marked(mark)) >= 6  # launcher, mpiexec, and two processes of each rank at least
        assert sizes[-1] < 200 * 1024
        job.send_signal(signal.SIGTERM)
        # Two signals: one ends the job, one gives up on the output.
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(timeout=0.5)
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=20) == 143
    finally:
        job.kill()
        job.wait()
        if job.stdout is not None:
            job.stdout.close()
