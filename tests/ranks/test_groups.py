"""Communicators of some of the ranks, on real processes."""

import subprocess
import sys
import time

import pytest
from support.harness import mpiexec_command, rank_environ
from support.places import TESTS

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_subset_at_once(run_ranks, size):
    assert run_ranks("group_cases:every_subset", size=size) == [0] * size


def test_ranks_count_in_the_order_given(run_ranks):
    results = run_ranks("group_cases:given_order", size=3)
    assert results == [[2, [2, 1, 0], 2], [1, [2, 1, 0], 2], [0, [2, 1, 0], 2]]


def test_what_is_no_group(run_ranks):
    for said in run_ranks("group_cases:refused", size=2):
        assert len(said) == 4
        assert "at least one rank" in said[0]
        assert "once only" in said[1]
        assert "ranks [99] do not exist; there are ranks 0 to 1" in said[2]
        assert "is none of the ranks" in said[3]


def test_a_rank_that_makes_no_group_is_named(run_ranks):
    """To the first of the group, which all others wait for, and by it to them."""
    *waiting, (_, last) = run_ranks("group_cases:late_member", size=3)
    for rank, (said, _) in enumerate(waiting):
        assert said[1] == [2]
        assert (
            f"rank {rank} waited 0.5 s for rank 2 to make a group of the ranks [1, 0, 2]" in said[0]
        )
    assert [last, *(total for _, total in waiting)] == [3.0] * 3


def test_a_rank_that_has_given_up_is_not_taken_for_here(run_ranks):
    """The first went into MPI's own making of the group, alone and without a deadline."""
    (first, total), (second, same) = run_ranks(
        "group_cases:first_comes_when_others_have_gone", size=2
    )
    assert (total, same) == (2.0, 2.0)
    assert [ranks for _, ranks in first] == [[1], [1]]
    assert [ranks for _, ranks in second] == [[0], [0]]
    assert "rank 1 waited 0.2 s for rank 0, or for one that rank 0 waits for, to" in second[0][0]


def test_who_waits_in_a_group_still_makes_room_in_the_journal_of_the_world(run_ranks):
    assert run_ranks("group_cases:posting_before_entering", size=2) == [2_000_000] * 2


def test_messages_name_ranks_of_the_world(run_ranks):
    (said, total), *others = run_ranks("group_cases:names_in_messages", size=3)
    assert said[1] == [2]
    assert "rank 0 waited 0.5 s in allreduce of 10 float64 (sum)" in said[0]
    assert "for rank 2" in said[0]
    assert [total, *(each for _, each in others)] == [3.0] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_messages_go_around_in_the_world_and_in_a_group(run_ranks, size):
    assert run_ranks("group_cases:messages", size=size) == [0] * size


def test_a_signal_ends_the_wait_for_a_message(run_ranks):
    first, *others = run_ranks("group_cases:interrupted_recv", size=3)
    assert first == ["interrupted", True]
    for kind, text in others:
        assert kind == "AbortedError"
        assert "rank 0 was interrupted in a send or recv" in text


@pytest.mark.parametrize("size", [1, 3])
def test_the_world_comes_and_goes_and_leaves_nothing(run_ranks, size):
    for seen in run_ranks("group_cases:comes_and_goes", size=size, rounds=6):
        assert seen[-1][:2] == seen[2][:2]  # files and mappings; the first lives load libraries
        # Watchers of other ranks are opened by waits that take long: those of the last world stay.
        assert max(watchers for _, _, watchers in seen) < size


def test_a_world_of_part_of_the_job(run_ranks):
    first, second, third = run_ranks("group_cases:part_of_the_job", size=3)
    no_comm = "comm is a int; need an mpi4py communicator or a list of ranks"
    assert first == [[0, 2.0], [[0], 0.0], [0, 3.0], no_comm]
    assert second == [[0, 1.0], [[2, 1], 3.0], [1, 3.0], no_comm]
    assert third == [[1, 2.0], [[2, 1], 3.0], [2, 3.0], no_comm]


def test_a_member_that_is_gone_ends_the_waits_of_its_group(run_ranks):
    kind, text, rank, soon = run_ranks("group_cases:a_member_leaves", size=3)[0]
    assert (kind, rank, soon) == ("PeerLeftError", 2, True)
    assert "rank 2 has left" in text


def test_the_example_of_the_page_runs(tmp_path):
    page = (TESTS.parent / "docs" / "groups.md").read_text(encoding="utf-8")
    script = tmp_path / "example.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    job = subprocess.run(
        [*mpiexec_command(3), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    for line in ("rank 0 is 1 of 2: 2", "rank 1 got [0, 1, 2]", "rank 2 is 0 of 2: 2"):
        assert job.stdout.count(line) == 1  # line ends of unbuffered processes may be mixed


def test_an_uncaught_exception_ends_the_waits_of_its_groups(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, numpy, blinkrun, sys\n"
        "from blinkrun import runtime\n"
        "os.environ['BLINKRUN_LAUNCHED'] = '1'\n"  # nobody calls MPI_Abort before we have looked
        "blinkrun.init()\n"
        "group = runtime.subgroup([0, 1])\n"
        "runtime.at_shutdown(lambda: print('hook', flush=True))\n"
        "blinkrun.barrier()\n"
        "if blinkrun.rank() == 1:\n    raise RuntimeError('rank 1 breaks')\n"
        "try:\n    group.allreduce(numpy.ones(100))\n"
        "except blinkrun.errors.AbortedError as err:\n    print('ended:', err, flush=True)\n"
    )
    started = time.monotonic()
    job = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert job.returncode != 0
    assert time.monotonic() - started < 20
    assert "ended: rank 1 failed: RuntimeError: rank 1 breaks" in job.stdout
    assert job.stdout.count("hook") == 2
