"""Whatever ranks offer, in any order and read at any pace: all decide the same, and rightly."""

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.negotiators import Negotiators, tensor

from blinkrun.engine.negotiate import (
    JOIN,
    Failed,
    Joined,
    Left,
    Ready,
    SetAdded,
    SetRemoved,
    Verdict,
)
from blinkrun.engine.request import WORLD, Kind, Request
from blinkrun.errors import (
    DuplicateNameError,
    MismatchError,
    NonFiniteError,
    NotInitializedError,
    PeerLeftError,
    ProcessSetError,
)

NAMES = [f"t{number}" for number in range(6)]
KINDS = [Kind.ALLREDUCE] * 6 + [Kind.ALLGATHER, Kind.BROADCAST, Kind.BARRIER]


class Caller:
    """One rank's script: what it waits for, as far as it can know, and whether events fit."""

    def __init__(self, rank, size):
        self.rank = rank
        self.sets = {WORLD: tuple(range(size))}
        self.wanted = {}
        self.joined = set()
        self.has_left = False
        self.num_done = 0

    def see(self, event):
        if isinstance(event, Ready):
            for entry in event.entries:
                self.see_ready(entry)
        elif isinstance(event, Failed):
            self.see_failed(event)
        elif isinstance(event, Joined) and self.rank in self.sets[event.process_set]:
            self.joined.remove(event.process_set)
        elif isinstance(event, SetAdded):
            self.sets[event.number] = event.ranks
        elif isinstance(event, SetRemoved):
            del self.sets[event.number]
        elif isinstance(event, Left) and event.rank == self.rank:
            self.wanted.clear()  # its engine is over, whatever was still on its way
            self.joined.clear()

    def see_ready(self, entry):
        request = entry.request
        ranks = self.sets[request.process_set]
        assert len(entry.requests) == len(ranks)
        assert request in entry.requests
        asked = [each for each in entry.requests if each is not None]
        assert len({(each.kind, shape_in_common(each), each.root) for each in asked}) == 1
        if self.rank not in ranks:
            assert not entry.is_mine
            return
        mine = entry.requests[ranks.index(self.rank)]
        assert entry.is_mine == (mine is not None)
        if mine is None:
            assert request.process_set in self.joined, "it ran without a rank that had data"
            assert request.kind in (Kind.ALLREDUCE, Kind.BARRIER)
        else:
            assert mine == request
            assert self.wanted.pop((request.process_set, request.name)) == request
            self.num_done += 1

    def see_failed(self, event):
        if isinstance(event.error, MismatchError) and "verdict" not in str(event.error):
            calls = [words.split() for words in event.error.calls.values()]
            assert len({tuple(words) for words in calls}) > 1 or "joined" in str(event.error)
        if self.rank not in event.ranks:
            return
        if event.name == JOIN:
            self.joined.remove(event.process_set)
        else:
            del self.wanted[event.process_set, event.name]
            self.num_done += 1


def shape_in_common(request):
    shapes = (member.shape for member in request.members)
    return tuple(shape[1:] if request.kind is Kind.ALLGATHER else shape for shape in shapes)


class Play:
    """Ranks that do something at random, until they are told to stop."""

    def __init__(self, seed, size, capacity, *, leaves):
        self.random = random.Random(seed)
        self.ranks = Negotiators(size, capacity)
        self.callers = [Caller(rank, size) for rank in range(size)]
        self.leaves = leaves
        self.numbers = count()

    def step(self):
        rank = self.random.randrange(self.ranks.size)
        caller, negotiator = self.callers[rank], self.ranks.ranks[rank]
        chosen = self.random.random()
        number = self.random.choice(list(caller.sets))
        if chosen < 0.6:
            self.offer(rank, self.draw_request(caller, number))
        elif chosen < 0.75:
            self.ranks.post(rank)
        elif chosen < 0.92:
            self.read(rank, self.random.randint(1, 4))
        elif chosen < 0.94 and rank in caller.sets[number] and number not in caller.joined:
            if not caller.has_left:
                negotiator.join(number)
                caller.joined.add(number)
        elif chosen < 0.96:
            verdict = self.random.choice(list(Verdict))
            negotiator.fail(number, self.random.choice(NAMES), "a verdict", verdict)
        elif chosen < 0.963 and self.leaves:
            negotiator.leave()
            caller.has_left = True
        elif chosen < 0.98:
            negotiator.note(b"note")
        else:
            self.change_sets()

    def change_sets(self):
        """All ranks ask for a set to be added or removed, each at once or never."""
        sets, size = self.callers[0].sets, self.ranks.size
        name = f"sets{next(self.numbers)}"
        if self.random.random() < 0.7:
            ranks = self.random.sample(range(size), self.random.randint(1, size))
            request = Request(name, Kind.ADD_SET, ranks=tuple(ranks))
        else:
            request = Request(name, Kind.REMOVE_SET, ranks=(self.random.choice(list(sets)),))
        for rank in range(size):
            self.offer(rank, request)

    def draw_request(self, caller, number):
        shape = (3,) if self.random.random() < 0.9 else (self.random.randint(1, 4),)
        name = self.random.choice(NAMES)
        chosen = self.random.random()
        if chosen < 0.03:
            ranks = self.random.choices(range(self.ranks.size), k=self.random.randint(0, 3))
            return Request("add", Kind.ADD_SET, ranks=tuple(sorted(ranks)))
        if chosen < 0.05:
            return Request(
                "remove", Kind.REMOVE_SET, ranks=(self.random.choice([*caller.sets, 9]),)
            )
        kind = Kind.ALLREDUCE if chosen < 0.9 else self.random.choice(KINDS)
        root = caller.sets[number][0] if kind is Kind.BROADCAST else -1
        if kind is Kind.BARRIER:
            return Request(name, kind, process_set=number)
        return tensor(name, *shape, kind=kind, process_set=number, root=root)

    def offer(self, rank, request):
        caller = self.callers[rank]
        key = (request.process_set, request.name)
        try:
            self.ranks.ranks[rank].offer(request)
        except DuplicateNameError:
            assert key in caller.wanted
        except ProcessSetError:
            assert rank not in caller.sets[request.process_set]
        except NotInitializedError:
            assert caller.has_left
        else:
            assert key not in caller.wanted
            caller.wanted[key] = request

    def read(self, rank, most=1 << 30):
        for event in self.ranks.read(rank, most):
            self.callers[rank].see(event)

    def finish(self):
        """Let everything be posted and read."""
        while self.ranks.post_all():
            for rank in range(self.ranks.size):
                self.read(rank)
        self.ranks.settle()  # compares the events

    def check_nothing_is_left_over(self):
        """What all ranks of a set have offered, or joined instead, must have come to an end."""
        gone = {e.rank for e in self.ranks.events[0] if isinstance(e, Left)}
        for number, ranks in self.callers[0].sets.items():
            callers = [self.callers[rank] for rank in ranks]
            for name in {name for c in callers for at, name in c.wanted if at == number}:
                assert not gone & set(ranks), "it waits for a rank that has left"
                has = [(number, name) in c.wanted or number in c.joined for c in callers]
                assert not all(has)
            assert not all(number in c.joined for c in callers)
            if gone & set(ranks):
                assert not any(number in c.joined for c in callers)
        shown = {(p.request.process_set, p.request.name) for p in self.ranks.ranks[0].pending()}
        assert shown == {key for caller in self.callers for key in caller.wanted}


@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.sampled_from([0, 1, 2, 3, 8192]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_all_ranks_decide_the_same_and_rightly(seed, size, capacity, leaves):
    play = Play(seed, size, capacity, leaves=leaves)
    for _ in range(250):
        play.step()
    play.finish()
    play.check_nothing_is_left_over()


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([0, 1, 3, 8192]))
@settings(max_examples=60, deadline=None)
def test_what_every_rank_offers_runs_once_on_every_rank(seed, size, capacity):
    draw = random.Random(seed)
    ranks = Negotiators(size, capacity)
    steps = [[f"t{draw.randrange(9)}" for _ in range(draw.randint(1, 9))] for _ in range(6)]
    for names in (sorted(set(step)) for step in steps):
        orders = [draw.sample(names, len(names)) for _ in range(size)]
        while any(orders):
            rank = draw.choice([rank for rank in range(size) if orders[rank]])
            ranks.offer(tensor(orders[rank].pop(), 5), [rank])
            if draw.random() < 0.6:
                ranks.post(draw.randrange(size))
            if draw.random() < 0.6:
                ranks.read(draw.randrange(size), draw.randint(1, 3))
        ranks.settle()
    ready = [e.request.name for event in ranks.events[0] for e in event.entries]
    assert sorted(ready) == sorted(name for step in steps for name in set(step))
    assert all(negotiator.is_idle() for negotiator in ranks.ranks)


@pytest.mark.parametrize("joins", ["never", "with the bits", "after the bits"])
def test_bits_that_everybody_has_forgotten_are_offered_again_in_full(joins):
    """Rank 1's bits land after its own earlier requests have filled the cache twice."""
    ranks = Negotiators(2, cache_capacity=2)
    ranks.offer(tensor("kept", 3))
    ranks.settle()
    slow = ranks.ranks[1]
    for number in range(5):
        ranks.offer(tensor(f"other{number}", 3), [1])
    ranks.post(1)
    slow.offer(tensor("kept", 3))
    if joins == "with the bits":
        slow.join(WORLD)
    bits = slow.outbox()
    if joins == "after the bits":
        slow.join(WORLD)
        assert slow.outbox() is None  # else the join would overtake the request
    ranks.offer(tensor("kept", 3), [0])
    for number in range(5):
        ranks.offer(tensor(f"other{number}", 3), [0])
    ranks.post(0)
    ranks.journal.append((1, bits))
    entries = [entry for ready in ranks.settle() for entry in ready.entries]
    assert [entry.request.name for entry in entries][-1] == "kept"
    assert entries[-1].requests == (tensor("kept", 3),) * 2  # not None: rank 1 had it
    if joins != "never":
        ranks.ranks[0].join(WORLD)
        assert ranks.settle() == [Joined(WORLD, 0)]
    assert all(negotiator.is_idle() for negotiator in ranks.ranks)


def test_a_finding_about_forgotten_bits_is_repeated_with_them():
    ranks = Negotiators(2, cache_capacity=1)
    ranks.offer(tensor("kept", 3))
    ranks.settle()
    for number in range(3):
        ranks.offer(tensor(f"other{number}", 3), [1])
    ranks.post(1)
    ranks.ranks[1].offer(tensor("kept", 3))
    ranks.ranks[1].fail(WORLD, "kept", "NaN in kept", Verdict.NON_FINITE)
    bits = ranks.ranks[1].outbox()
    for number in range(3):
        ranks.offer(tensor(f"other{number}", 3), [0])
    ranks.post(0)
    ranks.journal.append((1, bits))
    ranks.settle()
    ranks.offer(tensor("kept", 3), [0])
    (failed,) = ranks.settle()
    assert isinstance(failed.error, NonFiniteError)
    assert failed.ranks == (0, 1)


def test_a_finding_reaches_every_rank_however_it_is_timed():
    for seed in range(30):
        draw = random.Random(seed)
        ranks = Negotiators(3, cache_capacity=draw.choice([0, 8]))
        for _ in range(draw.randint(0, 2)):
            ranks.offer(tensor("grad", 3))
            ranks.settle()
        order = draw.sample(range(3), 3)
        for rank in order:
            ranks.offer(tensor("grad", 3), [rank])
            if rank == 1:
                ranks.ranks[1].fail(WORLD, "grad", "NaN in grad", Verdict.NON_FINITE)
            ranks.post(rank)
            ranks.read(draw.randrange(3))
        (failed,) = ranks.settle() or ranks.events[0][-1:]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, NonFiniteError)
        assert (failed.ranks, failed.error.rank) == ((0, 1, 2), 1)


def test_a_rank_that_leaves_ends_what_waits_for_it_and_nothing_else():
    ranks = Negotiators(3)
    ranks.offer(Request("pair", Kind.ADD_SET, ranks=(0, 2)))
    ranks.settle()
    ranks.offer(tensor("early", 3), [0, 1])
    ranks.ranks[1].leave()
    events = ranks.settle()
    assert [type(event) for event in events] == [Failed, Left]
    assert isinstance(events[0].error, PeerLeftError)
    assert (events[0].ranks, events[0].error.rank) == ((0, 1), 1)
    ranks.offer(tensor("late", 3), [0])
    ranks.offer(tensor("of the others", 3, process_set=1), [0, 2])
    late, ready = ranks.settle()
    assert late.ranks == (0,)
    assert "rank 1 has left" in str(late.error)
    assert [entry.request.name for entry in ready.entries] == ["of the others"]
