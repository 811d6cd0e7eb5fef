"""What doctor makes of facts: problems that keep ranks from running, notes, and its text."""

from __future__ import annotations

from typing import Any

import pytest

from blinkrun.cli.doctor_findings import Seen, notes, problems
from blinkrun.cli.doctor_text import report
from blinkrun.launcher.mpiexec import Kind, Mpi

MPI = Mpi("/e/bin/mpiexec", Kind.OPENMPI, "5.0.11")
LOADED = {"mpi": {"library": "Open MPI v5.0.11, package", "threads": "MULTIPLE"}}
LOADED |= {"core": {"isa": "avx2"}}


def interface(name: str, address: str, mtu: int = 1500) -> dict[str, Any]:
    return {"name": name, "addresses": [f"{address}/24"], "mtu": mtu, "up": True}


def facts(number: int = 1, **changes: Any) -> dict[str, Any]:
    usual = {
        "host": f"h{number}",
        "python": "3.11.7",
        "executable": "/e/bin/python",
        "machine": "x86_64",
        "kernel": "6.1",
        "blinkrun": {"folder": "/e/blinkrun", "version": "0.1.0", "core": True},
        "mpi4py": "4.1.2",
        "mpiexec": {"path": MPI.path, "text": "mpiexec (Open MPI) 5.0.11"},
        "files": {"/w/train.py": "0123456789abcdef"},
        "cwd": True,
        "cores": 8,
        "quota": None,
        "load": 0.2,
        "memory": {"total": 64 << 30, "free": 60 << 30},
        "interfaces": [interface("eth0", f"10.0.0.{number}")],
        "shared": {"shm": 32 << 30, "memfd": True},
        "frameworks": {
            "torch": "2.13.0",
            "tensorflow": None,
            "tensorflow-cpu": None,
            "keras": None,
            "numpy": "2.4.6",
            "cupy-cuda12x": None,
            "cupy-cuda13x": None,
        },
        "loaded": LOADED,
        "gpus": {"nvidia_driver": None, "amd_driver": False, "nvml": None, "tools": []},
        "time": 1.7e9,
    }
    return usual | changes


def seen(number: int = 1, **changes: Any) -> Seen:
    return Seen(f"h{number}", number == 1, facts(number, **changes), f"10.0.0.{number}", 0.001)


def test_hosts_that_are_alike_have_neither() -> None:
    everyone = [seen(1), seen(2)]
    assert notes(everyone) == []
    assert [line for each in everyone for line in problems(each, num_hosts=2)] == []


ERROR = {"error": "RuntimeError: cannot load MPI library"}
SINGLE = {"mpi": {"library": "Old MPI", "threads": "SINGLE"}, "core": {"isa": "avx2"}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mpi4py": None}, "host h1 (this one) has no mpi4py in /e/bin/python: pip install"),
        ({"loaded": LOADED | {"mpi": ERROR}}, "host h1 (this one): mpi4py cannot load an MPI ("),
        ({"loaded": SINGLE}, "host h1 (this one): Old MPI gives MPI_THREAD_SINGLE, but between"),
        ({"loaded": LOADED | {"core": ERROR}}, "host h1 (this one): the compiled core cannot be"),
        ({"shared": {"shm": None, "memfd": False}}, "host h1 (this one) gives no memory by memfd"),
    ],
)
def test_what_keeps_a_host_from_running_ranks(changes: dict[str, Any], text: str) -> None:
    (line,) = problems(seen(**changes), num_hosts=2)
    assert line.startswith(text)


def test_one_host_alone_needs_no_threads_of_mpi() -> None:
    assert not list(problems(seen(loaded=SINGLE), num_hosts=1))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (seen(2, shared={"shm": 64 << 20, "memfd": True}), "host h2 has 64 MiB in /dev/shm, which"),
        (seen(2, load=20.0), "host h2 is busy: a load of 20.0 on 8 cores"),
        (seen(2, python="3.11.9"), "Python differs: 3.11.7 on h1; 3.11.9 on h2"),
        (
            seen(2, frameworks=facts()["frameworks"] | {"torch": None}),
            "torch differs: 2.13.0 on h1; none on h2",
        ),
        (
            seen(2, interfaces=[interface("eth0", "10.0.0.2", 9000)]),
            "the MTU differs: 1500 on h1; 9000 on h2",
        ),
        (Seen("h2", False, facts(2), "10.0.0.2", -3.0), "host h2 has a clock 3.0 s behind this"),
    ],
)
def test_notes_of_two_hosts(other: Seen, text: str) -> None:
    (line,) = notes([seen(1), other])
    assert line.startswith(text)


def test_an_address_that_several_hosts_have_is_noted() -> None:
    bridge = interface("docker0", "172.17.0.1")
    everyone = [
        seen(number, interfaces=[interface("eth0", f"10.0.0.{number}"), bridge])
        for number in range(1, 6)
    ]
    (line,) = notes(everyone)
    assert line.startswith("docker0 has the address 172.17.0.1 on h1, h2, h3 and 2 more: an MPI")


def test_the_text_says_all_and_ends_with_the_verdict() -> None:
    everyone = [seen(1), seen(2, quota=2.5), Seen("h3", False, None)]
    text = report(everyone, MPI, problems=["host h3 x"], notes=["n"], script="/w/train.py")
    lines = text.splitlines()
    assert "mpi4py      4.1.2, loads Open MPI v5.0.11 with MPI_THREAD_MULTIPLE" in lines
    assert "cores       8, load 0.2" in lines
    head, *rows = lines[lines.index("") + 1 :][:4]
    names = "host Python blinkrun MPI mpi4py threads cores memory load clock network script"
    assert " ".join(head.split()) == names
    assert "2.5 of 8" in rows[1]
    assert rows[1].endswith("10.0.0.2 mtu 1500  01234567")
    assert rows[2] == "h3    not reached"
    assert lines[-5:] == ["note: n", "", "problem: host h3 x", "", "1 problem"]
    well = report(everyone[:2], MPI, problems=[], notes=[], script=None)
    assert well.endswith("\n\na job can run on these 2 hosts\n")
    assert "script" not in well
