"""Named requests on memory of (fake) devices: results, order of streams, what is refused."""

import gc
import weakref

import numpy as np
import pytest
from support.engines import run_engines
from support.fake_cuda import FakeMachine

from blinkrun.buffers import View, view
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, CUDA, Kind, Member, Request
from blinkrun.engine.settings import Settings
from blinkrun.errors import (
    CollectiveError,
    InvalidBufferError,
    MismatchError,
    NonFiniteError,
    NotSupportedError,
)
from blinkrun.types import DType, Op


@pytest.fixture
def machine(monkeypatch):
    made = FakeMachine(3, seed=1)
    made.install(monkeypatch)
    yield made
    made.close()


class Rank:
    """One rank's engine and its device, number `rank` of the machine."""

    def __init__(self, engine, machine):
        self.engine = engine
        self.rank = engine.world.rank
        self.device = machine.devices[self.rank]
        self.stream = self.device.new_stream()

    def array(self, values):
        return self.device.array_of(np.asarray(values)).on(self.stream)

    def submit(self, kind, name, arrays, *, targets=None, device=CUDA, sync=False, **how):
        sources = [view(array, name) for array in arrays]
        members = tuple(Member(each.dtype, each.shape) for each in sources)
        request = Request(name, kind, members, device=device, where="script.py:1", **how)
        return self.engine.submit(request, self.parts(kind, sources, targets), sync=sync)

    def parts(self, kind, sources, targets):
        if targets is not None:
            return [Part(s, view(t, "target")) for s, t in zip(sources, targets, strict=True)]
        if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
            return [Part(source, source) for source in sources]
        return [Part(each, allocate=self.maker(each.owner.dtype)) for each in sources]

    def maker(self, dtype):
        return lambda shape: view(self.device.array(shape, dtype), "made")

    def values(self, handle):
        """Return the results as the caller's stream sees them."""
        handle.wait()
        handle.wait_on(self.stream)
        self.device.synchronize(self.stream)
        return [target.owner.numpy().copy() for target in handle.targets]

    def run(self, kind, name, arrays, **how):
        return self.values(self.submit(kind, name, arrays, sync=True, **how))


def run_ranks(machine, size, body, **options):
    """Return what `body` returned on every rank; nothing is left on the devices."""

    def on_engine(engine):
        me = Rank(engine, machine)
        try:
            return body(me)
        finally:
            me.device.synchronize(me.stream)
            me.device.free_stream(me.stream)

    return run_engines(size, on_engine, **options)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_allreduces_small_and_large_in_any_order(machine, size):
    """Small ones are fused, large ones travel alone, and ranks ask in different orders."""
    counts = {"a": 5, "b": 1009, "c": 0, "d": 100_003, "e": 33}

    def body(me):
        arrays = {name: me.array(np.arange(n) + me.rank) for name, n in counts.items()}
        order = sorted(counts, reverse=bool(me.rank % 2))
        handles = {n: me.submit(Kind.ALLREDUCE, n, [arrays[n]]) for n in order}
        return {n: me.values(handles[n])[0].tolist() for n in sorted(counts)}

    wanted = {name: (np.arange(n) * size + sum(range(size))).tolist() for name, n in counts.items()}
    assert run_ranks(machine, size, body) == [wanted] * size


@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX])
def test_a_group_with_scales_out_of_place(machine, op):
    def body(me):
        given = [me.array(np.full(n, me.rank + 1.0, np.float32)) for n in (3, 70_000)]
        taken = [me.array(np.zeros(n, np.float32)) for n in (3, 70_000)]
        found = me.run(Kind.ALLREDUCE, "g", given, targets=taken, op=op, scales=(2.0, 0.5))
        kept = [np.unique(array.numpy()).tolist() for array in given]
        return [np.unique(each).tolist() for each in found], kept

    wanted = {Op.SUM: 3.0, Op.AVERAGE: 1.5, Op.MIN: 1.0, Op.MAX: 2.0}[op]
    for rank, result in enumerate(run_ranks(machine, 2, body)):
        assert result == ([[wanted]] * 2, [[rank + 1.0]] * 2)


def test_what_moves_and_scatters_also_unevenly(machine):
    size = 3

    def body(me):
        rank = me.rank
        even = me.array(np.arange(4, dtype=np.int32) + 10 * rank)
        uneven = me.array(np.full((rank + 1, 2), rank, np.int64))
        rows = me.array(np.arange(7, dtype=np.float32) * (rank + 1))
        splits = me.array(np.arange(6, dtype=np.float32) + 10 * rank)
        return [
            each.tolist()
            for each in (
                me.run(Kind.BROADCAST, "b", [me.array([rank] * 3)], root=1)[0],
                me.run(Kind.ALLGATHER, "even", [even])[0],
                me.run(Kind.ALLGATHER, "uneven", [uneven])[0],
                me.run(Kind.ALLTOALL, "even", [splits], splits=(2, 2, 2))[0],
                me.run(Kind.ALLTOALL, "uneven", [splits], splits=(rank, 2, 4 - rank))[0],
                me.run(Kind.REDUCESCATTER, "even", [splits])[0],
                me.run(Kind.REDUCESCATTER, "uneven", [rows])[0],
            )
        ]

    results = run_ranks(machine, size, body)
    starts = [(0, rank, rank + 2) for rank in range(size)]
    lengths = [(rank, 2, 4 - rank) for rank in range(size)]
    for rank, found in enumerate(results):
        assert found[0] == [1, 1, 1]
        assert found[1] == [10 * r + i for r in range(size) for i in range(4)]
        assert found[2] == [[r, r] for r in range(size) for _ in range(r + 1)]
        assert found[3] == [10 * r + 2 * rank + i for r in range(size) for i in range(2)]
        assert found[4] == [
            10 * r + starts[r][rank] + i for r in range(size) for i in range(lengths[r][rank])
        ]
        assert found[5] == [3 * (2 * rank + i) + 30 for i in range(2)]
        first, count = [(0, 3), (3, 2), (5, 2)][rank]
        assert found[6] == [6.0 * (first + i) for i in range(count)]


def test_a_handle_is_done_when_its_work_is_enqueued(machine):
    """No thread waits for a device: the caller's stream is held all the while."""

    def body(me):
        me.run(Kind.ALLREDUCE, "first", [me.array([1.0])])
        array = me.array(np.full(9, 1.0))
        with me.device.hold(me.stream):
            me.device.memset(array.pointer, 0, array.nbytes, me.stream)
            handle = me.submit(Kind.ALLREDUCE, "held", [array])
            handle.wait()
            handle.wait_on(me.stream)
            seen = handle.done(), handle.is_through(), array.numpy()[0]
        me.device.synchronize(me.stream)
        return seen, handle.is_through(), array.numpy().tolist()

    assert run_ranks(machine, 2, body) == [((True, False, 1.0), True, [0.0] * 9)] * 2


def test_a_request_comes_after_all_streams_that_it_names(machine):
    def body(me):
        other = me.device.new_stream()
        array = me.array(np.full(100_000, 5, np.int32))
        source = view(array, "a")
        request = Request("a", Kind.ALLREDUCE, (Member(source.dtype, (100_000,)),), device=CUDA)
        with me.device.hold(other):
            me.device.memset(array.pointer, 0, array.nbytes, other)
            streams = (me.stream, other)
            handle = me.engine.submit(request, [Part(source, source)], streams=streams)
            handle.wait()
            is_through = handle.is_through()
        found = np.unique(me.values(handle)).tolist()
        me.device.synchronize(other)
        me.device.free_stream(other)
        return is_through, found

    assert run_ranks(machine, 2, body) == [(False, [0])] * 2


def test_memory_is_kept_until_the_device_is_through(machine):
    """Who drops a tensor after `submit` lets nobody have its memory before it was read."""

    def body(me):
        array = me.array(np.full(9, me.rank + 1.0))
        gone = weakref.ref(array)
        target = me.array(np.zeros(9))
        with me.device.hold(me.stream):
            handle = me.submit(Kind.ALLREDUCE, "a", [array], targets=[target])
            del array
            handle.wait()
            gc.collect()
            was_kept = gone() is not None
        found = me.values(handle)[0].tolist()
        gc.collect()
        return was_kept, gone() is None, found

    assert run_ranks(machine, 2, body) == [(True, True, [3.0] * 9)] * 2


def test_a_rank_with_the_tensor_on_the_host_is_named(machine):
    def body(me):
        array = np.ones(3) if me.rank else me.array(np.ones(3))
        handle = me.submit(Kind.ALLREDUCE, "w", [array], device="cpu" if me.rank else CUDA)
        with pytest.raises(MismatchError) as caught:
            handle.wait()
        return str(caught.value), np.unique(me.run(Kind.ALLREDUCE, "x", [me.array([2.0])])).tolist()

    for text, after in run_ranks(machine, 2, body):
        assert "'w'" in text
        assert "rank 1" in text
        assert "device cpu" in text
        assert "cuda" in text
        assert after == [4.0]


@pytest.mark.parametrize("op", [Op.SUM, Op.MIN, Op.PRODUCT])
def test_a_rank_that_has_joined_gives_neutral_elements(machine, op):
    """Also one that has never used its device before."""

    def body(me):
        if me.rank == 1:
            return me.engine.join()
        array = me.array(np.full(5, 3.0, np.float32))
        large = me.array(np.full(100_000, 3.0, np.float32))
        found = [me.run(Kind.ALLREDUCE, n, [a], op=op) for n, a in (("a", array), ("l", large))]
        me.engine.join()
        return [np.unique(each).tolist() for each in found]

    assert run_ranks(machine, 2, body)[0] == [[3.0], [3.0]]


def test_what_is_not_there_is_refused(machine):
    def body(me):
        whole, floats = me.array(np.ones(4, np.int32)), me.array(np.ones(4))
        refused = []
        for how in (
            {"arrays": [whole], "op": Op.AVERAGE},
            {"arrays": [whole], "scales": (2.0, 1.0)},
            {"arrays": [floats], "op": ADASUM},
        ):
            with pytest.raises(NotSupportedError) as caught:
                me.submit(Kind.ALLREDUCE, "r", **how)
            refused.append(str(caught.value))
        with pytest.raises(InvalidBufferError) as caught:
            me.submit(Kind.ALLREDUCE, "two", [floats, np.ones(4)])
        refused.append(str(caught.value))
        me.device.begin_capture(me.stream)
        with pytest.raises(NotSupportedError) as caught:
            me.submit(Kind.ALLREDUCE, "graph", [floats])
        me.device.end_capture(me.stream)
        refused.append(str(caught.value))
        return refused

    (refused,) = run_ranks(machine, 1, body)
    words = ("averages and scales of int32", "averages and scales", "Adasum", "one device", "graph")
    for text, word in zip(refused, words, strict=True):
        assert word in text


def test_a_second_device_is_refused(machine):
    def body(me):
        me.run(Kind.ALLREDUCE, "a", [me.array([1.0])])
        other = machine.devices[1].array_of(np.ones(3))
        with pytest.raises(InvalidBufferError) as caught:
            me.submit(Kind.ALLREDUCE, "b", [other])
        return str(caught.value)

    assert "device 1, and this rank has used device 0" in run_ranks(machine, 1, body)[0]


def test_check_nan_looks_at_devices(machine):
    def body(me):
        values = np.ones(5, np.float32)
        values[3] = np.nan if me.rank else 1
        with pytest.raises(NonFiniteError) as caught:
            me.run(Kind.ALLREDUCE, "n", [me.array(values)])
        return caught.value.rank

    assert run_ranks(machine, 2, body, settings=Settings(check_nan=True)) == [1, 1]


def test_a_kernel_that_cannot_be_launched_ends_the_job_on_all_ranks(machine):
    """Nothing waits for ever, and the others hear of it from a later call at the latest."""

    def body(me):
        me.run(Kind.ALLREDUCE, "before", [me.array([1.0])])
        me.engine.barrier()
        if me.rank == 1:
            machine.fail("cuLaunchKernel", rank=1, reason="an illegal memory access")

        def go_on():
            for turn in range(100):
                me.run(Kind.ALLREDUCE, f"a{turn}", [me.array([1.0])])

        with pytest.raises(CollectiveError) as caught:
            go_on()
        return str(caught.value)

    for text in run_ranks(machine, 2, body):
        assert "rank 1" in text
        assert "an illegal memory access" in text


def test_nothing_is_left_on_the_devices(machine):
    def body(me):
        for turn in range(3):
            arrays = [me.array(np.ones(n)) for n in (3, 50_000)]
            me.run(Kind.ALLREDUCE, f"a{turn}", arrays)
        handle = me.submit(Kind.REDUCESCATTER, "r", [me.array(np.ones(5))])
        me.values(handle)
        return handle

    handles = run_ranks(machine, 2, body)
    assert all(handle.is_through() for handle in handles)
    for handle in handles:
        handle.wait_on(0)  # harmless
    gc.collect()
    left = [line for line in machine.leaks() if "event" in line or "stream" in line]
    assert left == []


def test_views_say_where_memory_is(machine):
    array = machine.devices[2].array_of(np.ones(3, np.float32))
    found = view(array.on(7), "x")
    assert (found.device, found.stream, found.dtype) == (2, 7, DType.FLOAT32)
    assert isinstance(found, View)
