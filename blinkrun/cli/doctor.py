"""``blinkrun doctor``: what the hosts of a job offer, and what keeps it from running.

The facts are those of `launcher.probe`, gathered by `launcher.survey`; `launcher.verdict` compares
hosts, as every start does, and `doctor_findings` judges what only this command asks for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blinkrun.cli.doctor_options import DoctorOptions, make_parser, parse
from blinkrun.cli.output import emit, json_text
from blinkrun.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from blinkrun.cli.doctor_findings import Seen
    from blinkrun.launcher.mpiexec import Mpi
    from blinkrun.launcher.questions import Answer, Question

EXIT_PROBLEMS = 1
# What asks and judges is imported where it is needed: the help must come at once.


def main(argv: Sequence[str]) -> int:
    """Carry out ``blinkrun doctor argv``: 0 if a job can run, 1 if not.

    Raises
    ------
    UsageError
        If it cannot be carried out, with one line for the user.
    """
    try:
        options = parse(argv)
        if options is None:
            return emit(make_parser().format_help())
        text, is_well = _examine(options)
    except UsageError as err:
        raise UsageError(f"doctor: {err}") from err
    return emit(text) or (0 if is_well else EXIT_PROBLEMS)


def _examine(options: DoctorOptions) -> tuple[str, bool]:
    """Return what is to be printed, and whether a job can run."""
    from blinkrun.cli import doctor_findings, doctor_text  # noqa: PLC0415

    if options.script is not None and not os.path.isfile(options.script):
        raise UsageError(f"script '{options.script}' not found in {os.getcwd()}")
    mpi, problems = _mpi(options.mpi)
    everyone, compared = _ask(options, mpi)
    problems += compared
    for seen in everyone:
        problems += doctor_findings.problems(seen, num_hosts=len(everyone))
        problems += doctor_findings.gpus(seen) if options.gpus else ()
    notes = doctor_findings.notes(everyone, with_gpus=not options.gpus)
    if options.json:
        hosts = {seen.host: _json(seen) for seen in everyone}
        everything: dict[str, Any] = {"this": everyone[0].host, "hosts": hosts}
        everything |= {"mpi": None if mpi is None else str(mpi)}
        return json_text(everything | {"problems": problems, "notes": notes}), not problems
    script = None if options.script is None else os.path.abspath(options.script)
    text = doctor_text.report(everyone, mpi, problems=problems, notes=notes, script=script)
    return text, not problems


def _mpi(wanted: str | None) -> tuple[Mpi | None, list[str]]:
    """Return the MPI of a job started here, or why there is none."""
    from blinkrun.launcher.discover import find_mpi  # noqa: PLC0415

    try:
        return find_mpi(wanted, os.environ), []
    except UsageError as err:
        if wanted is not None:
            raise
        return None, [f"this host: {err}"]


def _targets(options: DoctorOptions) -> list[str]:
    """Return the hosts that are named, by the options or by a batch system."""
    from blinkrun.launcher.allocation import from_environ  # noqa: PLC0415
    from blinkrun.launcher.hosts import parse_hosts, read_hostfile  # noqa: PLC0415

    if options.hosts is not None:
        return [target.name for target in parse_hosts(options.hosts)]
    if options.hostfile is not None:
        return [target.name for target in read_hostfile(options.hostfile)]
    allocation = from_environ(os.environ)
    return [] if allocation is None else [target.name for target in allocation.targets]


def _ask(options: DoctorOptions, mpi: Mpi | None) -> tuple[list[Seen], list[str]]:
    """Return all hosts with their facts, this one first, and what does not fit together."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from blinkrun.cli.doctor_findings import Seen  # noqa: PLC0415
    from blinkrun.launcher import probe  # noqa: PLC0415
    from blinkrun.launcher.addresses import is_local  # noqa: PLC0415
    from blinkrun.launcher.preflight import question_of  # noqa: PLC0415

    names = _targets(options)
    remote = [name for name in names if not is_local(name)]
    question = question_of(
        python=sys.executable,
        mpi=mpi,
        script=options.script,
        cwd=os.getcwd() if remote else None,
        interfaces=options.interfaces,
        deep=True,
        gpus=options.gpus,
    )
    with ThreadPoolExecutor(1) as pool:  # this host is asked while the others are
        facts: Future[dict[str, Any]] = pool.submit(probe.facts, question.request())
        answers = _remote(remote, options, question) if remote else []
        here = facts.result()
    local = next((name for name in names if is_local(name)), here["host"])
    reached = [each.facts["reached"] for each in answers if each.facts is not None]
    everyone = [Seen(local, True, here, next(filter(None, reached), ""))]
    everyone += [Seen(each.host, False, each.facts, each.address, each.clock_s) for each in answers]
    return everyone, _compared(answers, options, question, mpi)


def _remote(remote: list[str], options: DoctorOptions, question: Question) -> list[Answer]:
    from blinkrun.launcher.remote import agent_words  # noqa: PLC0415
    from blinkrun.launcher.survey import ask_all  # noqa: PLC0415

    agent = agent_words(options.agent, os.environ)
    return ask_all(remote, agent=agent, question=question, deadline_s=options.deadline_s)


def _compared(
    answers: list[Answer], options: DoctorOptions, question: Question, mpi: Mpi | None
) -> list[str]:
    """Return why the other hosts do not fit to this one."""
    if not answers:
        return []
    from blinkrun.launcher.preflight import this_host  # noqa: PLC0415
    from blinkrun.launcher.remote import agent_words  # noqa: PLC0415
    from blinkrun.launcher.verdict import problems_of, told_twice  # noqa: PLC0415

    here = this_host(question, mpi)
    agent = agent_words(options.agent, os.environ)
    return [
        line
        for answer in answers
        for line in problems_of(
            answer,
            here,
            question,
            agent=agent,
            hosts=len(answers),
            deadline_s=options.deadline_s,
        )
    ] + told_twice(answers)


def _json(seen: Seen) -> dict[str, Any]:
    return {
        "is_this": seen.is_this,
        "address": seen.address,
        "clock_ahead_s": seen.clock_s,
        "facts": seen.facts,
    }
