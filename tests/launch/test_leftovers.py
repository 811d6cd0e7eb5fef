"""What is removed after a job, and what is not."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from blinkrun.launcher import agent_tools
from blinkrun.launcher.agent_tools import kill_job, remove_segments

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")


@pytest.fixture
def segment() -> Iterator[Path]:
    """A file such as an MPI makes for its shared memory."""
    path = Path(f"/dev/shm/mpich_shm_{uuid.uuid4().hex[:8]}")
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


def test_segments_that_nobody_maps_are_removed(segment: Path) -> None:
    remove_segments(time.time())
    assert not segment.exists()


def test_segments_in_use_stay(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_segments(time.time())
    assert segment.exists()


def test_segments_from_before_the_job_and_files_of_others_stay(segment: Path) -> None:
    remove_segments(time.time() + 60)
    assert segment.exists()
    other = segment.with_name(f"some_data_{uuid.uuid4().hex[:8]}")
    other.touch()
    try:
        remove_segments(0)
        assert other.exists()
    finally:
        other.unlink()


def test_a_sweep_ends_the_processes_of_one_job_alone() -> None:
    jobs = [uuid.uuid4().hex for _ in range(2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
            env={**os.environ, agent_tools.JOB: job},
            start_new_session=True,
        )
        for job in jobs
    ]
    try:
        kill_job(jobs[0])
        assert started[0].wait(timeout=10) == -9
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
