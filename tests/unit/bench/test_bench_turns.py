import threading

import pytest

from blinkrun.bench.turns import Observed, Turn, agreeing, block_length, rates, shares, timed


class Together:
    """The ranks of a pretended job: threads that meet."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=10)
        self._slots = [None] * size

    def run(self, call):
        """`call(control)` on every rank; returns the answers."""
        answers = [None] * self.size

        def rank(number):
            answers[number] = call(Control(self, number))

        threads = [threading.Thread(target=rank, args=(i,)) for i in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return answers


class Control:
    def __init__(self, job, rank):
        self.rank, self.size, self._job = rank, job.size, job

    def barrier(self):
        self._job._barrier.wait()

    def allgather_object(self, obj):
        self._job._slots[self.rank] = obj
        self.barrier()
        everyone = list(self._job._slots)
        self.barrier()
        return everyone

    def broadcast_object(self, obj, root=0):
        return self.allgather_object(obj)[root]


class Pretended:
    """Takes `step_s` a step, and remembers what was asked of it."""

    def __init__(self, step_s):
        self.step_s, self.asked = step_s, []

    def run(self, steps):
        self.asked.append(steps)
        return steps * self.step_s

    def digest(self):
        return "weights"


def test_a_block_lasts_as_long_as_it_should_on_the_slowest_rank():
    ways = [Pretended(0.01), Pretended(0.02)]
    answers = Together(2).run(lambda c: block_length(Turn("x", ways[c.rank]), c, 1.0))
    assert answers == [50, 50]


def test_the_rate_is_that_of_the_slowest_rank_and_of_all_together():
    ways = [Pretended(0.01), Pretended(0.02)]

    def call(control):
        turn = Turn("ours", ways[control.rank])
        return rates([turn], rounds=3, batch=32, block_s=1.0, control=control)

    assert Together(2).run(call) == [{"ours": [pytest.approx(2 * 32 / 0.02)] * 3}] * 2


def test_who_is_alone_leaves_the_others_asleep():
    ways = [Pretended(0.01), Pretended(0.5)]

    def call(control):
        turn = Turn("alone", ways[control.rank], takes_all_ranks=False)
        return rates([turn], rounds=2, batch=8, block_s=0.1, control=control)["alone"]

    assert Together(2).run(call)[1] == [pytest.approx(800.0)] * 2
    assert ways[1].asked == []
    assert len(ways[0].asked) == 4


def test_ways_take_turns_in_every_round():
    order = []

    class Noted(Pretended):
        def __init__(self, name):
            super().__init__(0.1)
            self.name = name

        def run(self, steps):
            order.append(self.name)
            return super().run(steps)

    turns = [Turn(name, Noted(name)) for name in "ab"]
    Together(1).run(lambda c: rates(turns, rounds=3, batch=1, block_s=1, control=c))
    assert order[4:] == list("ababab")


def test_shares_are_medians_of_what_rank_0_saw():
    seen = iter([Observed(0.02, 0.2, 0.1), Observed(0.04, 0.9, 0.9), Observed(0.02, 0.3, 0.15)])

    def call(control):
        return shares(
            Turn("", Pretended(0.015 if control.rank == 0 else 0.018)),
            lambda steps: next(seen) if control.rank == 0 else Observed(0, 0, 0),
            rounds=3,
            block_s=1.0,
            control=control,
        )

    first, second = Together(2).run(call)
    assert first == second
    assert first == {
        "step_ms": 20.0,
        "plain_step_ms": pytest.approx(15.0),
        "timeline": 0.3,
        "busy": 0.15,
        "difference": pytest.approx(0.25),
    }


def test_ranks_with_other_weights_are_found():
    def call(control):
        return agreeing({"same": "abc", "not": f"rank {control.rank}"}, control)

    assert Together(2).run(call) == [{"same": True, "not": False}] * 2


def test_a_block_is_timed_on_every_rank():
    ways = [Pretended(0.1), Pretended(0.3)]
    answers = Together(2).run(lambda c: timed(Turn("x", ways[c.rank]), 2, c))
    assert answers == [[0.2, 0.6]] * 2
