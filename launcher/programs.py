"""From what is written behind the launch options to the command that each rank runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from blinkrun.cli import Command
from blinkrun.errors import UsageError
from blinkrun.launcher import script
from blinkrun.launcher.spec import Form, Program

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
_PLAIN_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")  # python's own, without a value
_FLAGS_WITH_VALUE = ("-W", "-X")
_NEAR = 0.7


def resolve(
    argv: Sequence[str], commands: Mapping[str, Command], *, path: str | None = None
) -> Program:
    """Return the program that `argv` means, checked to exist.

    ``name args`` of a command, ``file.py args``, ``-m module args``, ``python [flags] file.py
    args`` (or ``-m``, ``-c``; without a path this Python), or any executable. A command goes before
    a file of its name; ``./name`` is always the file.

    Raises
    ------
    UsageError
        If there is no such program; a similar command is named.
    """
    if not argv:
        raise UsageError("no program given; example: blinkrun -np 2 train.py")
    first, *rest = argv
    if first in commands:
        return _python([sys.executable], ["-m", commands[first].module, *rest])
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        _check_module(rest[0])
        return _python([sys.executable], ["-m", *rest])
    if first.endswith(".py"):
        _check_script(first)
        return _python([sys.executable], list(argv))
    if _is_own_python(first):
        return _interpreted(sys.executable, rest)
    _check_executable(first, commands, path)
    if _INTERPRETER.fullmatch(os.path.basename(first)):
        return _interpreted(first, rest)
    return Program(Form.EXECUTABLE, tuple(argv))


def _is_own_python(name: str) -> bool:
    """Whether `name`, without a folder, means the Python that blinkrun is installed in.

    The ranks need blinkrun, so the ``python`` of a shell in which the environment is not activated
    is never what was meant. A path is taken as it is.
    """
    return name in ("python", "python3", f"python3.{sys.version_info.minor}")


def _python(interpreter: Sequence[str], argv: Sequence[str]) -> Program:
    return Program(Form.PYTHON, (*interpreter, str(Path(script.__file__)), *argv))


def _interpreted(python: str, argv: Sequence[str]) -> Program:
    """Return ``python argv``, by the runner where argv is a script, a module or code."""
    flags = []
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        num = 2 if rest[0] in _FLAGS_WITH_VALUE else 1
        if num == 1 and not _PLAIN_FLAGS.fullmatch(rest[0]):
            return Program(Form.EXECUTABLE, (python, *argv))
        flags += rest[:num]
        del rest[:num]
    if not rest or (rest[0] in ("-m", "-c") and len(rest) < 2) or "i" in "".join(flags):
        return Program(Form.EXECUTABLE, (python, *argv))
    if rest[0] not in ("-m", "-c"):
        if not os.path.isfile(rest[0]):  # a folder or archive with a __main__ is python's business
            if not os.path.exists(rest[0]):
                _check_script(rest[0])
            return Program(Form.EXECUTABLE, (python, *argv))
        if not rest[0].endswith(".py"):
            return Program(Form.EXECUTABLE, (python, *argv))
    return _python([python, *flags], rest)


def _check_module(name: str) -> None:
    """See whether the outermost package is there; what is in it, the ranks find out."""
    outermost = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        is_there = importlib.util.find_spec(outermost) is not None
    except (ImportError, ValueError):
        is_there = False
    finally:
        del sys.path[0]
    if not is_there:
        raise UsageError(f"module '{name}' not found, neither in {os.getcwd()} nor installed")


def _check_script(path: str) -> None:
    if os.path.isdir(path):
        raise UsageError(f"script '{path}' is a folder")
    if not os.path.exists(path):
        near = _near(os.path.basename(path), _names_beside(path))
        hint = f"; did you mean '{os.path.join(os.path.dirname(path), near[0])}'?" if near else ""
        raise UsageError(f"script '{path}' not found in {os.getcwd()}{hint}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script '{path}' cannot be read")


def _near(name: str, names: list[str]) -> list[str]:
    """Return the one of `names` that was probably meant, if any."""
    import difflib  # noqa: PLC0415  (only to help with a mistake)

    return difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)


def _names_beside(path: str) -> list[str]:
    try:
        return sorted(
            name for name in os.listdir(os.path.dirname(path) or ".") if name.endswith(".py")
        )
    except OSError:
        return []


def _check_executable(name: str, commands: Mapping[str, Command], path: str | None) -> None:
    if shutil.which(name, path=path) is not None:
        return
    if os.path.isdir(name):
        raise UsageError(f"program '{name}' is a folder")
    if os.path.isfile(name):
        hint = "" if os.sep in name else f" and start it as ./{name}"
        if os.access(name, os.X_OK):
            raise UsageError(f"program '{name}' is not on PATH; start it as ./{name}")
        raise UsageError(f"program '{name}' is not executable; make it so with chmod +x{hint}")
    raise UsageError(f"program '{name}' not found{meant(name, commands)}")


def meant(name: str, commands: Mapping[str, Command]) -> str:
    """Return what a message about `name`, which is no command, may add: what is like it."""
    near = _near(name, [] if name in commands else list(commands))
    if near:
        return f"; did you mean the command '{near[0]}'?"
    return f"; did you mean '{name}.py'?" if os.path.isfile(f"{name}.py") else ""
