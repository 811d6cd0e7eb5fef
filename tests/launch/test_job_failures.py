"""Real jobs that fail: all end soon, nothing stays, and the last words name the first cause."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.launching import PROGRAM, Launch, launch

HOST = socket.gethostname()
END_S = 5.0  # the promise, from the failure on

FAILURES = [
    ("raise", 1, "exit code 1 (ValueError: boom)", ["ValueError: boom"]),
    ("exit3", 3, "exit code 3", ["rank 1 works"]),
    ("exit_text", 1, "exit code 1", ["cannot go on"]),
    ("os_exit", 7, "exit code 7", ["rank 1 works"]),
    ("kill", 137, "killed by SIGKILL (signal 9", ["rank 1 works"]),
    ("segv", 139, "killed by SIGSEGV (signal 11)", ["rank 1 works"]),
]


@pytest.mark.parametrize(("how", "code", "said", "tail"), FAILURES, ids=[f[0] for f in FAILURES])
def test_the_first_rank_that_fails_ends_the_job(
    tmp_path: Path, how: str, code: int, said: str, tail: list[str]
) -> None:
    ended = launch(["-np", "3", PROGRAM, "fail", how, "1"], cwd=tmp_path)
    assert ended.code == code
    assert ended.last_words.startswith(f"blinkrun: rank 1 on host {HOST} failed first: {said}")
    assert "; its last lines:\n    rank 1 works\n" in ended.last_words
    assert ended.last_words.rstrip().endswith(tail[-1])
    assert max(ended.seconds_after(tmp_path / f"up.{rank}") for rank in range(3)) < END_S


def test_a_traceback_begins_in_the_program(tmp_path: Path) -> None:
    ended = launch(["-np", "1", PROGRAM, "fail", "raise", "0"], cwd=tmp_path)
    lines = ended.last_words.splitlines()
    start = lines.index("    Traceback (most recent call last):")
    assert lines[start + 1].startswith(f'      File "{PROGRAM}"')


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_that_fail_may_finish_their_words(tmp_path: Path, size: int) -> None:
    ended = launch(["-np", str(size), PROGRAM, "slow_words"], cwd=tmp_path)
    assert ended.code == 1
    assert "exit code 1 (ValueError: boom)" in ended.last_words
    assert ended.last_words.endswith("    slow words\n")


def test_an_early_exit_is_a_failure_and_said_as_such(tmp_path: Path) -> None:
    ended = launch(["-np", "3", PROGRAM, "early"], cwd=tmp_path)
    assert ended.code == 1
    assert ended.last_words.startswith(
        f"blinkrun: rank 1 on host {HOST} exited early with code 0 while others waited:"
        " rank 1 has left while rank "
    )
    assert ended.last_words.endswith("its last lines:\n    rank 1 thinks it is done\n")


def test_a_job_in_which_nothing_moves_ends_after_the_timeout(tmp_path: Path) -> None:
    ended = launch(["-np", "2", "--timeout", "0.5", PROGRAM, "wait"], cwd=tmp_path)
    assert ended.code == 124
    assert ended.last_words == (
        "blinkrun: hung: for 0.5 s no rank computed or wrote anything (--timeout);"
        " ranks 0-1 had not ended\n"
    )


def test_a_job_that_computes_or_writes_is_not_hung(tmp_path: Path) -> None:
    writes = "import time\nfor _ in range(40): print('x', flush=True); time.sleep(0.1)"
    computes = "import time\nend = time.process_time() + 3\nwhile time.process_time() < end: pass"
    for code in (writes, computes):
        ended = launch(["-np", "2", "--timeout", "2", "python", "-c", code], cwd=tmp_path)
        assert ended.code == 0, ended.last_words


def test_the_time_limit_ends_a_job_whatever_it_does(tmp_path: Path) -> None:
    ended = launch(["-np", "2", "--time-limit", "1", PROGRAM, "stubborn"], cwd=tmp_path)
    assert ended.code == 124
    assert "the time limit of 1 s is over (--time-limit); ranks 0-1 had not" in ended.last_words
    assert ended.seconds < 1 + END_S


def test_a_program_that_does_not_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_text("\x7fELF nothing")
    (tmp_path / "garbage").chmod(0o755)
    ended = launch(["-np", "2", "./garbage"], cwd=tmp_path)
    assert ended.code == 126
    assert "could not start: ./garbage: Exec format error" in ended.last_words


def test_an_mpi_that_starts_nothing_is_an_error(tmp_path: Path) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit\n"
        "echo 'no such interface'; exit 6\n"
    )
    fake.chmod(0o755)
    ended = launch(["-np", "2", "--mpi", str(fake), "true"], cwd=tmp_path)
    assert ended.code == 1
    assert ended.last_words == (
        "blinkrun: mpiexec ended with exit code 6 before ranks 0-1 came up; it said:\n"
        "    no such interface\n"
    )


def test_a_start_that_fails_in_passing_is_tried_once_more(tmp_path: Path) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit\n"
        'echo x >> tries\necho "The PMIx server\'s listener thread failed to start."\nexit 213\n'
    )
    fake.chmod(0o755)
    ended = launch(["-np", "2", "--mpi", str(fake), "true"], cwd=tmp_path)
    assert ended.code == 1
    assert (tmp_path / "tries").read_text() == "x\nx\n"
    assert ended.err.count("mpiexec ended with exit code 213 before ranks 0-1 came up") == 1


def test_ranks_that_do_not_come_up_are_named(tmp_path: Path) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit\n"
        "exec sleep 300\n"
    )
    fake.chmod(0o755)
    ended = launch(["-np", "3", "--mpi", str(fake), "--start-timeout", "0.3", "true"], cwd=tmp_path)
    assert ended.code == 1
    assert ended.last_words == "blinkrun: ranks 0-2 did not come up in 0.3 s (--start-timeout)\n"


def test_a_supervisor_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    job = Launch(["-np", "2", PROGRAM, "wait"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    os.kill(_parent_of_rank(job, 1), 9)
    ended = job.end()
    assert ended.code == 1
    assert f"rank 1 on host {HOST} was lost: its supervisor was killed" in ended.last_words


def _parent_of_rank(job: Launch, rank: int) -> int:
    """Return the supervisor of a rank: the parent of the process that runs its program."""
    from support.launching import commandline, marked

    for pid in marked(job.mark):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"BLINKRUN_RANK={rank}".encode() in environ and "script.py" in commandline(pid):
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError(f"no process of rank {rank}")
