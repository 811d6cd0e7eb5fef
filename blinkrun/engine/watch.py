"""Looks after requests that wait: who is missing, what those ranks do, when it is enough.

The thread that drives looks now and then. Of the ranks that wait for the same request the lowest
speaks: it asks the missing ranks for their stacks (an urgent note, which their helper threads
answer whatever the main thread does), and says what it has heard after a while. When a request has
waited too long, that text is the error with which the job ends.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence, Set
from typing import NoReturn

from blinkrun import log
from blinkrun.engine.agree import name_ranks
from blinkrun.engine.events import Pending
from blinkrun.engine.journal import Journal
from blinkrun.engine.negotiate import Negotiator
from blinkrun.engine.stacks import describe_threads
from blinkrun.engine.stall import ANSWER_S, END, Report, StallWatch, report_text
from blinkrun.errors import CollectiveTimeoutError
from blinkrun.types import Rank

SILENCE_S = 3 * ANSWER_S  # after which others end the job if the rank that speaks does not
MOST_RANKS = 1 << 20
_ASK, _TELL = 0, 1  # kinds of notes


class _Inquiry:
    """A report that waits for the stacks of the missing ranks."""

    def __init__(self, reports: Sequence[Report], since_s: float) -> None:
        self.reports = reports
        self.since_s = since_s
        self.missing = sorted({rank for each in reports for rank in each.pending.missing})
        self.stacks: dict[Rank, str | None] = {}

    @property
    def is_answered(self) -> bool:
        """Whether all of them have told theirs."""
        return len(self.stacks) == len(self.missing)


class Watch:
    """What one rank knows of requests that wait, and does about them.

    Parameters
    ----------
    negotiator : Negotiator
        Called with the engine's mutex held.
    journal : Journal
        Tells who is gone.
    warning_s, shutdown_s : float
        Seconds after which a request that lacks ranks is reported, and ends the job; 0: never.
    timeout_s : float
        The deadline of collectives, which ends the job too.
    hosts : sequence of str, optional
        The host of each rank, where there are several.
    say : callable
        Writes a report for people.
    """

    def __init__(  # noqa: PLR0913
        self,
        negotiator: Negotiator,
        journal: Journal,
        *,
        warning_s: float,
        shutdown_s: float,
        timeout_s: float,
        hosts: Sequence[str] = (),
        say: Callable[[str, Rank], None] = log.say,
    ) -> None:
        self._rank = negotiator.rank
        self._negotiator = negotiator
        self._journal = journal
        self._stall = StallWatch(warning_s, min(shutdown_s or timeout_s, timeout_s))
        self._timeout_s = timeout_s
        self._hosts = hosts
        self._say = say
        self._inquiries: dict[int, _Inquiry] = {}
        self._next_number = 0
        self._dead: set[Rank] = set()
        self._ends_since_s: float | None = None

    def look(self, now_s: float) -> bool:
        """Look once; True if the outbox now has something that sleeping ranks must read.

        Raises
        ------
        CollectiveTimeoutError
            If a request has waited too long.
        """
        self._find_dead()
        pending = self._negotiator.pending()
        self._end_conflicts(self._stall.conflicts(now_s, pending))
        mine = [one for one in pending if self._rank in one.have]
        reports = self._stall.look(now_s, mine)
        self._conclude(now_s, {one.number for one in mine})
        is_asked = self._ask(now_s, [each for each in reports if self._speaks_about(each.pending)])
        self._end_if_nobody_speaks(now_s, [each for each in reports if each.kind == END])
        return is_asked

    def look_after_joins(self, joined: Sequence[int], silent_s: float) -> None:
        """End the job if ranks that have not joined have given no sign of life for too long.

        A rank that has joined waits as long as the others train.

        Parameters
        ----------
        joined : sequence of int
            The process sets that this rank has joined.
        silent_s : float
            Seconds since any rank has asked for anything.
        """
        if not joined or silent_s < self._timeout_s:
            return
        missing = self._negotiator.not_joined(joined[0])
        raise CollectiveTimeoutError(
            f"rank {self._rank}: join waits for {name_ranks(missing, self._hosts)}, and no rank has"
            f" asked for anything for {silent_s:.0f} s; raise BLINKRUN_TIMEOUT_S (or --timeout) if"
            " they are only slow",
            missing,
            self._timeout_s,
        )

    def noted(self, sender: Rank, payload: bytes) -> None:
        """Take a note of another rank's watch; what is to be answered goes to the outbox."""
        kind, number, *rest = marshal.loads(payload)
        if kind == _ASK:
            if self._rank in rest[0]:
                answer = (_TELL, number, describe_threads())
                self._negotiator.note(marshal.dumps(answer))
        elif number in self._inquiries:
            self._inquiries[number].stacks[sender] = rest[0]

    # ---- inside --------------------------------------------------------------------------------

    def _find_dead(self) -> None:
        """Tell all ranks of one that is gone and has not said so itself."""
        for rank in self._journal.gone():
            if rank not in self._negotiator.left and rank not in self._dead:
                self._dead.add(rank)
                self._negotiator.leave(rank)

    def _end_conflicts(self, torn: Sequence[Pending]) -> None:
        """Fail requests of one name whose sets wait for each other, all of them at once.

        One rank does: were each set's requests failed by a rank of its own, a rank could call
        again and make ready what others have yet to hear about.
        """
        for one in torn:
            alike = [other for other in torn if other.request.name == one.request.name]
            if self._rank == min(rank for other in alike for rank in other.have):
                self._negotiator.fail(one.request.process_set, one.request.name, one.conflict)

    def _speaks_about(self, pending: Pending) -> bool:
        return pending.have[0] == self._rank

    def _ask(self, now_s: float, reports: Sequence[Report]) -> bool:
        """Ask the missing ranks of new reports what they do."""
        asked = {
            (report.kind, report.pending.number)
            for each in self._inquiries.values()
            for report in each.reports
        }
        fresh = [each for each in reports if (each.kind, each.pending.number) not in asked]
        if not fresh:
            return False
        # Unique among all ranks, whose answers all ranks hear.
        number = self._next_number * MOST_RANKS + self._rank
        self._next_number += 1
        inquiry = _Inquiry(fresh, now_s)
        self._inquiries[number] = inquiry
        self._negotiator.note(marshal.dumps((_ASK, number, inquiry.missing)))
        return True

    def _conclude(self, now_s: float, waiting: Set[int]) -> None:
        """Say what is known of reports that have been answered, or not for too long."""
        for number, inquiry in list(self._inquiries.items()):
            if not inquiry.is_answered and now_s - inquiry.since_s < ANSWER_S:
                continue
            del self._inquiries[number]
            reports = [each for each in inquiry.reports if each.pending.number in waiting]
            if not reports:
                continue  # what was missing has come meanwhile
            stacks = {rank: inquiry.stacks.get(rank) for rank in inquiry.missing}
            ends = [each for each in reports if each.kind == END]
            if ends:
                self._end(ends, stacks)
            self._say(f"stalled: {report_text(reports, stacks, self._hosts)}", self._rank)

    def _end_if_nobody_speaks(self, now_s: float, ends: Sequence[Report]) -> None:
        if not ends:
            self._ends_since_s = None
        elif self._ends_since_s is None:
            self._ends_since_s = now_s
        elif now_s - self._ends_since_s > SILENCE_S:
            self._end(ends, None)

    def _end(self, reports: Sequence[Report], stacks: dict[Rank, str | None] | None) -> NoReturn:
        missing = sorted({rank for each in reports for rank in each.pending.missing})
        raise CollectiveTimeoutError(
            f"rank {self._rank}: {report_text(reports, stacks, self._hosts)}",
            missing,
            reports[0].age_s,
        )
