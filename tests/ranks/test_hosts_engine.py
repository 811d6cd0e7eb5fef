"""The journal, the engine and messages between ranks that are on several hosts."""

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("hosts", [[0, 0, 1], [0, 1, 2, 0]])
def test_all_hosts_read_one_order(run_ranks, hosts):
    size = len(hosts)
    sums = run_ranks("journal_cases:order", size=size, hosts=hosts, letters=100, threads=2)
    assert sums == [sums[0]] * size


def test_a_rank_with_nothing_to_offer_sleeps_through_other_hosts_talk(run_ranks):
    letters = 200
    results = run_ranks("journal_cases:sleeps", size=3, hosts=[0, 1, 1], letters=letters)
    woken, read, seconds = results[0]
    assert woken
    assert read == 2 * letters + 1
    assert seconds < 0.01


def test_any_order_from_any_thread_again_and_again(run_ranks):
    hosts = [0, 1, 0, 1]  # no neighbours on a host
    results = run_ranks("engine_cases:busy_ranks", size=4, hosts=hosts, threads=2, steps=2)
    for first, digests, again, more in results:
        for wrong, gathered, told, has_joined, refused in (first, again):
            assert wrong == [0, 0]
            assert gathered == [{"rank": each} for each in range(4)]
            assert told == ["from", 3]
            assert has_joined
            assert refused
        assert digests == more


def test_sets_and_errors(run_ranks):
    for said in run_ranks("engine_cases:sets_and_errors", size=3, hosts=[0, 1, 1]):
        total, sets, mismatch, duplicate, removed, direct, again = said
        assert (total, sets) == (True, [3, [0, 1, 2, 3]])
        assert "'mismatch' has shape (4,)" in mismatch or "has shape (3,)" in mismatch
        assert (duplicate, removed, direct) == ("duplicate", True, True)
        assert "after the engine was stopped, needs blinkrun.init()" in again


def test_a_rank_that_waits_for_another_host_sleeps(run_ranks):
    results = run_ranks("engine_cases:waits_without_burning", size=2, hosts=[0, 1], seconds=1)
    assert results[0] == [pytest.approx(0.0, abs=0.05)] * 2  # of a second


def test_who_waits_in_a_group_makes_room_for_other_hosts_posts(run_ranks):
    said = run_ranks("group_cases:posting_before_entering", size=2, hosts=[0, 1])
    assert said == [2_000_000] * 2


def test_groups_come_and_go(run_ranks):
    """A group got what was sent to the last one, whose communicator's number it had."""
    assert run_ranks("group_cases:come_and_go", size=4, hosts=[0, 0, 1, 1], rounds=2) == [0] * 4
