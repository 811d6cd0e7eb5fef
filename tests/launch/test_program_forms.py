"""From words to the command of a rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blinkrun.cli import Command
from blinkrun.errors import UsageError
from blinkrun.launcher import script
from blinkrun.launcher.programs import resolve
from blinkrun.launcher.spec import Form

RUNNER = str(Path(script.__file__))
COMMANDS = {"bench": Command("package.bench", "measure", True)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs, which is the current one and the only one on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", "bin/python3.99", "bin/tool", "local", "bench"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").touch()
    (tmp_path / "data").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py --lr 1", [sys.executable, RUNNER, "train.py", "--lr", "1"]),
        ("-m json.tool a", [sys.executable, RUNNER, "-m", "json.tool", "a"]),
        ("bench --sizes 4", [sys.executable, RUNNER, "-m", "package.bench", "--sizes", "4"]),
        ("python train.py a", [sys.executable, RUNNER, "train.py", "a"]),
        ("python -u -W error train.py", [sys.executable, "-u", "-W", "error", RUNNER, "train.py"]),
        ("python3 -m mod -v", [sys.executable, RUNNER, "-m", "mod", "-v"]),
        ("python3.99 -m mod -v", ["python3.99", RUNNER, "-m", "mod", "-v"]),
        ("bin/python -c code a", ["bin/python", RUNNER, "-c", "code", "a"]),
    ],
)
@pytest.mark.usefixtures("here")
def test_python_programs_run_by_the_runner(words: str, command: list[str]) -> None:
    program = resolve(words.split(), COMMANDS)
    assert (program.form, list(program.argv)) == (Form.PYTHON, command)


@pytest.mark.parametrize(
    "words",
    [
        "tool a -np 3",
        "./local",
        "./bench",  # the file, not the command
        "python",
        "python -i train.py",
        "python --version",
        "python -m",
        "python data",
        "python bin",
    ],
)
@pytest.mark.usefixtures("here")
def test_everything_else_is_executed_as_it_is(words: str) -> None:
    program = resolve(words.split(), COMMANDS)
    # Without a path, python is the one that blinkrun is installed in, whatever PATH says.
    command = [sys.executable if word == "python" else word for word in words.split()]
    assert (program.form, list(program.argv)) == (Form.EXECUTABLE, command)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no program given; example: blinkrun -np 2 train.py"),
        ("-m", "-m needs the name of a module"),
        ("-m no.such_module", "module 'no.such_module' not found, neither in "),
        ("-m ..x", "module '..x' not found"),
        ("tarin.py", "script 'tarin.py' not found in .*; did you mean 'train.py'"),
        ("python tarin.py", "script 'tarin.py' not found"),
        ("sub/x.py", "script 'sub/x.py' not found"),
        ("nosuch", "program 'nosuch' not found$"),
        ("bnech", "program 'bnech' not found; did you mean the command 'bench'"),
        ("local", r"program 'local' is not on PATH; start it as \./local"),
        ("data", r"program 'data' is not executable; make it so with chmod \+x and start it as"),
        ("./data", r"program './data' is not executable; make it so with chmod \+x$"),
        ("bin", "program 'bin' is a folder"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_is_not_there_is_said_in_one_line(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        resolve(words.split(), COMMANDS)
    assert "\n" not in str(caught.value)


def test_scripts_that_cannot_be_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "folder.py").mkdir()
    with pytest.raises(UsageError, match=r"script 'folder\.py' is a folder"):
        resolve(["folder.py"], COMMANDS)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    with pytest.raises(UsageError, match=r"script 'train\.py' cannot be read"):
        resolve(["train.py"], COMMANDS)


@pytest.mark.usefixtures("here")
def test_looking_for_a_module_leaves_the_path_as_it_was() -> None:
    before = list(sys.path)
    resolve(["-m", "json"], COMMANDS)
    assert sys.path == before
