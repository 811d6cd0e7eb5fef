"""From what happened to each rank: what the first cause was, what to say, and the exit code.

Pure: everything that the launcher has seen goes in as values. The rules are in `decide`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

EXIT_FAILED = 1
EXIT_TIMEOUT = 124  # as coreutils' timeout
EXIT_SIGNAL = 128

_SAME_TIME_S = 0.1
_MAX_MESSAGE = 200
_HINTS = (  # what a script says that was written for another launcher, and the option for it
    ("No module named 'horovod'", "blinkrun --horovod stands in for it"),
    ("env:// rendezvous: environment variable", "blinkrun --ddp sets it"),
)
_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?[Ee]rror ?code:?\s+(?P<errorcode>-?\d+)"
    r"|Abort\((?P<code>-?\d+)\) on node (?P<node>\d+)",
    re.DOTALL,
)
_SECONDARY = ("peer_left", "aborted", "timeout")  # reports that say: the cause is another rank


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank said about its own end, before it ended.

    `kind` is ``raised`` (an exception), ``exited`` (sys.exit with a code), ``finished`` (ran to its
    end), ``spawn`` (could not be started), or one that names other `ranks` as the reason:
    ``peer_left``, ``aborted``, ``timeout``.
    """

    kind: str
    message: str = ""
    error: str = ""
    ranks: tuple[int, ...] = ()
    code: int = EXIT_FAILED
    time_s: float = 0.0

    @classmethod
    def parse(cls, fields: Mapping[str, object], time_s: float) -> Report:
        """Return the report that `fields` hold; anything missing or odd is left out."""
        ranks = fields.get("ranks")
        code = fields.get("code")
        named = ranks if isinstance(ranks, list) else [fields.get("rank")]
        return cls(
            kind=str(fields.get("kind", "")),
            message=str(fields.get("message", "")),
            error=str(fields.get("error", "")),
            ranks=tuple(rank for rank in named if isinstance(rank, int)),
            code=code if isinstance(code, int) else EXIT_FAILED,
            time_s=time_s,
        )


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What the launcher knows of one rank at the end of a job. Times in seconds, on one clock.

    Attributes
    ----------
    code : int or None
        Exit code, negative for a signal (as subprocess has it); None: its end was not seen.
    ended_s : float or None
        When it ended.
    ordered : bool
        Whether it had been told to end (by the launcher, or after the MPI ended the job).
    report : Report or None
        What it said about its end.
    told_s : float or None
        When the MPI ended this rank.
    lost_s : float or None
        When its supervisor was gone without having reported the rank's end.
    silent_s : float or None
        For how long nothing was heard of its supervisor, which is on another host, if it counts as
        gone for that reason.
    tail : tuple of str
        The last lines that it wrote.
    """

    rank: int
    host: str = ""
    code: int | None = None
    ended_s: float | None = None
    ordered: bool = False
    report: Report | None = None
    told_s: float | None = None
    lost_s: float | None = None
    silent_s: float | None = None
    tail: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the rank's report, empty without one."""
        return self.report.kind if self.report else ""

    @property
    def failed_s(self) -> float | None:
        """When it failed by itself, or None if it did not."""
        if self.report is not None and self.kind not in ("", "finished"):
            return self.report.time_s
        if self.code not in (None, 0) and not self.ordered:
            return self.ended_s
        return None

    @property
    def is_secondary(self) -> bool:
        """Whether it says that another rank is the reason."""
        return self.kind in _SECONDARY

    @property
    def left_s(self) -> float | None:
        """When it ended well (or came to the end of its program), or None."""
        if self.kind == "finished" and self.report is not None:
            return self.report.time_s
        return self.ended_s if self.code == 0 and not self.ordered else None

    @property
    def was_told(self) -> bool:
        """Whether the MPI ended it in the middle of its program."""
        return self.told_s is not None and (self.ended_s is None or self.ended_s > self.told_s)

    @property
    def is_running(self) -> bool:
        """Whether it was in the middle of its program when the launcher ended the job."""
        return self.failed_s is None and self.left_s is None


class Stop(Enum):
    """Why the launcher itself ended a job, where no rank did."""

    SIGNAL = "signal"
    HUNG = "hung"
    TIME_LIMIT = "time limit"
    OUTPUT_CLOSED = "output closed"
    MPI_ENDED = "mpi ended"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the launcher ended the job: `value` is the signal, the seconds, or mpiexec's status."""

    stop: Stop
    value: float = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: exit code, what to say in one line, and the lines to show below it."""

    exit_code: int
    message: str = ""
    rank: int | None = None
    tail: tuple[str, ...] = field(default=())

    def text(self) -> str:
        """Return the last words of the launcher; empty if all is well."""
        if not self.message:
            return ""
        if self.rank is None:
            return f"blinkrun: {self.message}\n"
        if not self.tail:
            return f"blinkrun: {self.message}; it had written nothing\n"
        shown = "".join(f"    {line}\n" for line in self.tail)
        return f"blinkrun: {self.message}; its last lines:\n{shown}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words, runs joined.

    >>> name_ranks([1]), name_ranks([3, 0, 1, 2, 5])
    ('rank 1', 'ranks 0-3, 5')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"rank{'' if one else 's'} {', '.join(texts)}"


def decide(records: Sequence[RankRecord], reason: Reason | None, mpi_text: str = "") -> Outcome:
    """Return how a job ended.

    The rules, first that fits:

    1. The launcher ended the job (a signal, a limit): that is the cause.
    2. A whole host was lost: it answers no more, or all of its supervisors are gone.
    3. The first rank that failed by itself is the cause, unless it says that it failed because of
       another rank. Then that one is: because it failed, or left while others waited for it.
    4. The MPI ended the job: the rank that called MPI_Abort, or that left without MPI_Finalize.
    5. All ranks ended with 0.
    """
    if reason is not None and reason.stop is not Stop.MPI_ENDED:
        return _stopped(records, reason)
    return (
        _host_loss(records)
        or _failure(records, mpi_text)
        or _loss([record for record in records if record.lost_s is not None], records)
        or _mpi_end(records, mpi_text)
        or _end(records, reason, mpi_text)
    )


def _failure(records: Sequence[RankRecord], mpi_text: str) -> Outcome | None:
    failed = sorted(
        (record for record in records if record.failed_s is not None),
        key=lambda record: (record.failed_s, record.rank),
    )
    if not failed or (failed[0].failed_s or 0) >= _told_s(records):
        aborted = _called_abort(records, mpi_text)
        if aborted is not None:  # what ranks do once the MPI has ended the job means nothing
            return aborted
    return _first_cause(records, failed) if failed else None


def _told_s(records: Sequence[RankRecord]) -> float:
    """Return when the MPI ended the job; infinite if it did not."""
    told = (record.told_s for record in records if record.told_s is not None and record.was_told)
    return min(told, default=float("inf"))


def _loss(lost: Sequence[RankRecord], records: Sequence[RankRecord]) -> Outcome | None:
    """Return the outcome of the first loss, None without one."""
    if not lost:
        return None
    return _lost(min(lost, key=lambda record: (record.lost_s or 0, record.rank)), records)


def _host_loss(records: Sequence[RankRecord]) -> Outcome | None:
    """Return the outcome where a whole host was lost: what others then say is a consequence."""
    silent = [record for record in records if record.silent_s is not None]
    if silent:
        return _loss(silent, records)
    failed = (record.failed_s for record in records if record.failed_s is not None)
    first_s = min(failed, default=float("inf")) + _SAME_TIME_S
    lost = [record for record in records if _is_lost_with_its_host(record, records)]
    return _loss([record for record in lost if (record.lost_s or 0) < first_s], records)


def _is_lost_with_its_host(record: RankRecord, records: Sequence[RankRecord]) -> bool:
    """Whether all ranks of the record's host are lost, and it is not the only one."""
    of_host = [other for other in records if other.host == record.host]
    return len(of_host) < len(records) and all(other.lost_s is not None for other in of_host)


def _end(records: Sequence[RankRecord], reason: Reason | None, mpi_text: str) -> Outcome:
    if all(record.code == 0 for record in records):
        return Outcome(0)
    running = name_ranks(record.rank for record in records if record.code != 0)
    status = f" with exit code {reason.value:g}" if reason else ""
    return Outcome(EXIT_FAILED, f"mpiexec ended{status} while {running} ran{_quoted(mpi_text)}")


def _stopped(records: Sequence[RankRecord], reason: Reason) -> Outcome:
    value = reason.value
    if reason.stop is Stop.SIGNAL:
        number = int(value)
        return Outcome(EXIT_SIGNAL + number, f"ended by {signal_name(number)}")
    if reason.stop is Stop.OUTPUT_CLOSED:
        return Outcome(EXIT_SIGNAL + signal.SIGPIPE)  # as any program in a pipe: without a word
    running = [record.rank for record in records if record.is_running] or [
        record.rank for record in records
    ]
    if reason.stop is Stop.TIME_LIMIT:
        what = f"the time limit of {value:g} s is over (--time-limit)"
        return Outcome(EXIT_TIMEOUT, f"{what}; {name_ranks(running)} had not ended")
    what = f"hung: for {value:g} s no rank computed or wrote anything (--timeout)"
    return Outcome(EXIT_TIMEOUT, f"{what}; {name_ranks(running)} had not ended")


def _first_cause(records: Sequence[RankRecord], failed: Sequence[RankRecord]) -> Outcome:
    by_rank = {record.rank: record for record in records}
    current = failed[0]
    seen = {current.rank}
    while current.is_secondary and current.report is not None:
        named = (by_rank[rank] for rank in current.report.ranks if rank in by_rank)
        culprit = next((record for record in named if record.rank not in seen), None)
        if culprit is None:
            break
        if culprit.failed_s is None:
            return _blamed(current, culprit, records)
        current = culprit
        seen.add(current.rank)
    if current.is_secondary:  # they blame each other, or nobody: another's failure explains more
        current = next((record for record in failed if not record.is_secondary), current)
    return _failed(current)


def _blamed(waiting: RankRecord, culprit: RankRecord, records: Sequence[RankRecord]) -> Outcome:
    """Return the outcome where `waiting` failed because of `culprit`, which did not fail itself."""
    if culprit.lost_s is not None:
        return _lost(culprit, records)
    if culprit.left_s is not None:
        what = "exited early with code 0 while others waited"
    elif waiting.kind == "timeout":
        what = "kept others waiting"
    elif waiting.kind == "peer_left":
        what = "left the job while others waited"
    else:
        what = "aborted the job"
    said = f": {waiting.report.message}" if waiting.report and waiting.report.message else ""
    message = f"rank {culprit.rank} on host {culprit.host} {what}{said}"
    return Outcome(EXIT_FAILED, message, culprit.rank, culprit.tail)


def _failed(record: RankRecord) -> Outcome:
    """Return the outcome where `record` is the first cause."""
    code = record.code
    if (code is None or record.ordered) and record.report is not None:
        code = record.report.code  # it had said so and was then ended before it could leave
    if record.kind == "spawn" and record.report is not None:
        what = f"could not start: {record.report.message}"
    elif code is not None and code < 0:
        what = f"failed first: killed by {signal_name(-code)}"
        if -code == signal.SIGKILL:
            what += " (signal 9; out of memory, or killed by hand)"
        else:
            what += f" (signal {-code})"
    else:
        what = f"failed first: exit code {code}"
        if record.kind == "raised" and record.report is not None:
            what += f" ({_shortened(record.report)})"
        elif record.is_secondary and record.report is not None:
            what += f" ({record.report.message})"
    exit_code = EXIT_FAILED if code is None else code if code > 0 else EXIT_SIGNAL - code
    message = f"rank {record.rank} on host {record.host} {what}"
    return Outcome(exit_code, message, record.rank, record.tail)


def _shortened(report: Report) -> str:
    """Return the exception as the last line of its traceback has it, of bounded length."""
    text = f"{report.error}: {report.message}" if report.message else report.error
    text = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
    hints = [hint for words, hint in _HINTS if words in report.message]
    return "; ".join([text, *hints])


def _called_abort(records: Sequence[RankRecord], mpi_text: str) -> Outcome | None:
    """Return the outcome where a rank called MPI_Abort, known by what the MPI prints then.

    Open MPI says it through mpiexec; MPICH and Intel MPI on the rank's own stderr.
    """
    by_rank = {record.rank: record for record in records}
    for text in (mpi_text, *("\n".join(record.tail) for record in records)):
        match = _ABORT.search(text)
        if match is None:
            continue
        record = by_rank.get(int(match["rank"] or match["node"]))
        code = int(match["code"] or match["errorcode"]) & 255
        if record is not None:
            message = f"rank {record.rank} on host {record.host} failed first: MPI_Abort({code})"
            return Outcome(code or EXIT_FAILED, message, record.rank, record.tail)
    return None


def _mpi_end(records: Sequence[RankRecord], mpi_text: str) -> Outcome | None:
    """Return the outcome where the MPI ended the job: who left without a word, if that is known."""
    told_s = _told_s(records)
    if told_s == float("inf"):
        return None
    # A process manager may see a line close and act on it before the exit can be seen.
    gaps = [
        (abs(record.left_s - told_s), record)
        for record in records
        if record.left_s is not None and record.left_s <= told_s + _SAME_TIME_S
    ]
    if gaps:
        _, last = min(gaps, key=lambda gap: (gap[0], gap[1].rank))
        message = (
            f"rank {last.rank} on host {last.host} exited early with code 0, without MPI_Finalize,"
            " and the MPI ended the job"
        )
        return Outcome(EXIT_FAILED, message, last.rank, last.tail)
    running = name_ranks(record.rank for record in records if record.was_told)
    return Outcome(EXIT_FAILED, f"the MPI ended the job while {running} ran{_quoted(mpi_text)}")


def _lost(record: RankRecord, records: Sequence[RankRecord]) -> Outcome:
    """Return the outcome where `record` is gone: alone, or with all other ranks of its host."""
    of_host = name_ranks(other.rank for other in records if other.host == record.host)
    if record.silent_s is not None:
        message = (
            f"host {record.host} ({of_host}) has not been heard from for {record.silent_s:.0f} s:"
            " it is down or cut off"
        )
    elif _is_lost_with_its_host(record, records):
        message = (
            f"host {record.host} ({of_host}) was lost: it was restarted, or all was killed there"
        )
    else:
        message = f"rank {record.rank} on host {record.host} was lost: its supervisor was killed"
    return Outcome(EXIT_FAILED, message, record.rank, record.tail)


def _quoted(mpi_text: str) -> str:
    lines = [line.strip() for line in mpi_text.splitlines()]
    words = [line for line in lines if line.strip("-=* ")]
    return f": {' '.join(words)[:400]}" if words else ""
