"""Judges what hosts have answered: a line for each cause that keeps a job from running there.

Functions of values: what a host has answered (`questions.Answer`) and what this host is (`Here`).
Every line goes on from "host NAME" and ends with a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun.launcher import agent as supervisor
from blinkrun.launcher.mpiexec import Mpi, identify
from blinkrun.launcher.questions import Answer, Question, addresses_of

OURS = str(Path(supervisor.__file__))  # what an MPI starts on every host, by this path
# What launch agents say when they cannot reach a host, and what helps.
_UNREACHED = (
    (
        r"could not resolve|name or service not known|temporary failure in name res"
        r"|no address associated|cannot open network namespace|unknown host",
        "is unknown here: check its name, or add it to /etc/hosts or ~/.ssh/config",
    ),
    (
        r"host key verification failed|host identification has changed",
        "has a key that this host does not know: log in by hand once, or fill ~/.ssh/known_hosts"
        " by ssh-keyscan",
    ),
    (
        r"permission denied|too many authentication failures|no supported authentication",
        "wants a password or another key: let this user in without one, as by ssh-copy-id",
    ),
    (
        r"connection refused",
        "refuses the connection: start sshd there, or give its port by --launch-agent 'ssh -p N'",
    ),
    (
        r"timed out|no route to host|network is unreachable|host is down",
        "cannot be reached: check that it is up and that a firewall lets port 22 through",
    ),
    (
        r"pods? .*not found|container not found|unable to upgrade connection",
        "is no pod that runs: wait until all workers are ready, or check the names",
    ),
)


@dataclass(frozen=True, slots=True)
class Here:
    """What this host has, which the others must have too.

    Attributes
    ----------
    machine : str
        The processor's architecture, as uname names it.
    python, blinkrun : str
        Versions.
    mpi4py : str or None
        Its version; None without it.
    mpi : Mpi or None
        The MPI of the job; None if that is not to be compared.
    mpi_package : str or None
        The Python package that it comes from.
    files : mapping of str to (str or None)
        Digits that stand for the content of each file, as `probe.file_hash` gives them.
    """

    machine: str
    python: str
    blinkrun: str
    mpi4py: str | None
    mpi: Mpi | None
    mpi_package: str | None
    files: Mapping[str, str | None]


def problems_of(  # noqa: PLR0913 - one call, all by name
    answer: Answer,
    here: Here,
    question: Question,
    *,
    agent: Sequence[str],
    hosts: int,
    deadline_s: float,
) -> list[str]:
    """Return why the host that gave `answer` cannot take part, a line for each cause."""
    who = f"host {answer.host}"
    if answer.facts is None:
        return [f"{who} {_why_silent(answer, question, agent[0], deadline_s)}"]
    lines = [
        *_software(answer.facts, here, question),
        *_files(answer.facts, here, question),
        *_network(answer, question),
    ]
    if hosts > 1 and answer.unreached:
        others = ", ".join(answer.unreached)
        lines.append(
            f"cannot connect to {others}: open the ports between all hosts in their firewalls, or"
            " choose another network by --network-interface"
        )
    return [f"{who} {line}" for line in lines]


def told_twice(answers: Sequence[Answer]) -> list[str]:
    """Return a line for each host that has answered to several names: an MPI cannot start there.

    Containers of one machine share its kernel, and hosts may all be called localhost; with the same
    addresses as well it is one host.
    """
    found: dict[tuple[Any, ...], list[Answer]] = {}
    for answer in answers:
        if answer.facts is not None:
            addresses = sorted(
                at for each in answer.facts["interfaces"] for at in each["addresses"]
            )
            who = (answer.facts["host"], answer.facts["boot"], *addresses)
            found.setdefault(who, []).append(answer)
    return [
        f"host {first.host} is {', '.join(each.host for each in rest)} as well: give all slots of"
        " it under one name"
        for first, *rest in found.values()
        if rest
    ]


def _why_silent(answer: Answer, question: Question, agent: str, deadline_s: float) -> str:
    said = _last_line(answer.said)
    if answer.problem.startswith("agent: "):
        reason = answer.problem.removeprefix("agent: ")
        return f"cannot be asked: launch agent {agent}: {reason}; name one by --launch-agent"
    if answer.problem == "prompt":
        return (
            f"asks for input ({said}), which nobody can give: let this user in without a password,"
            " as by ssh-copy-id"
        )
    if answer.shell:
        return _why_no_facts(answer, question, deadline_s)
    if answer.problem == "late":
        heard = f"; {agent} last said: {said}" if said else ""
        return (
            f"has not answered {agent} within {deadline_s:g} s{heard}; check that it is up and"
            " that this user gets in without a password"
        )
    for pattern, remedy in _UNREACHED:
        if re.search(pattern, answer.said, re.IGNORECASE):
            return f"{remedy} ({said})"
    heard = f": {said}" if said else ", and says nothing"
    return f"cannot be asked: {agent} ends with exit code {answer.code}{heard}"


def _why_no_facts(answer: Answer, question: Question, deadline_s: float) -> str:
    said = _last_line(answer.said)
    if answer.problem == "late":
        return (
            f"lets this user in, but its {question.python} has not answered within {deadline_s:g}"
            " s: look for a file system that hangs"
        )
    if answer.code in (126, 127):
        return (
            f"has no {question.python}: install the same environment there, at the same path, or"
            " share it"
        )
    return (
        f"has a {question.python} that fails ({said or f'exit code {answer.code}'}): install the"
        " same environment there as here"
    )


def _software(facts: Mapping[str, Any], here: Here, question: Question) -> Iterator[str]:
    if facts["machine"] != here.machine:
        yield (
            f"is of architecture {facts['machine']}, this host of {here.machine}: a job runs on one"
            " architecture; leave the host out"
        )
    if _minor(facts["python"]) != _minor(here.python):
        yield (
            f"runs Python {facts['python']}, this host {here.python}: install the same environment"
            f" there ({question.python})"
        )
        return  # what is in it does not count
    blinkrun = facts["blinkrun"]
    install = f"pip install blinkrun=={here.blinkrun} there"
    if blinkrun is None:
        yield f"has no blinkrun in {question.python}: {install}"
        return
    if blinkrun["version"] != here.blinkrun:
        yield f"has blinkrun {blinkrun['version']}, this host {here.blinkrun}: {install}"
        return
    if not blinkrun["core"]:
        yield f"has a blinkrun without its compiled core in {blinkrun['folder']}: {install}"
    if facts["mpi4py"] is None:
        yield f"has no mpi4py in {question.python}: pip install mpi4py=={here.mpi4py} there"
    elif facts["mpi4py"] != here.mpi4py:
        yield (
            f"has mpi4py {facts['mpi4py']}, this host {here.mpi4py}: pip install"
            f" mpi4py=={here.mpi4py} there"
        )
    if here.mpi is not None:
        yield from _mpi(facts["mpiexec"], here.mpi, here.mpi_package)


def _mpi(found: Mapping[str, Any], mpi: Mpi, package: str | None) -> Iterator[str]:
    wanted = f"{mpi.kind.title} {mpi.version}"
    remedy = f"pip install {package}=={mpi.version} there" if package else f"install {wanted} there"
    if found["text"] is None:
        yield f"has no {mpi.path}, which is {wanted} here: {remedy}, at the same path"
        return
    there = identify(found["text"])
    if there is None:
        yield f"has a {mpi.path} that does not say what it is, here it is {wanted}: {remedy}"
    elif there != (mpi.kind, mpi.version):
        yield f"has {there[0].title} {there[1]}, this host {wanted}: {remedy}"


def _files(facts: Mapping[str, Any], here: Here, question: Question) -> Iterator[str]:
    if facts["cwd"] is False:
        yield f"has no folder {question.cwd}: start from one that all hosts have, or make it there"
    for path, content in here.files.items():
        there = facts["files"].get(path)
        is_ours = path == OURS
        if there == content:
            continue
        if is_ours and facts["blinkrun"] is None:
            continue  # said already
        if there is None and is_ours:
            folder = facts["blinkrun"]["folder"]
            yield (
                f"has blinkrun in {folder}, this host's is run from {path}: install it there at"
                " the same path"
            )
        elif there is None:
            yield f"does not see {path}: copy it there, or start from a folder that all hosts share"
        elif not is_ours:
            yield f"has a {path} of other content than this host: copy this one there"
        elif facts["blinkrun"]["version"] == here.blinkrun:
            yield f"has another build of blinkrun {here.blinkrun}: install the same one there"


def _network(answer: Answer, question: Question) -> Iterator[str]:
    assert answer.facts is not None
    there = answer.facts["interfaces"]
    names = [each["name"] for each in there]
    missing = [name for name in question.interfaces if name not in names]
    if missing:
        has = ", ".join(names) or "none but the loopback"
        yield (
            f"has no interface {', '.join(missing)}, but {has}: name interfaces that all hosts"
            " have by --network-interface"
        )
    elif question.interfaces and not addresses_of(there, question.interfaces):
        yield f"has no address on {', '.join(question.interfaces)}, or it is down: ip addr there"
    if not any(each["up"] and each["addresses"] for each in there):
        state = ", ".join(f"{name} is down or has no address" for name in names) or "it has none"
        yield f"has no network interface that works ({state}): ip link set NAME up there"
    elif not answer.facts["reached"]:
        yield (
            "cannot connect back to this host: open the ports between the hosts in their"
            " firewalls, or choose another network by --network-interface"
        )
    elif not answer.is_reached:
        yield (
            f"takes no connection from this host at {answer.address}: open the ports between the"
            " hosts in its firewall, or choose another network by --network-interface"
        )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
