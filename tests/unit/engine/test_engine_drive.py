"""Who drives: nothing is forgotten when a thread stops driving, and nobody waits for a clock.

The looks that a driver takes now and then would hide a wake-up that is lost: here they are an hour
apart.
"""

import threading
import time

import numpy as np
import pytest
from support.engines import allreduce, run_engines, submit

from blinkrun.engine import drive
from blinkrun.engine.request import Kind

ONES = np.ones(3, np.float32)
DEADLINE_S = 15.0


@pytest.fixture(autouse=True)
def hourly_looks(monkeypatch):
    monkeypatch.setattr(drive, "LOOK_S", 3600.0)


def until(is_so):
    """Wait until something is so; by polling, since it happens inside of the driver."""
    ends_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < ends_s
        threading.Event().wait(0.001)


def in_thread(call):
    """Return an event that is set when `call` has returned in a thread of its own."""
    over = threading.Event()

    def run():
        call()
        over.set()

    threading.Thread(target=run, daemon=True).start()
    return over


def done(handle):
    """Return an event that is set when nobody waits for `handle` and it is done all the same."""
    over = threading.Event()
    handle.add_done_callback(lambda _: over.set())
    return over


class Signals:
    """What one rank tells the other, beside the engine."""

    def __init__(self, *names):
        self._events = {name: threading.Event() for name in names}

    def set(self, name):
        self._events[name].set()

    def wait(self, name):
        assert self._events[name].wait(DEADLINE_S)


def test_the_helper_goes_on_where_a_waiting_thread_leaves():
    signals = Signals("a", "b")

    def body(engine):
        if engine.world.rank == 1:
            signals.wait("a")
            allreduce(engine, "a", ONES)
            signals.wait("b")
            allreduce(engine, "b", ONES)
            return True
        waited = in_thread(lambda: allreduce(engine, "a", ONES))
        until(lambda: engine._driver._dozing)  # the thread drives
        over = done(submit(engine, Kind.ALLREDUCE, "b", [ONES]))
        signals.set("a")
        assert waited.wait(DEADLINE_S)
        signals.set("b")
        return over.wait(DEADLINE_S)

    assert run_engines(2, body) == [True, True]


def test_a_driver_that_sleeps_hears_of_what_another_thread_submits():
    signals = Signals("submitted", "a")

    def body(engine):
        if engine.world.rank == 1:
            handle = submit(engine, Kind.ALLREDUCE, "b", [ONES])
            signals.set("submitted")
            handle.wait()
            signals.wait("a")
            allreduce(engine, "a", ONES)
            return True
        signals.wait("submitted")
        waited = in_thread(lambda: allreduce(engine, "a", ONES))
        until(lambda: engine._driver._dozing)
        over = done(submit(engine, Kind.ALLREDUCE, "b", [ONES]))
        is_done = over.wait(DEADLINE_S)
        signals.set("a")
        return is_done and waited.wait(DEADLINE_S)

    assert run_engines(2, body) == [True, True]


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_second_thread_that_waits_is_told_and_takes_over(first):
    signals = Signals("a", "b")

    def body(engine):
        names = [first, "b" if first == "a" else "a"]
        if engine.world.rank == 1:
            for name in names:
                signals.wait(name)
                allreduce(engine, name, ONES)
            return True
        waited = {"a": in_thread(lambda: allreduce(engine, "a", ONES))}
        until(lambda: engine._driver._dozing)  # the first thread drives
        waited["b"] = in_thread(lambda: allreduce(engine, "b", ONES))
        until(lambda: engine._driver._waiting == 1)
        over = []
        for name in names:
            signals.set(name)
            over.append(waited[name].wait(DEADLINE_S))
        return all(over)

    assert run_engines(2, body) == [True, True]


def test_a_thread_that_waits_takes_over_from_the_helper_or_hears_of_it():
    signals = Signals("a", "b")

    def body(engine):
        if engine.world.rank == 1:
            for name in ("a", "b"):
                signals.wait(name)
                allreduce(engine, name, ONES)
            return True
        handles = [submit(engine, Kind.ALLREDUCE, name, [ONES]) for name in ("a", "b")]
        until(lambda: engine._driver._dozing)  # the helper drives
        waited = in_thread(handles[1].wait)
        until(lambda: engine._driver._waiting == 1)
        signals.set("a")
        signals.set("b")
        return waited.wait(DEADLINE_S) and handles[0].done()

    assert run_engines(2, body) == [True, True]


def test_everything_asynchronous_ends_without_anybody_waiting():
    def body(engine):
        for burst in range(3):  # the helper sleeps in between
            overs = [
                done(submit(engine, Kind.ALLREDUCE, f"{burst}.{step}", [ONES]))
                for step in range(100)
            ]
            assert all(over.wait(DEADLINE_S) for over in overs)
            until(lambda: not engine._driver._owner)
        return True

    assert run_engines(3, body) == [True] * 3


class Interrupting:
    """A journal whose next wait is interrupted, as by Ctrl-C."""

    def __init__(self, journal):
        self._journal = journal
        self.is_armed = True

    def __getattr__(self, name):
        return getattr(self._journal, name)

    def wait(self, timeout_s, *, may_spin):
        if not may_spin or not self.is_armed:
            return self._journal.wait(timeout_s, may_spin=may_spin)
        self.is_armed = False
        until(self.others_wait)
        raise KeyboardInterrupt


@pytest.mark.parametrize("others", [0, 1])
def test_a_thread_that_is_interrupted_leaves_its_work_to_others(others):
    signals = Signals("interrupted")

    def body(engine):
        names = [f"{number}" for number in range(others + 1)]
        if engine.world.rank == 1:
            signals.wait("interrupted")
            for name in names:
                allreduce(engine, name, ONES)
            return True
        driver = engine._driver
        driver._journal = Interrupting(driver._journal)
        driver._journal.others_wait = lambda: driver._waiting == others
        handle = submit(engine, Kind.ALLREDUCE, names[0], [ONES], sync=True)
        over = done(handle)
        waited = []

        def waits_too():
            until(lambda: driver._owner)
            waited.extend(in_thread(lambda n=n: allreduce(engine, n, ONES)) for n in names[1:])

        # Without others nobody would see the driver before it is interrupted.
        all_wait = in_thread(waits_too) if others else over
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        signals.set("interrupted")
        is_done = all_wait.wait(DEADLINE_S) and over.wait(DEADLINE_S)
        is_done = is_done and all(each.wait(DEADLINE_S) for each in waited)
        handle.wait()
        return is_done and len(waited) == others

    assert run_engines(2, body) == [True, True]
