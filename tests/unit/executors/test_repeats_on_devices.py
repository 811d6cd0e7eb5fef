"""Calls on (fake) devices like one before: the same results and refusals, without the checks."""

import gc
import threading
import weakref

import numpy as np
import pytest
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeMachine
from support.programs import star_plan
from support.threads import run_threads

from blinkrun import buffers, repeats
from blinkrun.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    InvalidBufferError,
    MismatchError,
    NotInitializedError,
    UsageError,
)
from blinkrun.types import Op

SIZE = 2
COUNT = 1002  # a multiple of the ranks, and of nothing else


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BLINKRUN_DEVICE_ARENA_BYTES", "16M")
    made = FakeMachine(SIZE, seed=1)
    made.install(monkeypatch)
    yield made
    gc.collect()  # errors hold the frames that hold arrays
    made.close()
    assert made.leaks() == []


def on_ranks(body, size=SIZE, **options):
    return run_threads(star_plan(size), body, **options)


class Views:
    """Counts the looks at memory that the long way takes."""

    def __init__(self, monkeypatch):
        self.count = 0
        self._view = buffers.view
        monkeypatch.setattr("blinkrun.calls.view", self)

    def __call__(self, *args, **how):
        self.count += 1
        return self._view(*args, **how)


def filled(machine, rank, value, count=COUNT, dtype=np.float32):
    return machine.devices[rank].array_of(np.full(count, value, dtype))


def only(array):
    """The value that all elements have."""
    values = np.unique(array.numpy())
    assert values.size == 1
    return values[0]


def rows(machine, rank, count, start):
    return machine.devices[rank].array_of(np.arange(start, start + count, dtype=np.float32))


CALLS = {  # how to call it, elements of array and out by rank, where it takes a result
    "allreduce": (lambda comm, x, out: comm.allreduce(x, out=out), 1, 1, (0, 1)),
    "maximum": (lambda comm, x, out: comm.allreduce(x, op=Op.MAX, out=out), 1, 1, (0, 1)),
    "broadcast": (lambda comm, x, out: comm.broadcast(x, root=1, out=out), 1, 1, (0, 1)),
    "reduce": (lambda comm, x, out: comm.reduce(x, root=1, out=out), 1, 1, (1,)),
    "allgather": (lambda comm, x, out: comm.allgather(x, out=out), 1, SIZE, (0, 1)),
    "reducescatter": (lambda comm, x, out: comm.reducescatter(x, out=out), SIZE, 1, (0, 1)),
    "alltoall": (lambda comm, x, out: comm.alltoall(x, out=out), SIZE, SIZE, (0, 1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_again_on_other_memory_gives_what_the_host_gives(machine, monkeypatch, name):
    call, given, taken, at = CALLS[name]
    views = Views(monkeypatch)
    meet = threading.Barrier(SIZE)

    def body(comm):
        for turn in range(3):
            x = rows(machine, comm.rank, 6 * given, 10 * comm.rank + 100 * turn)
            out = filled(machine, comm.rank, -1, 6 * taken)
            meet.wait(20)
            before = views.count
            call(comm, x, out)
            comm.synchronize()
            meet.wait(20)
            assert (views.count == before) == (turn > 0)
            if comm.rank in at:
                wanted = np.empty(6 * taken, np.float32)
                call(comm, x.numpy().copy(), wanted)
                np.testing.assert_array_equal(out.numpy(), wanted)
            else:
                call(comm, x.numpy().copy(), None)
                assert only(out) == -1
            meet.wait(20)

    on_ranks(body)


def test_calls_that_differ_in_anything_are_told_apart(machine):
    """In kind, shape, type, operation, root, scales and place, in whichever order."""

    def body(comm):
        rank = comm.rank
        for _ in range(2):
            for dtype in (np.float32, np.int32):
                for count in (3, COUNT):
                    x, out = (filled(machine, rank, v, count, dtype) for v in (2 + rank, 0))
                    comm.allreduce(x, out=out)
                    comm.synchronize()
                    assert only(out) == 5
                    comm.allreduce(x, Op.PRODUCT, out=out)
                    comm.synchronize()
                    assert only(out) == 6
                    comm.allreduce(x, out=out, prescale=2.0)
                    comm.synchronize()
                    assert only(out) == 10
                    for root in range(SIZE):
                        comm.broadcast(x, root, out=out)
                        comm.synchronize()
                        assert only(out) == 2 + root
                    comm.allreduce(x, out=x)
                    comm.synchronize()
                    assert only(x) == 5

    on_ranks(body)


def test_what_the_addresses_make_wrong_is_refused_as_ever(machine):
    def body(comm):
        rank = comm.rank
        x, out = filled(machine, rank, 1, 2 * COUNT), filled(machine, rank, 0, 2 * COUNT)

        def part(array, at, **how):
            start = array.pointer + at
            return FakeArray(start, (COUNT,), np.float32, device=rank, memory=array, **how)

        for _ in range(2):
            comm.allreduce(part(x, 0), out=part(out, 0))
            comm.allreduce(part(x, 0), out=part(x, 4 * COUNT))  # apart, if only just
        with pytest.raises(InvalidBufferError, match="not aligned"):
            comm.allreduce(part(x, 1), out=part(out, 0))
        with pytest.raises(InvalidBufferError, match="not aligned"):
            comm.allreduce(part(x, 0), out=part(out, 2))
        with pytest.raises(InvalidBufferError, match="overlap"):
            comm.allreduce(part(x, 0), out=part(x, 4))
        with pytest.raises(InvalidBufferError, match="overlap"):
            comm.allreduce(part(x, 4), out=part(x, 0))
        with pytest.raises(InvalidBufferError, match="read-only"):
            comm.allreduce(part(x, 0), out=part(out, 0, readonly=True))
        comm.synchronize()
        x.numpy()[...] = 1
        comm.allreduce(part(x, 0), out=part(x, 0))  # the same memory shown by two arrays
        comm.synchronize()
        assert x.numpy().sum() == (SIZE + 1) * COUNT

    on_ranks(body)


def test_a_root_that_is_no_rank_is_refused_as_ever(machine):
    def body(comm):
        x = filled(machine, comm.rank, 1)
        for _ in range(2):
            comm.broadcast(x, 1, out=x)
        for root in (SIZE, -1, 1.0, "1"):
            with pytest.raises(UsageError, match="root"):
                comm.broadcast(x, root, out=x)

    on_ranks(body)


def test_each_call_again_is_in_the_stream_of_its_arrays(machine):
    def body(comm):
        device = machine.devices[comm.rank]
        first, second = device.new_stream(), device.new_stream()
        x, y = filled(machine, comm.rank, 1), filled(machine, comm.rank, 1)
        for stream in (first, second):
            comm.allreduce(x.on(stream), out=x.on(stream))
        comm.synchronize()
        with device.hold(first):
            comm.allreduce(y.on(second), out=y.on(second))
            device.synchronize(second)
            assert only(y) == SIZE
            comm.allreduce(y.on(first), out=y.on(first))
            assert only(y) == SIZE
        device.synchronize(first)
        assert only(y) == SIZE * SIZE
        with pytest.raises(InvalidBufferError, match="in the order of one stream"):
            comm.allreduce(x.on(first), out=y.on(second))
        device.free_stream(first)
        device.free_stream(second)

    on_ranks(body)


def test_memory_of_a_call_again_lives_until_it_is_through(machine):
    def body(comm):
        device = machine.devices[comm.rank]
        for _ in range(2):
            comm.allreduce(filled(machine, comm.rank, 1), out=filled(machine, comm.rank, 1))
        comm.synchronize()
        with device.hold():
            x, out = filled(machine, comm.rank, 1), filled(machine, comm.rank, 0)
            alive = weakref.ref(x.memory), weakref.ref(out.memory)
            comm.allreduce(x, out=out)
            del x, out
            assert all(each() is not None for each in alive)
        comm.synchronize()
        comm.allreduce(filled(machine, comm.rank, 1), out=filled(machine, comm.rank, 1))
        assert all(each() is None for each in alive)

    on_ranks(body)


def test_no_array_is_kept_to_know_its_calls_by(machine):
    def body(comm):
        x = filled(machine, comm.rank, 1)
        for _ in range(2):
            comm.allreduce(x, out=x)
        alive = weakref.ref(x)
        comm.synchronize()
        comm.barrier()
        del x
        y = filled(machine, comm.rank, 1)
        comm.allreduce(y, out=y)
        assert alive() is None

    on_ranks(body)


def test_calls_again_in_a_graph(machine):
    def body(comm):
        device = machine.devices[0]
        stream = device.new_stream()
        x, out = (filled(machine, 0, value).on(stream) for value in (1, 0))
        for _ in range(2):
            comm.allreduce(x, out=out)
        comm.synchronize()
        device.begin_capture(stream)
        comm.allreduce(x, out=out)
        graph = device.end_capture(stream)
        for value in (3, 5):
            x.numpy()[...] = value
            device.launch_graph(graph, stream)
            device.synchronize(stream)
            assert only(out) == value
        device.free_stream(stream)

    on_ranks(body, size=1)


def test_calls_again_after_the_end(machine):
    def body(comm):
        x = filled(machine, comm.rank, 1)
        for _ in range(2):
            comm.allreduce(x, out=x)
        comm.synchronize()
        comm.close()
        with pytest.raises(NotInitializedError):
            comm.allreduce(x, out=x)

    on_ranks(body)


def test_ranks_that_disagree_in_a_call_again_learn_it_and_go_on(machine):
    def body(comm):
        x = filled(machine, comm.rank, 1)
        for op in (Op.SUM, Op.MAX) * 2:
            comm.allreduce(x, op, out=x)
        comm.synchronize()
        comm.allreduce(x, Op.MAX if comm.rank else Op.SUM, out=x)
        with pytest.raises(MismatchError, match=r"rank 0: .*\(sum\); rank 1: .*\(max\)"):
            comm.synchronize()
        before = only(x)
        comm.allreduce(x, out=x)
        comm.synchronize()
        assert only(x) == SIZE * before

    on_ranks(body)


def test_a_deadline_set_between_two_calls_holds_for_the_next(machine):
    over = threading.Event()

    def body(comm):
        x = filled(machine, comm.rank, 1)
        for _ in range(2):
            comm.allreduce(x, out=x)
        comm.synchronize()
        comm.barrier()
        if comm.rank == 0:
            comm.devices.timeout_s = 0.3
            comm.allreduce(x, out=x)
            with pytest.raises(CollectiveTimeoutError, match=r"0\.3 s"):
                comm.synchronize()
            over.set()
        else:
            assert over.wait(20)
            with pytest.raises(CollectiveError):
                comm.allreduce(x, out=x)

    on_ranks(body)


def test_more_kinds_of_calls_than_are_kept(machine, monkeypatch):
    monkeypatch.setattr(repeats, "MOST_KNOWN", 2)
    monkeypatch.setattr("blinkrun.executors.device.MOST_KNOWN", 3)

    def body(comm):
        arrays = [filled(machine, comm.rank, 1, count) for count in range(1, 8)]
        for _ in range(3):
            for x in arrays:
                comm.allreduce(x, out=x)
        comm.synchronize()
        return [only(x) for x in arrays]

    assert on_ranks(body) == [[SIZE**3] * 7] * SIZE


class Shown:
    """An array of a library that does not say on which device it is."""

    def __init__(self, array, **more):
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **more}
        self.array = array


@pytest.mark.parametrize(
    "more",
    [{}, {"strides": (4,)}, {"shape": [COUNT]}, {"mask": "some"}, {"typestr": "|V2"}],
    ids=str,
)
def test_what_only_the_view_can_tell_has_no_outline(machine, monkeypatch, more):
    array = filled(machine, 0, 1)
    shown = Shown(array, **more)
    if more:
        shown.device = 0
    assert repeats.outline(shown) is None
    assert repeats.outline(array.numpy()) is None
    assert repeats.outline(object()) is None
    assert repeats.outline(array) == (array.pointer, ("<f4", (COUNT,), False, 0, None))


def test_tensors_have_outlines_where_they_can_be_used_as_they_lie(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(buffers, "device_of", lambda item: 3 if item.dtype.is_signed else None)
    monkeypatch.setattr(buffers, "stream_of", lambda item: 0x70)
    tensor = torch.ones(4, 6)
    assert repeats.outline(tensor) == (tensor.data_ptr(), (torch.float32, 24, 3, 0x70))
    assert repeats.outline(tensor.t()) is None
    assert repeats.outline(tensor.to_sparse()) is None
    assert repeats.outline(torch.ones(3, dtype=torch.uint8)) is None  # stands for one on the host
