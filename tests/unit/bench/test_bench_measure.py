import numpy as np
import pytest
from support.bench_fakes import Alone, FakeClock, FakeLibrary

from blinkrun.bench.measure import BLOCK_S, MAX_CALLS, Effort, Watch, measure
from blinkrun.bench.memory import LARGE_BYTES, make_memory
from blinkrun.bench.work import Work
from blinkrun.types import DType, Op


def make_work(size_bytes=4096, collective="allreduce"):
    return Work(
        collective=collective,
        dtype=DType.FLOAT32,
        op=Op.SUM,
        root=0,
        num_ranks=1,
        size_bytes=size_bytes,
    )


def test_the_time_is_the_median_over_rounds():
    clock = FakeClock()
    # one check, one warm-up, then blocks of one call: 1, 9, 2 ms
    ours = FakeLibrary("blinkrun", clock, [1.0, 1.0, 0.001, 0.009, 0.002])
    row = measure(make_work(), [ours], Alone(), Effort(calls=3, warmup=1, rounds=3), clock)
    assert row.time_us["blinkrun"] == pytest.approx(2000)


def test_the_slowest_rank_counts():
    clock = FakeClock()

    class TwoRanks(Alone):
        def allgather_object(self, obj):
            if isinstance(obj, int) or isinstance(obj["blinkrun"], float):  # not the times
                return [obj]
            return [obj, {"blinkrun": [0.5, 0.0, 0.0]}]  # another rank: slower in the first round

    ours = FakeLibrary("blinkrun", clock, [0.001, 0.001, 0.001, 0.003, 0.002])
    row = measure(make_work(), [ours], TwoRanks(), Effort(calls=3, warmup=1, rounds=3), clock)
    assert row.time_us["blinkrun"] == pytest.approx(3000)  # of 500, 3 and 2 ms


def test_a_watch_tells_how_long_was_computed_between_its_last_two_readings():
    busy_s = iter([1.0, 1.5, 4.0])
    watch = Watch(FakeClock(), lambda: next(busy_s))
    watch(), watch()
    assert watch.busy_s == 0.5
    watch()
    assert watch.busy_s == 2.5


def test_libraries_take_turns_in_every_round():
    clock, calls = FakeClock(), []
    libraries = [FakeLibrary(name, clock, [0.1], calls) for name in ("blinkrun", "mpi", "gloo")]
    measure(make_work(), libraries, Alone(), Effort(calls=2, warmup=1, rounds=2), clock)
    assert calls[-6:] == ["blinkrun", "mpi", "gloo"] * 2


@pytest.mark.parametrize(
    ("call_s", "block"), [(1e-7, MAX_CALLS), (BLOCK_S / 50.5, 50), (10 * BLOCK_S, 1)]
)
def test_a_block_holds_as_many_calls_as_fit_its_time(call_s, block):
    clock, calls = FakeClock(), []
    ours = FakeLibrary("blinkrun", clock, [call_s], calls)
    measure(make_work(), [ours], Alone(), Effort(warmup=2, rounds=1), clock)
    assert len(calls) == 1 + 2 + block  # check, warm-up, block


def test_asking_for_calls_spreads_them_over_the_rounds():
    clock, calls = FakeClock(), []
    ours = FakeLibrary("blinkrun", clock, [0.1], calls)
    measure(make_work(), [ours], Alone(), Effort(calls=10, warmup=1, rounds=4), clock)
    assert len(calls) == 1 + 1 + 4 * 3


def test_wrong_elements_are_those_of_the_first_library():
    clock = FakeClock()

    def spoil(buffers):
        buffers.recv[5:8] = -1

    ours = FakeLibrary("blinkrun", clock, [0.1], spoil=spoil)
    peer = FakeLibrary("mpi", clock, [0.1], spoil=lambda buffers: buffers.recv.fill(-1))
    effort = Effort(calls=1, warmup=1, rounds=1)
    assert measure(make_work(), [ours, peer], Alone(), effort, clock).wrong == 3


def test_a_library_that_refuses_is_absent():
    clock = FakeClock()
    ours = FakeLibrary("blinkrun", clock, [0.1])
    peer = FakeLibrary("mpi", clock, [0.1], refusal="mpi has no bfloat16")
    row = measure(make_work(), [ours, peer], Alone(), Effort(1, 1, 1), clock)
    assert list(row.time_us) == ["blinkrun"]


def test_the_memory_rate_is_measured_where_it_is_memory_that_is_measured():
    ways = make_memory()
    assert all(way.refuses(make_work(LARGE_BYTES)) is None for way in ways)
    assert all("16 MiB" in way.refuses(make_work(LARGE_BYTES - 4)) for way in ways)
    assert all(way.refuses(make_work(LARGE_BYTES, "broadcast")) for way in ways)


def test_both_ways_of_the_memory_rate_write_every_byte():
    add, copy = make_memory()
    work = make_work(4096)
    buffers = add.make_buffers(work)
    add.make_call(work, buffers)()
    assert np.all(buffers.send == 1)
    copy.make_call(work, buffers)()
    assert np.array_equal(buffers.send, buffers.recv)
