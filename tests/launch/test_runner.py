"""The runner of Python programs: the program sees what the interpreter alone would show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blinkrun.launcher import script

RUNNER = str(Path(script.__file__))
LOOK = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": globals().get("__file__"),
    "package": __package__, "main": sys.modules["__main__"].__dict__ is globals(),
    "report": "BLINKRUN_REPORT_FD" in os.environ,
}))
"""


def run(words: list[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def reported(words: list[str], cwd: Path) -> tuple[int, str, list[dict[str, object]]]:
    """Run by the runner; return exit code, stderr and what it reported."""
    read_end, write_end = os.pipe()
    with open(read_end, encoding="utf-8") as reports:
        ran = subprocess.run(
            [sys.executable, RUNNER, *words],
            cwd=cwd,
            env={**os.environ, "BLINKRUN_REPORT_FD": str(write_end)},
            pass_fds=[write_end],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(write_end)
        return ran.returncode, ran.stderr, [json.loads(line) for line in reports]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    for name in ("sub/look.py", "package/__main__.py", "package/look.py", "look.py"):
        (tmp_path / name).write_text(LOOK)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["look.py", "a b", "-m"],
        ["sub/look.py"],
        ["-m", "look", "-c"],
        ["-m", "package", "x"],
        ["-m", "package.look"],
        ["-c", LOOK, "a"],
    ],
)
def test_a_program_sees_what_it_sees_without_the_runner(here: Path, words: list[str]) -> None:
    alone = run(words, here)
    with_runner = run([RUNNER, *words], here)
    assert (with_runner.returncode, with_runner.stderr) == (0, "")
    assert with_runner.stdout == alone.stdout


@pytest.mark.parametrize(
    ("code", "status", "err", "report"),
    [
        ("print(1)", 0, "", {"kind": "finished", "code": 0}),
        ("import sys; sys.exit()", 0, "", {"kind": "finished", "code": 0}),
        ("import sys; sys.exit(3)", 3, "", {"kind": "exited", "code": 3}),
        ("import sys; sys.exit(-1)", 255, "", {"kind": "exited", "code": 255}),
        ("import sys; sys.exit('no way')", 1, "no way\n", {"kind": "exited", "code": 1}),
    ],
)
def test_exits(tmp_path: Path, code: str, status: int, err: str, report: dict[str, object]) -> None:
    assert reported(["-c", code], tmp_path) == (status, err, [report])


def test_an_exception_is_printed_reported_and_ends_the_rank_at_once(tmp_path: Path) -> None:
    program = tmp_path / "boom.py"
    program.write_text(
        "import atexit, threading, time\n"
        "atexit.register(time.sleep, 300)\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "def inner():\n    raise ValueError('boom\\nand more')\n"
        "inner()\n"
    )
    code, err, reports = reported(["boom.py"], tmp_path)
    assert code == 1
    assert err.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 6, in <module>',
    ]
    assert "ValueError: boom" in err
    assert RUNNER not in err
    assert reports == [{"kind": "raised", "code": 1, "error": "ValueError", "message": "boom"}]


def test_a_syntax_error_looks_as_usual(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def (:\n")
    alone = run([str(tmp_path / "bad.py")], tmp_path)
    code, err, _ = reported(["bad.py"], tmp_path)
    assert (code, err) == (alone.returncode, alone.stderr)


@pytest.mark.parametrize(
    ("error", "kind", "ranks"),
    [
        ("PeerLeftError('gone', 1)", "peer_left", [1]),
        ("AbortedError('gone', 0)", "aborted", [0]),
        ("CollectiveTimeoutError('gone', (2, 1), 3.0)", "timeout", [2, 1]),
    ],
)
def test_errors_that_name_another_rank_say_so(
    tmp_path: Path, error: str, kind: str, ranks: list[int]
) -> None:
    code, err, (report,) = reported(
        ["-c", f"import blinkrun.errors\nraise blinkrun.errors.{error}"], tmp_path
    )
    assert code == 1
    assert "gone" in err
    assert (report["kind"], report["ranks"], report["message"]) == (kind, ranks, "gone")


def test_the_programs_own_excepthook_is_called_and_may_fail(tmp_path: Path) -> None:
    hook = "import sys\nsys.excepthook = lambda *a: {}\n1 / 0"
    assert reported(["-c", hook.format("print('mine', file=sys.stderr)")], tmp_path)[:2] == (
        1,
        "mine\n",
    )
    code, err, _ = reported(["-c", hook.format("[][0]")], tmp_path)
    assert (code, err) == (
        1,
        "blinkrun: sys.excepthook failed: IndexError('list index out of range')\n",
    )


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    code, _, (report,) = reported(["-c", "raise KeyboardInterrupt"], tmp_path)
    assert (code, report["code"]) == (130, 130)


def test_exit_handlers_run_after_a_clean_end(tmp_path: Path) -> None:
    ran = run([RUNNER, "-c", "import atexit; atexit.register(print, 'bye')"], tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "bye\n")


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    code = "import os; print('seen'); os._exit(0)"
    assert run([RUNNER, "-c", code], tmp_path, PYTHONUNBUFFERED="").stdout == "seen\n"


def test_multiprocessing_spawn_finds_the_program(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(
        "import multiprocessing as mp\n"
        "def work(x):\n    return x + 1\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [1, 2]))\n"
    )
    ran = run([RUNNER, "spawns.py"], tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "[2, 3]\n")


def test_a_report_descriptor_that_is_none_is_no_trouble(tmp_path: Path) -> None:
    for text in ("", "x", "987"):
        ran = run([RUNNER, "-c", "print(1)"], tmp_path, BLINKRUN_REPORT_FD=text)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    code, err, (report,) = reported(["-m", "no_such_module"], tmp_path)
    assert code == 1
    assert err.endswith("ModuleNotFoundError: No module named no_such_module that can be run\n")
    assert report["error"] == "ModuleNotFoundError"
