"""`blinkrun bench --emulate` before ranks start: their number from the GPUs, refusals in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import launch

from blinkrun.launcher.cli import main

Captured = pytest.CaptureFixture[str]

LONG = ["--sizes", "64K", "--scale", "100000"]  # however busy this machine is
REFUSED = [
    ("dgx-9", "bench: no machine 'dgx-9' in the catalog; near are dgx-2"),
    ("dgx-1v --gpus 0,9", "bench: --gpus 9: dgx-1v has GPUs 0-7"),
    ("dgx-1v --gpus 1,4 --links nvlink", "bench: no path over NVLink between GPU 1 and GPU 4; --l"),
    ("dgx-1v --sizes 4X", "bench: --sizes 4X: '4X' is no size; write bytes with an optional K"),
    ("dgx-1v --scale 0", "bench: --scale 0: need a whole number of at least 1"),
    ("dgx-1v --training", "bench: --training does not go with --emulate: it trains on this host"),
    ("dgx-1v --against mpi", "bench: --against mpi: beside --emulate there is only ring, a ring"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_emulated_starts_no_rank(capsys: Captured, words: str, said: str) -> None:
    """The MPI that is named here does not exist: looking for it would be another message."""
    assert main(["--mpi", "/no/mpi", "bench", "--emulate", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"blinkrun: {said}")
    assert captured.err.count("\n") == 1


def test_a_broken_report_is_named_with_its_line(capsys: Captured, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("\tGPU0\tGPU1\nGPU0\t X \tNVX\nGPU1\tNV1\t X \n")
    assert main(["--mpi", "/no/mpi", "bench", "--emulate", str(report)]) == 2
    assert capsys.readouterr().err.startswith(f"blinkrun: {report}:2: row GPU0 has")


def test_ranks_are_as_many_as_gpus(tmp_path: Path) -> None:
    words = ["bench", "--emulate", "dgx-1v", "--gpus", "1,4,5,7", *LONG]
    ended = launch(["--dry-run", *words], cwd=tmp_path)
    assert ended.code == 0
    command, environment = ended.out.splitlines()
    assert " -n 4 " in command
    assert "BLINKRUN_EMULATION" in environment.split()
    assert launch(["-np", "4", "--dry-run", *words], cwd=tmp_path).out == ended.out


def test_another_number_of_ranks_is_refused(capsys: Captured) -> None:
    assert main(["-np", "3", "bench", "--emulate", "dgx-1v", "--gpus", "1,4,5,7"]) == 2
    assert capsys.readouterr().err == (
        "blinkrun: bench: -np 3: a rank for each of 4 GPUs is 4; leave -np out, or name the GPUs"
        " with --gpus\n"
    )


def test_the_launcher_does_not_plan_beside_it(capsys: Captured) -> None:
    words = ["bench", "--emulate", "dgx-1v", "--gpus", "1,4", *LONG]
    assert main(["--show-plan", *words]) == 2
    assert main(["--topology", "dgx-1v", *words]) == 2
    assert capsys.readouterr().err == (
        "blinkrun: --topology and --show-plan: 'bench' plans by itself\n" * 2
    )


def test_a_scale_that_this_machine_cannot_pace_is_refused(capsys: Captured) -> None:
    """No host copies 1 MiB as fast as GPUs do over NVLink, in several processes."""
    words = ["--emulate", "dgx-1v", "--gpus", "0-3", "--scale", "1", "--sizes", "1M"]
    assert main(["--mpi", "/no/mpi", "bench", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("blinkrun: bench: this machine cannot pace dgx-1v at --scale 1: 1 MiB")
    assert said.count("\n") == 1
    assert int(said.rpartition("try --scale ")[2]) > 1


@pytest.mark.parametrize("words", [["--emulate", "--help"], ["--emulate", "dgx-1v", "-h"]])
def test_help_needs_no_ranks(capsys: Captured, words: list[str]) -> None:
    assert main(["--mpi", "/no/mpi", "bench", *words]) == 0
    assert capsys.readouterr().out.startswith("usage: blinkrun bench --emulate MACHINE")


def test_a_machine_may_be_a_file(capsys: Captured, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU1\tNV1\t X \n")
    assert main(["--dry-run", "bench", "--emulate", str(report), *LONG]) == 0
    assert " -n 2 " in capsys.readouterr().out
