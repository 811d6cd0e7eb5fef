"""Starting a job where something is odd: the MPI, the output folder, strangers, a closed input."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import PROGRAM, Launch, launch

# An mpiexec that drops its own options and starts the ranks as `ranks` says; "$@" is one rank.
FAKE = """#!/bin/sh
[ "$1" = --version ] && echo 'mpiexec (Open MPI) 5.0.11' && exit
while [ "$1" != -n ]; do shift; done
shift 2
{ranks}
"""


def fake_mpiexec(folder: Path, ranks: str) -> str:
    program = folder / "mpiexec"
    program.write_text(FAKE.format(ranks=ranks))
    program.chmod(0o755)
    return str(program)


def test_any_starter_of_ranks_will_do(tmp_path: Path) -> None:
    fake = fake_mpiexec(
        tmp_path, 'for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 "$@" & done; wait; echo bye'
    )
    ended = launch(["-np", "2", "--mpi", fake, "sh", "-c", "echo $BLINKRUN_RANK"], cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == ["[0] 0", "[1] 1"]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ('PMI_RANK=0 PMI_SIZE=1 "$@"', "mpiexec started rank 0 of 1 where 2 ranks are wanted"),
        ('for r in 0 0; do PMI_RANK=$r PMI_SIZE=2 "$@" & done; wait', "started rank 0 of 2 where"),
        ('"$@"', "mpiexec gave its ranks no number"),
        ('PMI_RANK=0 PMI_SIZE=2 "$@"', r"rank 1 did not come up in 0\.5 s \(--start-timeout\)"),
        ("exit 3", "mpiexec ended with exit code 3 before ranks 0-1 came up"),
    ],
)
def test_ranks_that_are_not_the_wanted_ones_start_nothing(
    tmp_path: Path, ranks: str, said: str
) -> None:
    fake = fake_mpiexec(tmp_path, ranks)
    args = ["-np", "2", "--mpi", fake, "--start-timeout", "0.5", "touch", "started"]
    ended = launch(args, cwd=tmp_path)
    assert ended.code == 1
    assert re.match(f"blinkrun: .*{said}", ended.last_words)
    assert not (tmp_path / "started").exists()


def test_an_output_folder_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    ended = launch(["-np", "2", "--output-dir", "taken", "touch", "started"], cwd=tmp_path)
    assert ended.code == 2
    assert ended.err.startswith("blinkrun: --output-dir taken: ")
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_stranger_is_turned_away_and_the_job_goes_on(tmp_path: Path) -> None:
    job = Launch(["-np", "2", "--time-limit", "2", PROGRAM, "wait"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    (name,) = set(re.findall(rf"@(blinkrun-{job.pid}-\w+)", Path("/proc/net/unix").read_text()))
    for greeting in (b"", b"H\x28\0\0\0" + b"0" * 40, b"\xff" * 100):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10)
            stranger.connect(f"\0{name}")
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    assert "time limit" in job.end().last_words


def test_a_closed_input_reads_as_empty(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m blinkrun -np 1 sh -c 'cat; echo end' <&-"
    ran = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[0] end\n", "")


def test_an_mpiexec_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    job = Launch(["-np", "2", PROGRAM, "wait"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    (mpiexec,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    subprocess.run(["kill", "-KILL", mpiexec], check=True, timeout=10)
    ended = job.end()
    assert ended.code == 1
    killed = f"mpiexec ended with exit code -{int(signal.SIGKILL)} while ranks 0-1 ran"
    assert killed in ended.last_words or "the MPI ended the job while" in ended.last_words
