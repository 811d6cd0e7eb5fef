"""The journal between processes."""

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.parametrize("size", [2, 3])
def test_all_processes_read_one_order(run_ranks, size):
    sums = run_ranks("journal_cases:order", size=size, letters=100, threads=2)
    assert sums == [sums[0]] * size


def test_a_rank_with_nothing_to_offer_sleeps_through_the_others_talk(run_ranks):
    letters = 2000
    woken, read, seconds = run_ranks("journal_cases:sleeps", size=3, letters=letters)[0]
    assert woken
    assert read == 2 * letters + 1
    assert seconds < 0.01
