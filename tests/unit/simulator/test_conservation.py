"""A simulator that loses or invents something is found out by itself."""

from dataclasses import replace

import pytest
from support.simulated import MB, chain_program, line, pair, pulls

from blinkrun.errors import InternalError, SimulationError
from blinkrun.simulator.conserve import check_account
from blinkrun.simulator.cost import FREE
from blinkrun.simulator.engine import Engine
from blinkrun.simulator.flow import Pipe
from blinkrun.simulator.load import load
from blinkrun.simulator.sharing import Sharing


def loaded(program=None, topology=None, **how):
    given = {"size_bytes": MB, "itemsize": 4, "chunk_bytes": 64_000, "cost": FREE} | how
    return load(program or chain_program(3), topology or line(3), **given)


@pytest.fixture(scope="module")
def finished():
    engine = Engine(loaded())
    engine.run()
    return engine.loaded, engine.account()


def changed(values, by, at=0):
    return [value + by * (place == at) for place, value in enumerate(values)]


def test_a_good_account_passes(finished):
    check_account(*finished)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("what", ["asked", "arrived"])
def test_a_byte_more_or_less_is_found(finished, what, by):
    load_, account = finished
    wrong = replace(account, **{what: changed(getattr(account, what), by)})
    with pytest.raises(SimulationError, match=r"over 0->1 the program moves 1000000 bytes"):
        check_account(load_, wrong)


def test_a_resource_faster_than_its_capacity_is_found(finished):
    load_, account = finished
    wire = load_.resources.index("0->1")
    wrong = replace(account, busy_ns=changed(account.busy_ns, -1, wire))
    with pytest.raises(SimulationError, match="0->1 of 1000 MB/s carried 1000000 bytes in 999999"):
        check_account(load_, wrong)


def test_a_resource_that_is_busy_for_longer_than_the_run_is_found(finished):
    load_, account = finished
    wrong = replace(account, busy_ns=changed(account.busy_ns, account.time_ns))
    with pytest.raises(SimulationError, match="ns"):
        check_account(load_, wrong)


def test_a_flag_that_ends_elsewhere_is_found(finished):
    load_, account = finished
    flag = next(at for at, value in enumerate(account.flags) if value)
    wrong = replace(account, flags=changed(account.flags, -1, flag))
    with pytest.raises(SimulationError, match=r"flag \d of rank \d ends at 15"):
        check_account(load_, wrong)


def test_unfair_rates_are_found(monkeypatch):
    right = Sharing.rates
    monkeypatch.setattr(
        Sharing, "rates", lambda self, counts: tuple(2 * rate for rate in right(self, counts))
    )
    with pytest.raises(SimulationError, match="carried"):
        Engine(loaded()).run()


def test_a_lost_transfer_is_found(monkeypatch):
    right = Pipe.start

    def lossy(self, size_bytes, ticket, tag):
        return right(self, size_bytes - 4, ticket, tag)

    monkeypatch.setattr(Pipe, "start", lossy)
    with pytest.raises(SimulationError, match=r"moves 1000000 bytes, 9999\d\d started"):
        Engine(loaded()).run()


def test_a_step_that_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(Pipe, "arrivals", lambda self: self.flights.clear() or [])
    with pytest.raises(SimulationError, match="rank 1, channel 0, step 0, chunk 0 never ended"):
        Engine(loaded(pulls(2, [(1, 0, "")]), pair())).run()


def test_time_does_not_run_back():
    good = loaded(pulls(2, [(1, 0, "")]), pair(), cost=replace(FREE, launch_ns=100))
    early = replace(good, channels=tuple(replace(c, late_ns=-7) for c in good.channels))
    with pytest.raises(SimulationError, match="time runs from 100 back to 93 ns"):
        Engine(early).run()


def test_it_is_an_error_of_ours():
    assert issubclass(SimulationError, InternalError)
