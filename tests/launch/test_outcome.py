"""The first cause of a failure, from what happened to each rank."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.launcher.outcome import (
    Outcome,
    RankRecord,
    Reason,
    Report,
    Stop,
    decide,
    name_ranks,
    signal_name,
)

OPENMPI_ABORT = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[3405,1],1]
  Errorcode: 5
"""


def ended(rank: int, code: int, time_s: float, **more: object) -> RankRecord:
    return RankRecord(rank, "h0", code, time_s, tail=(f"line of {rank}",), **more)  # type: ignore[arg-type]


def killed(rank: int, time_s: float, **more: object) -> RankRecord:
    return ended(rank, -15, time_s, ordered=True, **more)


def blaming(rank: int, named: int, time_s: float, kind: str = "peer_left") -> RankRecord:
    report = Report(kind, f"rank {named} is gone", "PeerLeftError", (named,), 1, time_s)
    return ended(rank, 1, time_s + 0.01, report=report)


def finished(rank: int, time_s: float) -> RankRecord:
    return replace(killed(rank, time_s + 5), report=Report("finished", code=0, time_s=time_s))


def test_all_well() -> None:
    assert decide([ended(0, 0, 1.0), ended(1, 0, 2.0)], None) == Outcome(0)
    assert decide([ended(0, 0, 1.0)], None).text() == ""


CAUSES = [
    ("exit code", [killed(0, 3), ended(1, 3, 2), ended(2, 4, 2.5)], 1, 3, "exit code 3"),
    ("signal", [killed(0, 3), ended(1, -9, 2)], 1, 137, "killed by SIGKILL (signal 9;"),
    ("segv", [killed(0, 3), ended(1, -11, 2)], 1, 139, "killed by SIGSEGV (signal 11)"),
    ("aborted by another", [blaming(0, 1, 2.1, "aborted"), ended(1, 3, 2.2)], 1, 3, "exit code 3"),
    ("chain", [blaming(0, 1, 1), blaming(1, 2, 2), ended(2, 5, 3)], 2, 5, "exit code 5"),
    ("early exit", [blaming(0, 1, 2), ended(1, 0, 1)], 1, 1, "exited early with code 0 while"),
    ("in exit handlers", [blaming(0, 1, 2), finished(1, 1)], 1, 1, "exited early with code 0"),
    ("timeout", [blaming(0, 1, 2, "timeout"), killed(1, 4)], 1, 1, "kept others waiting: rank 1"),
    ("shut down", [blaming(0, 1, 2), killed(1, 4)], 1, 1, "left the job while others waited"),
    ("abort called", [blaming(0, 1, 2, "aborted"), killed(1, 4)], 1, 1, "aborted the job: rank 1"),
    ("lost and missed", [blaming(0, 1, 2), RankRecord(1, "h0", lost_s=1.0)], 1, 1, "was lost"),
    ("lost", [killed(0, 3), RankRecord(1, "h0", lost_s=1.0)], 1, 1, "its supervisor was killed"),
    ("blames itself", [blaming(0, 0, 2), killed(1, 4)], 0, 1, "exit code 1 (rank 0 is gone)"),
    ("blames nobody known", [blaming(0, 9, 2), killed(1, 4)], 0, 1, "exit code 1 (rank 9"),
    ("each the other", [blaming(0, 1, 2), blaming(1, 0, 3), ended(2, 7, 4)], 2, 7, "exit code 7"),
]


def far(rank: int, **more: object) -> RankRecord:
    return RankRecord(rank, "h1", tail=(f"line of {rank}",), **more)  # type: ignore[arg-type]


SILENT = [far(1, lost_s=9.0, silent_s=8.4), far(2, lost_s=9.0, silent_s=8.4)]
LOST = [far(1, lost_s=3.0), far(2, lost_s=3.1)]
HOSTS_LOST = [
    ("silent", [killed(0, 10), *SILENT], "has not been heard from for 8 s: it is down or cut off"),
    ("others gave up", [blaming(0, 2, 8, "timeout"), *SILENT], "has not been heard from for 8 s"),
    ("others failed", [ended(0, 1, 8), *SILENT], "has not been heard from for 8 s"),
    ("restarted", [killed(0, 4), *LOST], "was lost: it was restarted, or all was killed there"),
    ("others failed then", [ended(0, 1, 3.2), *LOST], "was lost: it was restarted"),
]


@pytest.mark.parametrize(
    ("records", "said"), [c[1:] for c in HOSTS_LOST], ids=[c[0] for c in HOSTS_LOST]
)
def test_a_host_that_is_lost_explains_what_others_say(records: list[RankRecord], said: str) -> None:
    outcome = decide(records, None, "some words of the MPI")
    assert (outcome.rank, outcome.exit_code, outcome.tail) == (1, 1, ("line of 1",))
    assert outcome.message.startswith(f"host h1 (ranks 1-2) {said}")


def test_a_rank_that_is_lost_alone_or_after_a_failure_does_not_stand_for_its_host() -> None:
    alone = decide([killed(0, 4), LOST[0], far(2, code=-15, ended_s=4.0, ordered=True)], None)
    assert alone.message == "rank 1 on host h1 was lost: its supervisor was killed"
    assert decide([ended(0, 3, 1.0), *LOST], None).exit_code == 3


@pytest.mark.parametrize(
    ("records", "rank", "code", "said"), [case[1:] for case in CAUSES], ids=[c[0] for c in CAUSES]
)
def test_first_causes(records: list[RankRecord], rank: int, code: int, said: str) -> None:
    outcome = decide(records, None)
    assert (outcome.rank, outcome.exit_code) == (rank, code)
    assert outcome.message.startswith(f"rank {rank} on host h0 ")
    assert said in outcome.message


def test_a_rank_that_had_said_so_counts_though_it_was_killed_before_it_could_leave() -> None:
    raised = Report("raised", "boom", "ValueError", (), 1, 1.0)
    silent = replace(raised, message="")
    assert decide([killed(0, 2, report=silent)], None).message.endswith("code 1 (ValueError)")
    long = replace(raised, message="x" * 999)
    assert len(decide([killed(0, 2, report=long)], None).message) < 300
    exited = Report("exited", code=3, time_s=1.0)
    outcome = decide([blaming(0, 1, 1.1, "aborted"), killed(1, 2, report=raised)], None)
    assert (outcome.rank, outcome.exit_code) == (1, 1)
    assert outcome.message.endswith("exit code 1 (ValueError: boom)")
    assert decide([killed(0, 2), killed(1, 2, report=exited)], None).exit_code == 3


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("No module named 'horovod'", "--horovod"),
        (
            "Error initializing torch.distributed using env:// rendezvous: environment variable"
            " RANK expected, but not set",
            "--ddp",
        ),
    ],
)
def test_a_script_for_another_launcher_is_told_the_option(said: str, option: str) -> None:
    report = Report("raised", said, "ValueError", (), 1, 1.0)
    assert f"; blinkrun {option} " in decide([killed(0, 2, report=report)], None).message


def test_a_program_that_could_not_start() -> None:
    report = Report("spawn", "./x: Exec format error", time_s=1.0)
    outcome = decide([ended(0, 126, 1.0, report=report)], None)
    assert outcome.exit_code == 126
    assert outcome.message == "rank 0 on host h0 could not start: ./x: Exec format error"


def test_mpi_abort_is_told_from_what_follows_it() -> None:
    # Open MPI says it by mpiexec; what ranks do afterwards (here: crash) is not the cause.
    after = [ended(0, -11, 2.01, told_s=2.0), ended(1, 0, 2.02, told_s=2.0)]
    outcome = decide(after, None, OPENMPI_ABORT)
    assert (outcome.rank, outcome.exit_code) == (1, 5)
    assert outcome.message.endswith("failed first: MPI_Abort(5)")
    # MPICH and Intel MPI say it on the rank's own stderr.
    said = replace(after[1], tail=("Abort(6) on node 1 (rank 1 in comm 0): application called",))
    assert decide([after[0], said], None).exit_code == 6
    # A rank that failed before the MPI ended the job is the cause, whatever was printed.
    assert decide([ended(0, 3, 1.0), killed(1, 2, told_s=1.5)], None, OPENMPI_ABORT).rank == 0
    # Of a rank that does not exist nothing can be said.
    unknown = OPENMPI_ABORT.replace("rank 1", "rank 7")
    assert decide([killed(0, 2, told_s=1.0)], None, unknown).rank is None


def test_the_mpi_ended_the_job() -> None:
    left = decide([ended(0, 0, 1.0), killed(1, 2, told_s=1.5)], None)
    assert (left.rank, left.exit_code) == (0, 1)
    assert "exited early with code 0, without MPI_Finalize, and the MPI ended" in left.message
    # MPICH can be so fast that its end of the job is seen before the exit that caused it.
    late = decide([killed(0, 2, told_s=1.5), ended(1, 0, 1.52, told_s=1.51)], None)
    assert late.rank == 1
    nobody = decide([killed(0, 2, told_s=1.5), killed(1, 2, told_s=1.5)], None, "--\nno memory\n--")
    assert nobody == Outcome(1, "the MPI ended the job while ranks 0-1 ran: no memory")
    gone = decide([killed(0, 2), ended(1, 0, 1)], Reason(Stop.MPI_ENDED, -9))
    assert gone == Outcome(1, "mpiexec ended with exit code -9 while rank 0 ran")


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [
        (Reason(Stop.SIGNAL, signal.SIGINT), 130, "ended by SIGINT"),
        (Reason(Stop.SIGNAL, signal.SIGHUP), 129, "ended by SIGHUP"),
        (Reason(Stop.TIME_LIMIT, 2.5), 124, "the time limit of 2.5 s is over (--time-limit);"),
        (Reason(Stop.HUNG, 3), 124, "hung: for 3 s no rank computed or wrote anything (--timeout)"),
        (Reason(Stop.OUTPUT_CLOSED), 141, ""),
    ],
)
def test_the_launcher_ended_the_job(reason: Reason, code: int, said: str) -> None:
    outcome = decide([killed(0, 2), ended(1, 0, 1), killed(2, 2)], reason)
    assert outcome.exit_code == code
    assert outcome.message.startswith(said)
    if code == 124:
        assert outcome.message.endswith("; ranks 0, 2 had not ended")


def test_limits_name_all_ranks_if_none_is_known_to_run() -> None:
    outcome = decide([ended(0, 0, 1), ended(1, 0, 1)], Reason(Stop.TIME_LIMIT, 1))
    assert outcome.message.endswith("ranks 0-1 had not ended")


def test_last_words() -> None:
    outcome = decide([ended(0, 3, 1.0)], None)
    assert outcome.text() == (
        "blinkrun: rank 0 on host h0 failed first: exit code 3; its last lines:\n    line of 0\n"
    )
    silent = replace(outcome, tail=())
    assert silent.text().endswith("exit code 3; it had written nothing\n")
    assert Outcome(130, "ended by SIGINT").text() == "blinkrun: ended by SIGINT\n"


def test_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"
    assert name_ranks([2, 0, 1, 7, 5, 4]) == "ranks 0-2, 4-5, 7"


def test_reports_are_read_with_care() -> None:
    report = Report.parse({"kind": "peer_left", "rank": 1, "message": 5, "code": "x"}, 2.0)
    assert report == Report("peer_left", "5", "", (1,), 1, 2.0)
    assert Report.parse({"ranks": [0, "x", 2]}, 1.0).ranks == (0, 2)
    assert Report.parse({}, 1.0).ranks == ()


@st.composite
def failing_jobs(draw: st.DrawFn) -> list[RankRecord]:
    """Jobs with at least one rank that failed by itself, at times that differ."""
    size = draw(st.integers(1, 6))
    times = draw(st.permutations(range(1, size + 1)))
    kinds = draw(st.lists(st.sampled_from("fbkz"), min_size=size, max_size=size))
    kinds[draw(st.integers(0, size - 1))] = "f"
    records = []
    for rank, (kind, time_s) in enumerate(zip(kinds, times, strict=True)):
        if kind == "f":
            records.append(ended(rank, draw(st.sampled_from([1, 3, -9])), time_s))
        elif kind == "b":
            named = draw(st.sampled_from([r for r in range(size) if kinds[r] == "f"]))
            records.append(blaming(rank, named, time_s))
        elif kind == "k":
            records.append(killed(rank, time_s))
        else:
            records.append(ended(rank, 0, time_s))
    return records


@given(failing_jobs())
def test_a_rank_that_failed_by_itself_is_named_never_one_that_followed(
    records: list[RankRecord],
) -> None:
    outcome = decide(records, None)
    assert outcome.rank is not None
    cause = records[outcome.rank]
    assert cause.report is None
    assert not cause.ordered
    assert outcome.exit_code == (cause.code if cause.code > 0 else 128 - cause.code)  # type: ignore[operator]


@given(failing_jobs())
def test_without_blame_the_earliest_failure_is_the_cause(records: list[RankRecord]) -> None:
    blameless = [record for record in records if not record.is_secondary]
    failed = [record for record in blameless if record.failed_s is not None]
    earliest = min(failed, key=lambda record: record.failed_s or 0)
    assert decide(blameless, None).rank == earliest.rank
