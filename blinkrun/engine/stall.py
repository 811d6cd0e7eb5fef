"""Requests that wait too long for some ranks: when to say so, when to end it, and in which words.

Values only: the engine passes in the clock and what is pending, and acts on the reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blinkrun.engine.agree import name_ranks
from blinkrun.engine.events import Pending
from blinkrun.types import Rank

CONFLICT_S = 2.0  # after which two process sets that wait for each other are not a coincidence
ANSWER_S = 2.0  # how long a rank has to say what it is doing
WARN = "warn"
END = "end"
_SHORT_OF_WAITING = 3  # requests that a report names of those that wait for the same ranks


@dataclass(frozen=True, slots=True)
class Report:
    """A request has waited for `age_s`; `kind` is `WARN`, or `END` if that is too long."""

    kind: str
    pending: Pending
    age_s: float


class StallWatch:
    """Knows since when each request has been waiting.

    Parameters
    ----------
    warning_s : float
        A request that has waited so long is reported, again after each further period; 0: never.
    shutdown_s : float
        One that has waited so long ends the job; 0: never.
    """

    def __init__(self, warning_s: float, shutdown_s: float = 0.0) -> None:
        self._warning_s = warning_s
        self._shutdown_s = shutdown_s
        self._since: dict[int, float] = {}
        self._warn_at: dict[int, float] = {}
        self._conflict_since: dict[int, float] = {}

    def look(self, now_s: float, pending: Sequence[Pending]) -> list[Report]:
        """Return what is to be reported now, the oldest request first.

        Parameters
        ----------
        now_s : float
            A clock that never goes back. Ages count from the first look that saw a request.
        pending : sequence of Pending
            All that is pending, as `Negotiator.pending` returns it.
        """
        numbers = {one.number for one in pending}
        self._since = {n: since for n, since in self._since.items() if n in numbers}
        self._warn_at = {n: when for n, when in self._warn_at.items() if n in numbers}
        reports = []
        for one in pending:
            age_s = now_s - self._since.setdefault(one.number, now_s)
            if self._shutdown_s > 0 and age_s >= self._shutdown_s:
                reports.append(Report(END, one, age_s))
            elif self._warning_s > 0 and age_s >= self._warn_at.get(one.number, self._warning_s):
                periods = age_s // self._warning_s + 1
                self._warn_at[one.number] = periods * self._warning_s
                reports.append(Report(WARN, one, age_s))
        return reports

    def conflicts(self, now_s: float, pending: Sequence[Pending]) -> list[Pending]:
        """Return requests whose process sets have waited for each other for `CONFLICT_S`.

        Those are to be failed, with `Pending.conflict` as the reason.
        """
        marked = {one.number: one for one in pending if one.conflict}
        self._conflict_since = {n: s for n, s in self._conflict_since.items() if n in marked}
        return [
            one
            for number, one in marked.items()
            if now_s - self._conflict_since.setdefault(number, now_s) >= CONFLICT_S
        ]


def report_text(
    reports: Sequence[Report],
    stacks: Mapping[Rank, str | None] | None = None,
    hosts: Sequence[str] = (),
) -> str:
    """Return what to tell people: which tensors, who has them, who has not and what those do.

    Parameters
    ----------
    reports : sequence of Report
        Of one look, at least one.
    stacks : mapping of Rank to (str or None), optional
        What missing ranks said that they are doing; None for one that has not answered. Without
        the mapping nobody was asked.
    hosts : sequence of str, optional
        The host of each rank, where there are several.
    """
    by_missing: dict[tuple[Rank, ...], list[Report]] = {}
    for report in reports:
        by_missing.setdefault(report.pending.missing, []).append(report)
    blocks = []
    for alike in by_missing.values():
        blocks += [_line(report, hosts) for report in alike[:_SHORT_OF_WAITING]]
        if len(alike) > _SHORT_OF_WAITING:
            blocks.append(f"... and {len(alike) - _SHORT_OF_WAITING} more, for the same ranks")
    missing = sorted({rank for report in reports for rank in report.pending.missing})
    if stacks is not None:
        blocks += [_stack(name_ranks([rank], hosts), stacks.get(rank)) for rank in missing]
    return "\n".join(blocks)


def _line(report: Report, hosts: Sequence[str]) -> str:
    pending = report.pending
    request = pending.request
    where = f" at {request.where}" if request.where else ""
    of_set = f" of process set {request.process_set}" if request.process_set else ""
    joined = f"; joined: {name_ranks(pending.joined)}" if pending.joined else ""
    verb = "has" if len(pending.have) == 1 else "have"
    conflict = f"; {pending.conflict}" if pending.conflict else ""
    return (
        f"{request.kind.label} '{request.name}'{of_set} has waited {report.age_s:.0f} s for"
        f" {name_ranks(pending.missing, hosts)}; {name_ranks(pending.have)} {verb} called it{where}"
        f"{joined}{conflict}"
    )


def _stack(who: str, stack: str | None) -> str:
    if stack is None:
        return f"{who}: no answer within {ANSWER_S:.0f} s: it is stopped or computes outside Python"
    inner = "\n".join(f"  {line}" for line in stack.splitlines())
    return f"{who} is here:\n{inner}"
