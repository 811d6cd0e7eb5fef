"""Asking hosts through launch agents of all kinds: good, slow, asking for a password, missing."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blinkrun.launcher import probe, survey
from blinkrun.launcher.preflight import check
from blinkrun.launcher.questions import Answer, Question

DEADLINE_S = 30.0
# An agent with ssh's convention for hosts that are all this one, by a name that says how it is.
AGENT = r"""#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in
  unknown) echo "ssh: Could not resolve hostname unknown: no such name" >&2; exit 255 ;;
  asking) printf "me@asking's password: " >&2; exec sleep 60 ;;
  terminal) printf "Password: " >/dev/tty; read answer </dev/tty; exit 1 ;;
  reading) read answer || { echo "Permission denied (password)." >&2; exit 255; } ;;
  hanging) echo "trying very hard" >&2; echo $$ >"$0.pid"; exec sleep 60 ;;
  chatty) echo "{not for us}"; printf "welcome to chatty " ;;
esac
eval "$2"
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(survey, "listening_addresses", lambda hosts, interfaces: ("127.0.0.1",))
    return program(tmp_path / "agent", AGENT)


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def ask(agent: str, *hosts: str, deadline_s: float = DEADLINE_S, **asked: object) -> list[Answer]:
    question = Question(**{"python": sys.executable, **asked})  # type: ignore[arg-type]
    return survey.ask_all(hosts, agent=[agent, "-x"], question=question, deadline_s=deadline_s)


def test_hosts_answer_with_facts_and_reach_each_other(agent: str, tmp_path: Path) -> None:
    one, other = ask(agent, "one", "chatty", cwd=str(tmp_path), files=(agent, "/no/such"))
    for answer in (one, other):
        assert (answer.problem, answer.code, answer.shell) == ("", 0, True)
        assert answer.facts is not None
        assert answer.facts["python"] == sys.version.split()[0]
        assert answer.facts["cwd"] is True
        assert list(answer.facts["files"].values())[1] is None
        assert (answer.facts["reached"], answer.address) == ("127.0.0.1", "127.0.0.1")
        assert (answer.unreached, answer.is_reached) == ((), True)
        assert answer.clock_s is not None
        assert abs(answer.clock_s) < 5
    assert one.facts is not None
    assert other.facts is not None
    assert one.facts["files"] == other.facts["files"]


@pytest.mark.parametrize("host", ["asking", "terminal", "reading", "unknown"])
def test_nothing_waits_for_a_password(agent: str, host: str) -> None:
    started_s = time.monotonic()
    found = check(["one", host], agent=[agent], deadline_s=DEADLINE_S)
    assert time.monotonic() - started_s < DEADLINE_S / 2
    (line,) = found.problems
    assert line.startswith(f"host {host} ")
    assert set(found.cores) == {"one"}


def test_a_host_that_hangs_is_named_at_the_deadline_and_the_others_are_fine(agent: str) -> None:
    found = check(["one", "hanging"], agent=[agent], deadline_s=2.0)
    (line,) = found.problems
    assert line.startswith("host hanging has not answered")
    assert "last said: trying very hard" in line
    assert found.reached_at == {"one": "127.0.0.1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agents_end_with_the_launcher(tmp_path: Path, number: int) -> None:
    path = program(tmp_path / "agent", AGENT)
    words = ["-m", "blinkrun", "doctor", "-H", "hanging", "--launch-agent", path]
    doctor = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE)
    pid_file = tmp_path / "agent.pid"
    while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
        assert doctor.poll() is None
        time.sleep(0.01)
    doctor.send_signal(number)
    _, said = doctor.communicate(timeout=DEADLINE_S)
    assert (doctor.returncode, said) == (128 + number, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_an_agent_that_is_missing_is_said_of_every_host(agent: str) -> None:
    found = check(["a", "b"], agent=[f"{agent}.not"], deadline_s=DEADLINE_S)
    assert [line.split(":")[0] for line in found.problems] == [
        "host a cannot be asked",
        "host b cannot be asked",
    ]


def test_no_remote_hosts_are_no_work() -> None:
    assert check([], agent=["/no/such/agent"]).problems == ()


# What a Python there may be, as a shell script in its place.
PYTHONS = {
    "none": ("", "has no {python}: install the same environment there"),
    "newer": (
        '-c \'import sys; sys.version = "3.12.1 (a fake)"; exec(sys.argv[1])\' "$2"',
        "runs Python 3.12.1, this host ",
    ),
    "older": (
        '-c \'import sys; sys.version = "3.6.8 (a fake)"; sys.version_info = (3, 6, 8);'
        ' exec(sys.argv[1])\' "$2"',
        "has a {python} that fails (this is Python 3.6.8): install",
    ),
    "bare": ('-I -S "$@"', "has no blinkrun in {python}: pip install blinkrun=="),
    "broken": ("-c \"raise SystemExit('no codec')\"", "has a {python} that fails (no codec)"),
}


@pytest.mark.parametrize("kind", PYTHONS)
def test_the_python_there_is_not_the_one_here(agent: str, tmp_path: Path, kind: str) -> None:
    words, text = PYTHONS[kind]
    python = str(tmp_path / "python")
    if words:
        program(tmp_path / "python", f"#!/bin/sh\nexec {sys.executable} {words}\n")
    lines = check(["one"], agent=[agent], python=python, deadline_s=DEADLINE_S).problems
    assert lines[0].startswith(f"host one {text.format(python=python)}")
    assert len(lines) == 1


def test_another_blinkrun_there_is_named_with_both_versions(agent: str, tmp_path: Path) -> None:
    folder = tmp_path / "blinkrun"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    (folder / "version.py").write_text('__version__ = "9.9.9"\n')
    python = program(
        tmp_path / "python", f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n'
    )
    (line,) = check(["one"], agent=[agent], python=python, deadline_s=DEADLINE_S).problems
    assert line.startswith("host one has blinkrun 9.9.9, this host ")


def test_what_is_said_on_the_command_line_fits_into_one(agent: str) -> None:
    """A word of a command may have 128 KiB, and ssh's shells take one line."""
    asked = Question(python=sys.executable, files=tuple(f"/f/{n}" for n in range(100)))
    loop = survey._Survey(["a"], agent=[agent], question=asked, deadline_s=1)
    try:
        line = loop._command(0, ["10.0.0.1"] * 100)
    finally:
        loop.close()
    assert len(line) < 1 << 15
    assert "\n" not in line


def test_what_is_sent_needs_no_blinkrun_and_no_new_python() -> None:
    text = Path(probe.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 7))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    names |= {name.name for node in imports if isinstance(node, ast.Import) for name in node.names}
    outermost = {str(name).partition(".")[0] for name in names}
    assert outermost <= sys.stdlib_module_names
