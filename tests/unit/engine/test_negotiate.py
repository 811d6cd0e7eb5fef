"""The negotiation, case by case; test_negotiate_properties.py has what holds in every case."""

import pytest
from support.negotiators import Negotiators, tensor

from blinkrun.engine.negotiate import (
    JOIN,
    Failed,
    Joined,
    Negotiator,
    Noted,
    Ready,
    SetAdded,
    SetRemoved,
    Verdict,
)
from blinkrun.engine.request import WORLD, Kind, Request
from blinkrun.errors import (
    CollectiveTimeoutError,
    DuplicateNameError,
    InternalError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    ProcessSetError,
)


def names(event):
    assert isinstance(event, Ready)
    return [entry.request.name for entry in event.entries]


def add_set(ranks, *members):
    ranks.offer(Request("add", Kind.ADD_SET, ranks=members))
    return ranks.settle()


def test_a_request_runs_when_the_last_rank_has_offered_it():
    ranks = Negotiators(3)
    ranks.offer(tensor("x", 2), [2, 0])
    assert ranks.settle() == []
    (pending,) = ranks.ranks[1].pending()
    assert (pending.have, pending.missing) == ((0, 2), (1,))
    ranks.offer(tensor("x", 2), [1])
    (ready,) = ranks.settle()
    assert names(ready) == ["x"]
    assert ready.entries[0].is_mine
    assert ranks.ranks[1].pending() == []


def test_what_becomes_ready_together_runs_in_the_order_of_the_first_offers():
    ranks = Negotiators(3)
    for rank, order in enumerate(["cab", "bca", "abc"]):
        for name in order:
            ranks.offer(tensor(name, 2), [rank])
    (ready,) = ranks.settle()
    assert names(ready) == ["c", "a", "b"]
    # now they are known and travel as bits, which have no order of their own
    for rank, order in [(2, "b"), (1, "abc"), (2, "ac"), (0, "abc")]:
        for name in order:
            ranks.offer(tensor(name, 2), [rank])
        ranks.post(rank)
    (ready,) = ranks.settle()
    assert names(ready) == ["b", "c", "a"]


def test_a_repeated_step_is_a_message_of_bits():
    ranks = Negotiators(2)
    step = [tensor(f"layer{number}.weight", 64, number) for number in range(1000)]

    def run():
        for request in step:
            ranks.offer(request)
        sizes = [ranks.post(rank) for rank in range(2)]
        (ready,) = ranks.settle()
        assert len(ready.entries) == 1000
        return ready, max(sizes)

    _, in_full = run()
    first, repeated = run()
    second, _ = run()
    assert in_full > 50_000
    assert repeated < 300
    assert all(one is other for one, other in zip(first.entries, second.entries, strict=True))
    # a single request with a high number is not sent as a thousand bits
    ranks.offer(step[999])
    assert ranks.post(0) < 60


def test_without_a_cache_everything_is_offered_in_full():
    ranks = Negotiators(2, cache_capacity=0)
    sizes = []
    for _ in range(3):
        ranks.offer(tensor("a name of some length", 2))
        sizes.append(ranks.post(0))
        assert names(ranks.settle()[0]) == ["a name of some length"]
    assert len(set(sizes)) == 1
    assert sizes[0] > len("a name of some length")


def test_a_changed_request_takes_the_place_of_the_known_one():
    ranks = Negotiators(2)
    for shape in [(2,), (3,), (3,), (2,)]:
        ranks.offer(tensor("x", *shape))
        (ready,) = ranks.settle()
        assert {request.members[0].shape for request in ready.entries[0].requests} == {shape}


def test_a_rank_that_repeats_an_old_shape_disagrees_with_one_that_changes_it():
    ranks = Negotiators(2)
    ranks.offer(tensor("x", 2))
    ranks.settle()
    ranks.offer(tensor("x", 2), [0])
    ranks.offer(tensor("x", 3), [1])
    (failed,) = ranks.settle()
    assert "rank 1: allreduce 'x' has shape (3,), rank 0 has (2,)" in str(failed.error)
    ranks.offer(tensor("x", 2))
    assert names(ranks.settle()[0]) == ["x"]


def test_a_rank_back_from_join_disagrees_with_what_the_others_have_changed():
    """The others' new shape was learned while rank 1 had joined: its bit stands for the old."""
    ranks = Negotiators(2)
    ranks.offer(tensor("x", 2))
    ranks.settle()
    ranks.ranks[1].join()
    ranks.offer(tensor("x", 3), [0])
    ranks.settle()
    ranks.ranks[0].join()
    assert ranks.settle() == [Joined(WORLD, 0)]
    ranks.offer(tensor("x", 3), [0])
    ranks.offer(tensor("x", 2), [1])
    (failed,) = ranks.settle()
    assert isinstance(failed.error, MismatchError)
    ranks.offer(tensor("x", 3))
    assert names(ranks.settle()[0]) == ["x"]


def test_each_rank_repeats_its_own_first_dimension():
    ranks = Negotiators(3)
    for _ in range(3):
        for rank in range(3):
            ranks.offer(tensor("x", rank, 4, kind=Kind.ALLGATHER), [rank])
        sizes = [ranks.post(rank) for rank in range(3)]
        (ready,) = ranks.settle()
        assert [r.members[0].shape[0] for r in ready.entries[0].requests] == [0, 1, 2]
    assert max(sizes) < 40


def test_a_name_cannot_be_offered_twice_until_it_is_through():
    ranks = Negotiators(2)
    ranks.offer(tensor("x", 2, where="train.py:3"), [0])
    with pytest.raises(DuplicateNameError, match=r"train\.py:7.*train\.py:3"):
        ranks.offer(tensor("x", 2, where="train.py:7"), [0])
    ranks.offer(tensor("x", 3), [1])
    ranks.settle()  # a mismatch
    ranks.offer(tensor("x", 2))
    assert names(ranks.settle()[0]) == ["x"]


def test_offers_to_sets_without_this_rank_are_refused():
    ranks = Negotiators(3)
    add_set(ranks, 0, 2)
    with pytest.raises(ProcessSetError, match=r"process set 1 has the ranks \[0, 2\]"):
        ranks.ranks[1].offer(tensor("x", 2, process_set=1))
    with pytest.raises(ProcessSetError, match="there is no process set 7"):
        ranks.ranks[1].offer(tensor("x", 2, process_set=7))
    with pytest.raises(ProcessSetError):
        ranks.ranks[1].join(1)
    assert ranks.ranks[1].outbox() is None
    ranks.ranks[1].leave()
    with pytest.raises(NotInitializedError):
        ranks.ranks[1].offer(tensor("x", 2))


def test_sets_are_numbered_from_one_and_never_again():
    ranks = Negotiators(3)
    ready, added = add_set(ranks, 2, 0)
    assert (ready.entries[0].number, added) == (1, SetAdded(1, (2, 0)))
    assert dict(ranks.ranks[1].sets) == {0: (0, 1, 2), 1: (2, 0)}
    ranks.offer(Request("remove", Kind.REMOVE_SET, ranks=(1,)))
    ready, removed = ranks.settle()
    assert (ready.entries[0].number, removed) == (1, SetRemoved(1))
    assert add_set(ranks, 2, 0)[1] == SetAdded(2, (2, 0))


@pytest.mark.parametrize("members", [(0, 1, 2), (2, 0), (0, 2), (), (1, 1), (0, 3), (-1,)])
def test_sets_that_cannot_be_made_fail_on_all_ranks(members):
    ranks = Negotiators(3)
    add_set(ranks, 0, 2)
    (failed,) = add_set(ranks, *members)
    assert isinstance(failed.error, ProcessSetError)
    assert failed.ranks == (0, 1, 2)
    assert str(list(members)) in str(failed.error) or "already" in str(failed.error)


@pytest.mark.parametrize("number", [0, 5, -1])
def test_sets_that_cannot_be_removed_fail_on_all_ranks(number):
    ranks = Negotiators(2)
    ranks.offer(Request("remove", Kind.REMOVE_SET, ranks=(number,)))
    (failed,) = ranks.settle()
    assert isinstance(failed.error, ProcessSetError)
    assert failed.ranks == (0, 1)


def test_removing_a_set_runs_what_is_ready_and_fails_what_waits():
    ranks = Negotiators(3)
    add_set(ranks, 0, 1)
    ranks.offer(tensor("ready", 2, process_set=1), [0, 1])
    ranks.offer(tensor("waits", 2, process_set=1), [0])
    ranks.ranks[0].join(1)
    ranks.settle()
    ranks.offer(Request("remove", Kind.REMOVE_SET, ranks=(1,)))
    ranks.post_all()
    ranks.offer(tensor("late", 2, process_set=1), [1])  # before it knows
    failed, join, ready, removed, late = ranks.settle()
    assert (failed.name, failed.ranks, type(failed.error)) == ("waits", (0,), ProcessSetError)
    assert (join.name, join.ranks, type(join.error)) == (JOIN, (0,), ProcessSetError)
    assert (names(ready), removed) == (["remove"], SetRemoved(1))
    assert (late.name, late.ranks) == ("late", (1,))
    assert all(negotiator.is_idle() for negotiator in ranks.ranks)


def test_an_offer_that_finds_its_set_removed_fails():
    ranks = Negotiators(2)
    add_set(ranks, 1)
    ranks.offer(Request("remove", Kind.REMOVE_SET, ranks=(1,)))
    ranks.post_all()
    ranks.offer(tensor("late", 2, process_set=1), [1])
    ranks.read(1)  # the set goes while the offer is still in the outbox
    failed = ranks.settle()[-1]
    assert (failed.process_set, failed.name, failed.ranks) == (1, "late", (1,))
    assert isinstance(failed.error, ProcessSetError)


def test_requests_of_other_sets_need_their_own_ranks_only():
    ranks = Negotiators(3)
    add_set(ranks, 0, 2)
    ranks.offer(tensor("x", 2, process_set=1), [0, 2])
    ranks.offer(tensor("x", 9), [1])
    (ready,) = ranks.settle()
    assert ready.entries[0].request.process_set == 1
    (entry,) = ranks.events[1][-1].entries
    assert not entry.is_mine


def test_joined_ranks_count_as_having_offered():
    ranks = Negotiators(3)
    ranks.ranks[2].join()
    ranks.offer(tensor("sum", 2), [0, 1])
    ranks.offer(Request("fence", Kind.BARRIER), [0, 1])
    (ready,) = ranks.settle()
    assert names(ready) == ["sum", "fence"]
    assert ready.entries[0].requests == (tensor("sum", 2), tensor("sum", 2), None)
    on_joined = ranks.events[2][-1].entries[0]
    assert (on_joined.is_mine, on_joined.request) == (False, tensor("sum", 2))
    ranks.offer(tensor("waits", 2), [0])
    assert ranks.settle() == []
    assert ranks.ranks[0].not_joined(WORLD) == (0, 1)
    ranks.ranks[1].join()
    assert names(ranks.settle()[0]) == ["waits"]
    ranks.ranks[0].join()
    assert ranks.settle() == [Joined(WORLD, 0)]
    ranks.offer(tensor("sum", 2), [0, 1])
    assert ranks.settle() == []  # nobody has joined any more


@pytest.mark.parametrize(
    "kind", [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER, Kind.ADD_SET]
)
def test_what_joined_ranks_cannot_take_part_in_fails(kind):
    ranks = Negotiators(3)
    ranks.ranks[1].join()
    ranks.offer(tensor("x", 2, kind=kind, root=0), [0, 2])
    (failed,) = ranks.settle()
    assert isinstance(failed.error, MismatchError)
    assert f"{kind.label} 'x': rank 1 has joined, ranks 0, 2 called it" in str(failed.error)
    assert failed.ranks == (0, 2)


def test_a_rank_joins_once_at_a_time():
    ranks = Negotiators(2)
    ranks.ranks[0].join()
    with pytest.raises(DuplicateNameError, match="join"):
        ranks.ranks[0].join()
    ranks.ranks[1].join()
    ranks.settle()
    ranks.ranks[0].join()
    ranks.settle()


def test_a_join_that_waits_for_a_rank_that_leaves_fails():
    ranks = Negotiators(2)
    ranks.ranks[0].join()
    ranks.settle()
    ranks.ranks[0].leave(1)  # found dead
    failed, _ = ranks.settle()
    assert (failed.name, failed.ranks) == (JOIN, (0,))
    assert isinstance(failed.error, PeerLeftError)
    assert failed.error.rank == 1
    ranks.ranks[0].join()
    (failed,) = ranks.settle()
    assert failed.name == JOIN
    assert ranks.ranks[0].left == {1}


def test_what_a_rank_says_after_it_was_found_dead_counts_for_nothing():
    ranks = Negotiators(2)
    ranks.ranks[0].leave(1)
    ranks.post(0)
    ranks.ranks[1].note(b"still here")
    assert not any(isinstance(event, Noted) for event in ranks.settle())


def test_notes_reach_all_ranks():
    ranks = Negotiators(2)
    ranks.ranks[1].note(b"\x00who")
    assert ranks.settle() == [Noted(1, b"\x00who")]


def test_a_verdict_ends_a_request_for_those_who_have_offered_it():
    ranks = Negotiators(3)
    ranks.offer(tensor("x", 2), [0, 2])
    ranks.settle()
    ranks.ranks[1].fail(WORLD, "x", "rank 1 never comes", Verdict.TIMEOUT)
    (failed,) = ranks.settle()
    assert isinstance(failed.error, CollectiveTimeoutError)
    assert (str(failed.error), failed.error.ranks) == ("rank 1 never comes", (1,))
    assert failed.ranks == (0, 2)


def test_a_verdict_does_not_meet_a_later_request_of_the_name():
    ranks = Negotiators(3)
    add_set(ranks, 0, 1)
    ranks.offer(tensor("x", 2, process_set=1), [0])
    ranks.settle()
    ranks.ranks[2].fail(1, "x", "rank 1 never comes")
    verdict = ranks.ranks[2].outbox()
    ranks.offer(tensor("x", 2, process_set=1), [1])
    ranks.settle()
    ranks.offer(tensor("x", 2, process_set=1), [0])
    ranks.post(0)
    ranks.journal.append((2, verdict))
    assert ranks.settle() == []
    ranks.offer(tensor("x", 2, process_set=1), [1])
    assert names(ranks.settle()[0]) == ["x"]


def test_a_verdict_about_nothing_is_not_sent():
    ranks = Negotiators(2)
    ranks.ranks[1].fail(WORLD, "unknown", "nothing of this name is under way")
    ranks.ranks[1].fail(7, "unknown", "nor is there such a set")
    assert ranks.ranks[1].outbox() is None


def test_two_sets_that_wait_for_each_other_under_one_name_are_marked():
    ranks = Negotiators(3)
    add_set(ranks, 0, 1)
    ranks.offer(tensor("x", 2, where="a.py:1"), [0])
    ranks.offer(tensor("x", 2, process_set=1, where="b.py:2"), [1])
    ranks.offer(tensor("y", 2), [0])
    ranks.settle()
    marked = [(p.request.name, bool(p.conflict)) for p in ranks.ranks[2].pending()]
    assert marked == [("x", True), ("y", False), ("x", True)]
    text = ranks.ranks[2].pending()[0].conflict
    assert "rank 0 called allreduce 'x' with process set 0 of ranks [0, 1, 2] at a.py:1" in text
    assert "rank 1 called allreduce 'x' with process set 1 of ranks [0, 1] at b.py:2" in text


def test_two_sets_that_use_one_name_one_after_the_other_are_not_marked():
    ranks = Negotiators(3)
    add_set(ranks, 0, 1)
    ranks.offer(tensor("x", 2), [2])
    ranks.offer(tensor("x", 2, process_set=1), [1])
    ranks.settle()
    assert not any(pending.conflict for pending in ranks.ranks[0].pending())


def test_a_lone_rank_needs_nobody():
    ranks = Negotiators(1)
    ranks.offer(tensor("x", 2))
    assert names(ranks.settle()[0]) == ["x"]
    ranks.ranks[0].join()
    assert ranks.settle() == [Joined(WORLD, 0)]


def test_a_torn_message_is_an_error_of_ours():
    with pytest.raises(InternalError, match="torn"):
        Negotiator(0, 2).feed(1, b"(")


def test_failed_requests_leave_the_others_alone():
    ranks = Negotiators(2)
    ranks.offer(tensor("good", 2))
    ranks.offer(tensor("bad", 2), [0])
    ranks.offer(tensor("bad", 3), [1])
    ranks.offer(tensor("also good", 2))
    events = ranks.settle()
    assert sorted(type(event) is Failed for event in events) == [False, True]
    (ready,) = [event for event in events if isinstance(event, Ready)]
    assert names(ready) == ["good", "also good"]
