"""Jobs whose ranks talk to each other: the first cause is found through blinkrun's own errors."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from support.launching import Ended, launch, stray_segments
from support.places import TESTS

PROGRAM = str(TESTS / "launch/cases/core_program.py")
HOST = socket.gethostname()
END_S = 15.0  # import, init and failure on a machine that others use as well


def run(tmp_path: Path, *words: str, timeout: str = "30") -> Ended:
    environ = {"BLINKRUN_CACHE_DIR": str(tmp_path)}
    return launch(["-np", "3", "--timeout", timeout, *words], cwd=tmp_path, environ=environ)


def test_a_job_that_ends_well_says_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, PROGRAM, "ok")
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [f"[{rank}] sum 3.0" for rank in range(3)]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raise", 1, "failed first: exit code 1 (ValueError: boom)"),
        ("exit3", 3, "failed first: exit code 3"),
        ("kill", 137, "failed first: killed by SIGKILL"),
        ("exit0", 1, "exited early with code 0 while others waited: rank 1 has left the job while"),
        ("os_exit0", 1, "exited early with code 0"),
        ("shutdown", 1, "left the job while others waited: rank 1 has left"),
        ("abort", 5, "failed first: "),
    ],
)
def test_the_rank_that_others_waited_for_is_named(
    tmp_path: Path, how: str, code: int, said: str
) -> None:
    before = stray_segments()
    ended = run(tmp_path, PROGRAM, how)
    assert ended.code == code, ended
    assert ended.last_words.startswith(f"blinkrun: rank 1 on host {HOST} {said}"), ended
    assert "its last lines:\n    sum 3.0\n" in ended.last_words
    assert ended.seconds < END_S
    assert not stray_segments() - before


def test_a_rank_that_does_not_come_is_named_after_the_timeout(tmp_path: Path) -> None:
    ended = run(tmp_path, PROGRAM, "sleep", timeout="1")
    assert ended.code == 1
    assert ended.last_words.startswith(f"blinkrun: rank 1 on host {HOST} kept others waiting: rank")
    assert "for rank 1" in ended.last_words


def test_a_rank_that_stops_inside_a_call_is_named_and_no_rank_that_waits_for_it(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, PROGRAM, "stop_inside", timeout="4")
    assert ended.code == 1
    assert ended.last_words.startswith(f"blinkrun: rank 1 on host {HOST} kept others waiting: rank")
    assert "for rank 1;" in ended.last_words


def test_plain_mpi4py_programs_end_as_well(tmp_path: Path) -> None:
    code = (
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.barrier()\n"
        "if MPI.COMM_WORLD.rank == 1: raise ValueError('boom')\n"
        "MPI.COMM_WORLD.barrier()"
    )
    ended = run(tmp_path, sys.executable, "-c", code)
    assert ended.code == 1
    assert "rank 1" in ended.last_words
    assert ended.last_words.endswith("ValueError: boom\n")
