"""Real jobs that end well: forms of a program, output, input, environment, threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.launching import PROGRAM, launch

SHOW = "import os, sys; print(*(os.environ.get(n) for n in sys.argv[1:]))"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_runs_and_has_a_number(tmp_path: Path, size: int) -> None:
    names = ["BLINKRUN_RANK", "BLINKRUN_SIZE"]
    ended = launch(["-np", str(size), "python", "-c", SHOW, *names], cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [f"[{rank}] {rank} {size}" for rank in range(size)]


def test_sixteen_ranks_start_and_end_on_any_machine(tmp_path: Path) -> None:
    ended = launch(["-np", "16", "sh", "-c", "echo here"], cwd=tmp_path)
    assert ended.code == 0
    assert sorted(ended.out.split()[::2]) == sorted(f"[{rank}]" for rank in range(16))


def test_all_forms_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys; print(sys.argv[1:], __name__)")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho \"['$1', '-np'] __main__\"")
    (tmp_path / "run.sh").chmod(0o755)
    for form in (["show.py"], ["-m", "show"], ["python", "show.py"], ["./run.sh"]):
        ended = launch(["-np", "1", "--no-prefix", *form, "a b", "-np"], cwd=tmp_path)
        assert (ended.code, ended.out, ended.err) == (0, "['a b', '-np'] __main__\n", ""), form


def test_odd_words_reach_the_program_as_they_are(tmp_path: Path) -> None:
    words = [
        "a b",
        "",
        "'\"",
        "$HOME",
        "back\\slash",
        "new\nline",
        "*",
        ":",
        "--x",
        "-np",
        "{}",
        "é",
    ]
    (tmp_path / "show.py").write_text("import sys; print(ascii(sys.argv[1:]))")
    ended = launch(["-np", "1", "--no-prefix", "show.py", *words], cwd=tmp_path)
    assert (ended.code, ended.out) == (0, ascii(words) + "\n")


def test_a_long_command_line_and_a_large_variable_arrive(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(50_000)]
    (tmp_path / "show.py").write_text("import os, sys; print(len(sys.argv), len(os.environ['V']))")
    ended = launch(["-np", "2", "-x", "V=" + "v" * 100_000, "show.py", *words], cwd=tmp_path)
    assert sorted(ended.out.splitlines()) == [f"[{rank}] 50001 100000" for rank in range(2)]


def test_torn_lines_come_out_whole_and_a_last_line_without_end_too(tmp_path: Path) -> None:
    ended = launch(["-np", "4", PROGRAM, "torn", "200"], cwd=tmp_path)
    wanted = [
        f"[{rank}] rank {rank} line {number} end" for rank in range(4) for number in range(200)
    ]
    wanted += [f"[{rank}] last of {rank}" for rank in range(4)]
    assert Counter(ended.out.splitlines()) == Counter(wanted)
    assert ended.out.endswith("\n")


def test_lines_of_one_rank_stay_in_order(tmp_path: Path) -> None:
    ended = launch(["-np", "2", PROGRAM, "torn", "500"], cwd=tmp_path)
    for rank in range(2):
        numbers = re.findall(rf"^\[{rank}\] rank {rank} line (\d+) end$", ended.out, re.MULTILINE)
        assert numbers == [str(number) for number in range(500)]


def test_a_flood_of_output_passes_in_bounded_memory(tmp_path: Path) -> None:
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'blinkrun', *sys.argv[1:]])\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(done.returncode, peak, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "-np", "2", PROGRAM, "flood", "25"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    code, peak_kib = map(int, ran.stderr.split())
    assert code == 0
    assert len(ran.stdout) == 2 * 25 * 2**20 + 2 * 25 * 8192 * len("[0] ")
    assert peak_kib < 60 * 1024  # the largest of launcher, supervisors and ranks


def test_a_single_rank_without_prefix_passes_bytes_as_they_are(tmp_path: Path) -> None:
    garbage = bytes(range(256)) * 400
    (tmp_path / "garbage").write_bytes(garbage)
    ran = subprocess.run(
        [sys.executable, "-m", "blinkrun", "-np", "1", "--no-prefix", "cat", "garbage"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == garbage


def test_stdout_and_stderr_stay_apart(tmp_path: Path) -> None:
    ended = launch(["-np", "2", "sh", "-c", "echo result; echo talk >&2"], cwd=tmp_path)
    assert sorted(ended.out.splitlines()) == ["[0] result", "[1] result"]
    assert sorted(ended.err.splitlines()) == ["[0] talk", "[1] talk"]


def test_output_goes_to_a_file_per_rank(tmp_path: Path) -> None:
    args = ["-np", "2", "--output-dir", "logs/a", "sh", "-c", "echo one; echo two >&2"]
    ended = launch(args, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    for rank in range(2):
        lines = (tmp_path / f"logs/a/rank.{rank}.log").read_text().splitlines()
        assert sorted(lines) == ["one", "two"]


def test_rank_0_reads_the_input_and_the_others_none(tmp_path: Path) -> None:
    ended = launch(["-np", "3", "cat"], cwd=tmp_path, stdin=b"first\nsecond\n")
    assert (ended.code, ended.out) == (0, "[0] first\n[0] second\n")


def test_a_reader_that_leaves_ends_the_job_as_in_any_pipe(tmp_path: Path) -> None:
    job = subprocess.Popen(
        [sys.executable, "-m", "blinkrun", "-np", "2", PROGRAM, "flood", "1000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert job.stdout is not None
        assert job.stderr is not None
        job.stdout.readline()
        job.stdout.close()
        assert job.wait(timeout=30) == 141
        assert b"Traceback" not in job.stderr.read()
    finally:
        job.kill()
        job.wait()
        if job.stderr is not None:
            job.stderr.close()


def test_variables_are_forwarded_and_secrets_of_the_job_are_not(tmp_path: Path) -> None:
    names = ["FROM_HERE", "GIVEN", "LD_LIBRARY_PATH", "BLINKRUN_TOKEN", "BLINKRUN_CONTROL"]
    given = ["-x", "FROM_HERE", "-x", "GIVEN=a=b c", "-x", "LD_LIBRARY_PATH=/nowhere"]
    ended = launch(
        ["-np", "1", *given, "python", "-c", SHOW, *names],
        cwd=tmp_path,
        environ={"FROM_HERE": "here"},
    )
    assert ended.out == "[0] here a=b c /nowhere None None\n"


def test_threads_are_shared_unless_set(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    show = ["python", "-c", SHOW, "OMP_NUM_THREADS"]
    assert launch(["-np", "1", *show], cwd=tmp_path).out == f"[0] {cores}\n"
    assert launch(["-np", "1", "-x", "OMP_NUM_THREADS=7", *show], cwd=tmp_path).out == "[0] 7\n"
    inherited = launch(["-np", "1", *show], cwd=tmp_path, environ={"OMP_NUM_THREADS": "5"})
    assert inherited.out == "[0] 5\n"


def test_tensorflow_tells_its_hints_at_rank_0_only_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = "TF_CPP_MIN_LOG_LEVEL"
    monkeypatch.delenv(level, raising=False)
    show = ["python", "-c", SHOW, level]
    for given, shown in (([], ["None", "1"]), (["-x", f"{level}=0"], ["0", "0"])):
        ended = launch(["-np", "2", *given, *show], cwd=tmp_path)
        expected = [f"[{rank}] {value}" for rank, value in enumerate(shown)]
        assert sorted(ended.out.splitlines()) == expected


def test_verbose_names_the_mpi_and_no_values(tmp_path: Path) -> None:
    ended = launch(["-np", "1", "-v", "-x", "SECRET=s3cr3t", "true"], cwd=tmp_path)
    assert ended.code == 0
    assert re.search(r"^blinkrun: MPI: (Open MPI|MPICH|Intel MPI) \d", ended.err, re.MULTILINE)
    assert "SECRET" in ended.err
    assert "s3cr3t" not in ended.err + ended.out


def test_dry_run_prints_the_command_and_starts_nothing(tmp_path: Path) -> None:
    args = ["-np", "2", "--dry-run", "-x", "SECRET=s3cr3t", "sh", "-c", "touch started"]
    ended = launch(args, cwd=tmp_path)
    command, environment = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"mpiexec .*-n 2 .*agent\.py 'sh -c '.*touch started", command)
    assert environment.startswith("# environment: ")
    assert "SECRET" in environment
    assert "s3cr3t" not in ended.out
    assert not (tmp_path / "started").exists()


def test_the_command_of_a_dry_run_runs_by_itself(tmp_path: Path) -> None:
    dry = launch(["-np", "2", "--dry-run", "sh", "-c", "echo by itself"], cwd=tmp_path)
    ran = subprocess.run(
        ["sh", "-c", dry.out.splitlines()[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.count("by itself") == 2


def test_what_ranks_leave_in_the_background_ends_with_the_job(tmp_path: Path) -> None:
    assert launch(["-np", "2", PROGRAM, "background"], cwd=tmp_path).code == 0  # checks for it


def test_a_job_inside_a_job(tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "blinkrun", "-np", "2", "sh", "-c", "echo $BLINKRUN_RANK"]
    ended = launch(["-np", "1", *inner], cwd=tmp_path)
    assert (ended.code, sorted(ended.out.splitlines())) == (0, ["[0] [0] 0", "[0] [1] 1"])
