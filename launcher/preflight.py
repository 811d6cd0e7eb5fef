"""What keeps a job from running on several hosts, said before it starts: a line for each cause.

`check` is what every start does, in a fraction of a second; `blinkrun doctor` asks more and prints
all of it. The judging, `verdict`, is functions of values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.launcher import probe
from blinkrun.launcher.discover import installed_packages
from blinkrun.launcher.mpiexec import Mpi
from blinkrun.launcher.questions import Question
from blinkrun.launcher.spec import Form, Program
from blinkrun.launcher.survey import ask_all
from blinkrun.launcher.verdict import OURS, Here, problems_of, told_twice
from blinkrun.version import __version__

DEADLINE_S = 15.0


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found before a start.

    Attributes
    ----------
    problems : tuple of str
        A line for each cause why the job cannot run, with host and remedy; empty: it can.
    cores : mapping of str to int
        Cores that each remote host lets a process use.
    reached_at : mapping of str to str
        Address of this host at which each remote host has reached it.
    """

    problems: tuple[str, ...]
    cores: Mapping[str, int]
    reached_at: Mapping[str, str]


def check(  # noqa: PLR0913 - one call, all by name
    remote: Sequence[str],
    *,
    agent: Sequence[str],
    python: str = sys.executable,
    mpi: Mpi | None = None,
    script: str | None = None,
    cwd: str | None = None,
    interfaces: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> Preflight:
    """Ask all remote hosts of a job at once whether they can take part.

    Parameters
    ----------
    remote : sequence of str
        Their names as the agent takes them, this host not among them; empty: nothing to do.
    agent : sequence of str
        The launch agent with its options; called with ssh's convention.
    python : str
        The Python that the ranks run.
    mpi : Mpi, optional
        The MPI of the job, which must be the same everywhere.
    script : str, optional
        A file that every host must have, with the same content; see `script_of`.
    cwd : str, optional
        The folder of the job.
    interfaces : sequence of str
        What ``--network-interface`` names.
    deadline_s : float
        Seconds after which a host that has not answered is a problem.

    Raises
    ------
    UsageError
        If this host has no such interface.
    """
    if not remote:
        return Preflight((), {}, {})
    question = question_of(python=python, mpi=mpi, script=script, cwd=cwd, interfaces=interfaces)
    here = this_host(question, mpi)
    answers = ask_all(remote, agent=agent, question=question, deadline_s=deadline_s)
    facts = {each.host: each.facts for each in answers if each.facts is not None}
    return Preflight(
        problems=tuple(
            line
            for answer in answers
            for line in problems_of(
                answer, here, question, agent=agent, hosts=len(remote), deadline_s=deadline_s
            )
        )
        + tuple(told_twice(answers)),
        cores={host: usable_cores(found) for host, found in facts.items()},
        reached_at={host: found["reached"] for host, found in facts.items() if found["reached"]},
    )


def question_of(  # noqa: PLR0913 - one call, all by name
    *,
    python: str,
    mpi: Mpi | None,
    script: str | None,
    cwd: str | None,
    interfaces: Sequence[str],
    deep: bool = False,
    gpus: bool = False,
) -> Question:
    """Return what all hosts of a job are asked."""
    files = [OURS]
    if script is not None:
        files.append(os.path.abspath(script))
    paths = os.environ.get("PYTHONPATH", "")
    return Question(
        python=python,
        paths=tuple(os.path.abspath(path) for path in paths.split(os.pathsep) if path),
        files=tuple(files),
        cwd=cwd,
        mpiexec=None if mpi is None else mpi.path,
        interfaces=tuple(interfaces),
        deep=deep,
        gpus=gpus,
    )


def script_of(program: Program) -> str | None:
    """Return the file that `program` runs, None for modules and code."""
    words = list(program.argv)
    if program.form is Form.EXECUTABLE:
        return words[0] if os.sep in words[0] else None
    runner = next((at for at, word in enumerate(words) if word.endswith(f"{os.sep}script.py")), 0)
    rest = words[runner + 1 :]
    return rest[0] if rest and not rest[0].startswith("-") else None


def this_host(question: Question, mpi: Mpi | None) -> Here:
    """Return what this host has of what the others are asked for."""
    packages = dict(installed_packages(sys.path))
    return Here(
        machine=os.uname().machine,
        python=sys.version.split()[0],
        blinkrun=__version__,
        mpi4py=probe.version_of("mpi4py"),
        mpi=mpi,
        mpi_package=None if mpi is None else packages.get(mpi.kind),
        files={path: probe.file_hash(path) for path in question.files},
    )


def usable_cores(facts: Mapping[str, Any]) -> int:
    """Return how many cores' worth of time processes get, at least 1."""
    cores, quota = int(facts["cores"]), facts["quota"]
    return cores if quota is None else max(1, min(cores, int(quota)))
