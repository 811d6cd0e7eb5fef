"""Control planes of some of the ranks."""

import threading

import pytest

from blinkrun.comm.base import check_subset
from blinkrun.comm.loopback import LoopbackControl
from blinkrun.comm.threads import thread_controls
from blinkrun.errors import CollectiveTimeoutError, UsageError


def on_threads(size, body, timeout_s=5.0):
    """What `body` returned for each control plane, or the exception it raised."""
    results = [None] * size

    def run(control):
        try:
            results[control.rank] = body(control)
        except Exception as err:
            results[control.rank] = err

    threads = [
        threading.Thread(target=run, args=(control,)) for control in thread_controls(size, 5.0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 20)
    return results


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([], "at least one rank"),
        ([0, 1, 0], "once only"),
        ([0, 3, -1], r"\[3, -1\] do not exist; there are ranks 0 to 2"),
        ([1, 2], r"rank 0 is none of the ranks \[1, 2\]"),
    ],
)
def test_what_is_no_group(ranks, problem):
    with pytest.raises(UsageError, match=problem):
        check_subset(ranks, rank=0, size=3)


def test_ranks_count_in_the_order_given():
    def body(control):
        if control.rank == 1:
            return None
        sub = control.sub([3, 0, 2], timeout_s=5)
        return sub.rank, sub.size, sub.allgather(control.rank), sub.broadcast(control.rank, 1)

    assert on_threads(4, body) == [
        (1, 3, [3, 0, 2], 0),
        None,
        (2, 3, [3, 0, 2], 0),
        (0, 3, [3, 0, 2], 0),
    ]


def test_overlapping_subsets_and_subsets_of_subsets():
    def body(control):
        seen = []
        for ranks in ([0, 1], [1, 2], [0, 1, 2], [1, 2]):
            if control.rank in ranks:
                sub = control.sub(ranks, timeout_s=5)
                seen.append(sub.allgather(control.rank))
                if sub.size == 3 and sub.rank != 1:
                    seen.append(sub.sub([2, 0], timeout_s=5).allgather(control.rank))
        return seen

    assert on_threads(3, body) == [
        [[0, 1], [0, 1, 2], [2, 0]],
        [[0, 1], [1, 2], [0, 1, 2], [1, 2]],
        [[1, 2], [0, 1, 2], [2, 0], [1, 2]],
    ]


def test_a_rank_that_does_not_come_is_waited_for_only_so_long():
    def body(control):
        return None if control.rank == 1 else control.sub([0, 1], timeout_s=0.05)

    late, _ = on_threads(2, body)
    assert isinstance(late, CollectiveTimeoutError)
    assert late.ranks == (1,)


def test_an_abort_ends_the_wait_for_a_subset():
    def body(control):
        if control.rank == 0:
            return control.sub([0, 1], timeout_s=30)
        return control.abort(1)

    first, _ = on_threads(2, body)
    assert isinstance(first, CollectiveTimeoutError)


def test_alone():
    sub = LoopbackControl().sub([0], timeout_s=1)
    assert (sub.rank, sub.size, sub.allgather("x")) == (0, 1, ["x"])
    with pytest.raises(UsageError, match="do not exist"):
        LoopbackControl().sub([0, 1], timeout_s=1)
