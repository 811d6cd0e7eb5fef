"""Measuring the network, over a wire of threads that takes as long as its hosts' rates say."""

import queue
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun import env
from blinkrun.comm.base import Wire
from blinkrun.comm.network import Measured, by_host, evened, measure
from blinkrun.errors import UsageError

RATES = st.lists(st.fractions(1, 10_000), min_size=1, max_size=8)


class ThreadWire:
    """Messages between threads: one is there when the slower of two hosts has moved its bytes."""

    def __init__(self, mb_per_s):
        self.mb_per_s = mb_per_s  # by rank; None for one that leads no host
        self.boxes = {}
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(len(mb_per_s), timeout=20)

    def box(self, src, dst):
        with self.lock:
            return self.boxes.setdefault((src, dst), queue.Queue())

    def of(self, rank):
        def swap(dst, src, given, taken, timeout_s):
            started = time.monotonic()
            self.box(rank, dst).put((started, bytes(given)))
            sent, data = self.box(src, rank).get(timeout=timeout_s)
            slower = min(self.mb_per_s[src], self.mb_per_s[rank])
            there = max(started, sent) + len(data) / slower / 1e6
            time.sleep(max(0.0, there - time.monotonic()))
            taken[:] = data

        def meet(timeout_s):
            self.barrier.wait(timeout_s)

        return Wire({}, {}, {}, swap=swap, meet=meet, before_end=lambda _: None, owner=self)


def measured(mb_per_s):
    """What every rank measures, and how long that took."""
    wire = ThreadWire(mb_per_s)
    leaders = [rank for rank, rate in enumerate(mb_per_s) if rate]
    found = [None] * len(mb_per_s)

    def run(rank):
        found[rank] = measure(wire.of(rank), rank=rank, leaders=leaders, timeout_s=10.0)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(mb_per_s))]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found, time.monotonic() - started


@pytest.mark.parametrize(("mb_per_s", "most_s"), [(118.0, 2.0), (1.25, 2.0)])
def test_two_hosts_of_two_ranks_measure_their_network(mb_per_s, most_s):
    found, took_s = measured([mb_per_s, None, mb_per_s, None])
    assert found[1] is None is found[3]
    for network in by_host([found[0], found[2]]):
        assert mb_per_s / 2 < network.mb_per_s < mb_per_s * 1.3  # a busy machine is slower
        assert network.latency_us < 20_000
    assert took_s < most_s


def test_the_slow_one_of_three_hosts_is_told_from_the_others():
    found, _ = measured([200.0, 10.0, 200.0])
    fast, slow, other = by_host(found)
    assert slow.mb_per_s < 14
    assert fast.mb_per_s > 3 * slow.mb_per_s
    assert other.mb_per_s > 3 * slow.mb_per_s


@settings(max_examples=40)
@given(RATES)
def test_rates_that_are_alike_become_one(rates):
    made = evened(rates)
    for one, other in zip(made, rates, strict=True):
        assert Fraction(6, 10) < Fraction(one) / other < Fraction(16, 10)
    order = sorted(range(len(rates)), key=lambda at: rates[at])
    assert [made[at] for at in order] == sorted(made)
    if min(rates) >= Fraction(7, 10) * max(rates):
        assert len(set(made)) == 1


@settings(max_examples=40)
@given(RATES.filter(lambda rates: len(rates) > 1))
def test_no_host_is_slower_than_what_came_to_it(rates):
    came = [Measured(rate, 20 + at) for at, rate in enumerate(rates)]
    found = by_host(came)
    assert {each.latency_us for each in found} == {20 + len(rates) - 1}
    for host, rate in zip(found, rates, strict=True):
        assert host.mb_per_s > rate * Fraction(6, 10)


@pytest.mark.parametrize(
    ("text", "found"), [("", None), ("10", 10), ("0.01", Fraction(1, 100)), ("1e2", 100)]
)
def test_the_rate_that_is_said(text, found):
    assert env.network_gbps({env.NETWORK_GBPS: text}) == found


@pytest.mark.parametrize("text", ["fast", "0", "-1", "nan", "1/0", "0.0001"])
def test_what_is_no_rate(text):
    with pytest.raises(UsageError, match=f"{env.NETWORK_GBPS}={text}"):
        env.network_gbps({env.NETWORK_GBPS: text})
