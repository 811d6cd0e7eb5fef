"""Named requests of ranks that are threads: results, order, groups, names."""

import json
import random
import threading

import numpy as np
import pytest
from support.engines import allreduce, run_engines, submit

from blinkrun.buffers import view
from blinkrun.engine import objects
from blinkrun.engine.handle import Part
from blinkrun.engine.request import ADASUM, Kind, Member, Request
from blinkrun.engine.settings import Settings
from blinkrun.errors import (
    DuplicateNameError,
    InvalidBufferError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    ProcessSetError,
    ShutdownError,
    UsageError,
)
from blinkrun.types import Op

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int32", "int64"]


def values(rank, count, dtype, seed=0):
    """Small whole numbers, different on each rank."""
    random_numbers = np.random.default_rng(seed * 100 + rank)
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return random_numbers.integers(low, 5, count).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_kind_gives_what_numpy_gives(size):
    def body(engine):
        rank = engine.world.rank
        got = {}
        for dtype in (*FLOATS, *INTEGERS):
            for count in (0, 1, 7, 1009):
                data = values(rank, count, dtype)
                name = f"{dtype}.{count}"
                got[name, "sum"] = allreduce(engine, name, data)
                copy = data.copy()
                allreduce(engine, f"{name}.in", copy, op=Op.MAX, in_place=True)
                got[name, "max"] = copy
                got[name, "mean"] = allreduce(engine, f"{name}.mean", data, op=Op.AVERAGE)
                for root in {0, size - 1}:
                    handle = submit(engine, Kind.BROADCAST, f"{name}.b{root}", [data], root=root)
                    handle.wait()
                    got[name, "root", root] = handle.targets[0].owner
        return got

    results = run_engines(size, body)
    for dtype in (*FLOATS, *INTEGERS):
        for count in (0, 1, 7, 1009):
            inputs = np.stack([values(rank, count, dtype) for rank in range(size)])
            total = inputs.sum(0).astype(np.float64)
            mean = total / size if np.dtype(dtype).kind == "f" else np.trunc(total / size)
            name = f"{dtype}.{count}"
            for got in results:
                assert np.array_equal(got[name, "sum"], total.astype(dtype))
                assert np.array_equal(got[name, "max"], inputs.max(0))
                assert np.allclose(got[name, "mean"], mean, rtol=1e-3)
                for root in {0, size - 1}:
                    assert np.array_equal(got[name, "root", root], inputs[root])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_blocks_of_different_sizes(size):
    def body(engine):
        rank = engine.world.rank
        rows = [3, 0, 5][rank]
        mine = np.full((rows, 2), rank, np.int32)
        gathered = submit(engine, Kind.ALLGATHER, "g", [mine])
        scalar = submit(engine, Kind.ALLGATHER, "s", [np.float32(rank + 0.5).reshape(())])
        splits = [[2, 0, 1], [0, 4, 3], [5, 1, 0]][rank][:size]
        sent = np.arange(sum(splits) * 3, dtype=np.float64).reshape(-1, 3) + 100 * rank
        spread = submit(engine, Kind.ALLTOALL, "a", [sent], splits=splits)
        rows = np.arange(14, dtype=np.float32).reshape(7, 2) + rank
        slices = submit(engine, Kind.REDUCESCATTER, "r", [rows])
        whole = submit(engine, Kind.REDUCESCATTER, "ri", [rows.astype(np.uint8)], op=Op.AVERAGE)
        handles = [gathered, scalar, spread, slices, whole]
        for handle in handles:
            handle.wait()
        return [h.targets[0].owner for h in handles], [h.received_splits for h in handles]

    table = np.array([[2, 0, 1], [0, 4, 3], [5, 1, 0]])[:size, :size]
    sent = [
        np.arange(row.sum() * 3, dtype=np.float64).reshape(-1, 3) + 100 * rank
        for rank, row in enumerate(table)
    ]
    parts = [np.split(rows, np.cumsum(row)[:-1]) for rows, row in zip(sent, table, strict=True)]
    total = sum(np.arange(14, dtype=np.float32).reshape(7, 2) + rank for rank in range(size))
    slices = np.array_split(total, size)
    for rank, ((gathered, scalar, spread, sliced, mean), received) in enumerate(
        run_engines(size, body)
    ):
        counts = [3, 0, 5][:size]
        assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(counts[r])]
        assert received[0] == tuple(counts)
        assert scalar.tolist() == [r + 0.5 for r in range(size)]
        assert np.array_equal(spread, np.concatenate([parts[r][rank] for r in range(size)]))
        assert received[2] == tuple(table[:, rank])
        assert np.array_equal(sliced, slices[rank])
        assert np.array_equal(mean, np.trunc(slices[rank] / size))


def test_large_alltoall_goes_in_rounds():
    counts = [[1_500_000, 3, 0], [0, 0, 1_000_001], [7, 700_000, 11]]

    def body(engine):
        rank = engine.world.rank
        data = np.arange(sum(counts[rank]), dtype=np.int32) * 3 + rank
        handle = submit(engine, Kind.ALLTOALL, "large", [data], splits=counts[rank])
        handle.wait()
        return handle.targets[0].owner

    for rank, got in enumerate(run_engines(3, body)):
        expected = []
        for peer in range(3):
            data = np.arange(sum(counts[peer]), dtype=np.int32) * 3 + peer
            start = sum(counts[peer][:rank])
            expected.append(data[start : start + counts[peer][rank]])
        assert np.array_equal(got, np.concatenate(expected))


@pytest.mark.parametrize("fusion_bytes", [0, 256, 1 << 20])
def test_any_order_gives_the_same_bits(fusion_bytes):
    shapes = [(number % 5 * 3 + 1,) for number in range(60)]

    def body(engine):
        rank = engine.world.rank
        order = list(range(60))
        got = {}
        for step in range(3):
            random.Random(rank * 10 + step).shuffle(order)
            handles = {}
            for number in order:
                data = np.random.default_rng(number * 4 + rank).random(shapes[number], np.float32)
                op = Op.AVERAGE if number % 2 else Op.SUM
                handles[number] = submit(engine, Kind.ALLREDUCE, f"t{number}", [data], op=op)
            for number, handle in handles.items():
                handle.wait()
                result = handle.targets[0].owner
                assert step == 0 or np.array_equal(result, got[number])
                got[number] = result
        return got

    results = run_engines(3, body, settings=Settings(fusion_bytes=fusion_bytes))
    for number in range(60):
        inputs = [
            np.random.default_rng(number * 4 + r).random(shapes[number], np.float32)
            for r in range(3)
        ]
        total = inputs[0] + inputs[1] + inputs[2]
        expected = total / np.float32(3) if number % 2 else total
        for got in results:
            assert np.allclose(got[number], expected, rtol=1e-6)
            assert np.array_equal(got[number], results[0][number])


def test_groups_complete_together_and_mix_types():
    def body(engine):
        rank = engine.world.rank
        arrays = [
            np.full(5, rank + 1, np.float32),
            np.full(3, rank + 1, np.int64),
            np.full((0, 4), 1, np.float32),
            np.full(7, rank + 1, np.float32),
        ]
        single = submit(engine, Kind.ALLREDUCE, "one", [arrays[0]])
        group = submit(engine, Kind.ALLREDUCE, "group", arrays)
        gathered = submit(engine, Kind.ALLGATHER, "gathers", arrays[:2])
        scattered = submit(engine, Kind.REDUCESCATTER, "scatters", arrays[:2])
        for handle in (scattered, gathered, group, single):
            handle.wait()
        return [[t.owner.tolist() for t in h.targets] for h in (group, gathered, scattered)]

    for rank, (group, gathered, scattered) in enumerate(run_engines(2, body)):
        assert group == [[3.0] * 5, [3] * 3, [], [3.0] * 7]
        assert gathered == [[1.0] * 5 + [2.0] * 5, [1] * 3 + [2] * 3]
        assert scattered == [[3.0] * (3 - rank), [3] * (2 - rank)]


def test_integers_are_scaled_and_averaged_toward_zero():
    def body(engine):
        rank = engine.world.rank
        odd = np.array([-3, 3, 7], np.int32) * (1 if rank == 0 else 0)
        mean = allreduce(engine, "mean", odd, op=Op.AVERAGE)
        full = allreduce(engine, "full", np.full(2, 250, np.uint8), op=Op.AVERAGE)
        scaled = allreduce(engine, "scaled", np.array([5, -5], np.int64), scales=(0.5, 1.5))
        floats = allreduce(engine, "floats", np.array([1, 2], np.float32), scales=(2.0, 0.5))
        return [x.tolist() for x in (mean, full, scaled, floats)]

    assert run_engines(2, body) == [[[-1, 1, 3], [250, 250], [6, -6], [2.0, 4.0]]] * 2


def test_adasum_of_equal_vectors_is_the_vector():
    def body(engine):
        alike = allreduce(engine, "alike", np.arange(9, dtype=np.float32), op=ADASUM)
        apart = np.eye(3, dtype=np.float64)[engine.world.rank]
        return alike, allreduce(engine, "apart", apart, op=ADASUM, in_place=True)

    for alike, apart in run_engines(3, body):
        assert np.allclose(alike, np.arange(9))
        assert np.allclose(apart, 1)


def test_a_name_under_way_is_refused_and_free_again_afterwards():
    def body(engine):
        data = np.ones(3, np.float32)
        if engine.world.rank == 0:
            first = submit(engine, Kind.ALLREDUCE, "same", [data])
            with pytest.raises(DuplicateNameError, match=r"'same'"):
                submit(engine, Kind.ALLREDUCE, "same", [data])
            engine.barrier()
        else:
            engine.barrier()
            first = submit(engine, Kind.ALLREDUCE, "same", [data])
        first.wait()
        first.wait()
        return allreduce(engine, "same", data).tolist(), first.done(), first.name

    assert run_engines(2, body) == [([2.0] * 3, True, "same")] * 2


def test_bad_arguments_are_refused_before_anything_is_said():
    def body(engine):
        data = np.ones(3, np.float32)
        with pytest.raises(ProcessSetError, match="process set 9"):
            submit(engine, Kind.ALLREDUCE, "x", [data], process_set=9)
        with pytest.raises(InvalidBufferError, match="Adasum"):
            submit(engine, Kind.ALLREDUCE, "x", [data.astype(int)], op=ADASUM)
        with pytest.raises(InvalidBufferError, match="bool"):
            submit(engine, Kind.ALLREDUCE, "x", [data > 0], op=Op.AVERAGE)
        with pytest.raises(ProcessSetError):
            engine.communicator(9)
        with pytest.raises(UsageError, match="reducescatter 'x' has no operation"):
            submit(engine, Kind.REDUCESCATTER, "x", [data], op=ADASUM)
        source, small = view(data, "x"), view(np.ones(2, np.float32), "x")
        request = Request("x", Kind.ALLREDUCE, (Member(source.dtype, source.shape),))
        with pytest.raises(InvalidBufferError, match="target holds 2 float32, the source 3"):
            engine.submit(request, [Part(source, small)])
        with pytest.raises(UsageError, match="no target"):
            engine.submit(request, [Part(source)])
        with pytest.raises(UsageError, match="1 members and 2 parts"):
            engine.submit(request, [Part(source, source)] * 2)
        pairs = [(request, [Part(source, source)])] * 2
        with pytest.raises(DuplicateNameError, match="'x'"):
            engine.submit_all(pairs)
        return allreduce(engine, "x", data).tolist()

    assert run_engines(2, body) == [[2.0] * 3] * 2


def test_callbacks_run_once_and_may_submit():
    def body(engine):
        seen = []
        handle = submit(engine, Kind.ALLREDUCE, "a", [np.ones(2, np.float32)])
        handle.add_done_callback(
            lambda h: seen.append(submit(engine, Kind.ALLREDUCE, "b", [h.targets[0].owner]))
        )
        handle.wait()
        engine.barrier()
        seen[0].wait()
        handle.add_done_callback(lambda h: seen.append(h.name))
        return len(seen), seen[0].targets[0].owner.tolist(), seen[1]

    size = 2
    assert run_engines(size, body) == [(2, [4.0, 4.0], "a")] * size
    assert run_engines(1, body) == [(2, [1.0, 1.0], "a")]


def test_unnamed_calls_are_numbered_by_kind_and_set():
    def body(engine):
        names = [engine.next_name("allreduce"), engine.next_name("allgather")]
        return [*names, engine.next_name("allreduce"), engine.next_name("allreduce", 3)]

    assert run_engines(1, body) == [
        [
            "allreduce.noname.0.1",
            "allgather.noname.0.1",
            "allreduce.noname.0.2",
            "allreduce.noname.3.1",
        ]
    ]


def test_after_stop_everything_is_refused_and_what_was_under_way_fails():
    stopped = threading.Event()

    def body(engine):
        data = np.ones(3, np.float32)
        handle = None
        if engine.world.rank == 0:
            handle = submit(engine, Kind.ALLREDUCE, "alone", [data])
        engine.barrier()
        if engine.world.rank == 0:
            engine.stop()
            stopped.set()
            with pytest.raises(ShutdownError, match=r"allreduce 'alone' was under way"):
                handle.wait()
        else:
            assert stopped.wait(20)
            with pytest.raises(PeerLeftError, match=r"'alone'.*rank 0"):
                allreduce(engine, "alone", data)
            engine.stop()
        with pytest.raises(NotInitializedError, match=r"'later'"):
            submit(engine, Kind.ALLREDUCE, "later", [data])
        with pytest.raises(NotInitializedError):
            engine.barrier()
        return True

    assert run_engines(2, body) == [True, True]


def test_the_timeline_tells_what_happened_to_each_tensor(tmp_path):
    path = tmp_path / "trace.json"

    def body(engine):
        engine.start_timeline(str(path), mark_cycles=True)
        small = [(np.ones(3, np.float32), f"small{number}") for number in range(3)]
        views = [(view(array, name), name) for array, name in small]
        requests = [
            (Request(name, Kind.ALLREDUCE, (Member(v.dtype, v.shape),)), [Part(v, v)])
            for v, name in views
        ]
        for handle in engine.submit_all(requests, sync=True):
            handle.wait()
        allreduce(engine, "large", np.ones(100_000, np.float32))
        engine.stop_timeline()
        allreduce(engine, "unseen", np.ones(3))
        return engine.stats.requests, engine.stats.batches

    assert [requests for requests, _ in run_engines(2, body)] == [5, 5]
    events = json.loads(path.read_text())
    names = [e for e in events if e["ph"] == "M" and "name" in e["args"]]
    tensors = {e["args"]["name"]: e["pid"] for e in names}
    assert {"allreduce.small0", "allreduce.small2", "allreduce.large"} <= set(tensors)
    assert "allreduce.unseen" not in tensors
    for name in ("small1", "large"):
        mine = [e for e in events if e["pid"] == tensors[f"allreduce.{name}"] and e["ph"] != "M"]
        begun = [e["name"] for e in mine if e["ph"] == "B"]
        assert begun == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
        assert sum(e["ph"] == "E" for e in mine) == 2
        spans = {e["name"] for e in mine if e["ph"] == "X"}
        copies = {"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"}
        assert {"QUEUE", "WAIT_FOR_DATA", "tree 0"} <= spans
        assert (copies & spans == copies) == (name == "small1")
    assert any(e["ph"] == "i" and e["name"] == "CYCLE_START" for e in events)


def test_a_callback_that_raises_hinders_nothing(monkeypatch):
    said = []
    monkeypatch.setattr(threading, "excepthook", lambda told: said.append(str(told.exc_value)))

    def body(engine):
        def fails(handle):
            raise ValueError(f"callback of {handle.name}")

        handle = submit(engine, Kind.ALLREDUCE, "x", [np.ones(3, np.float32)])
        handle.add_done_callback(fails)
        handle.wait()
        return allreduce(engine, "y", np.ones(3)).tolist()

    assert run_engines(2, body) == [[2.0] * 3] * 2
    assert said == ["callback of x"] * 2


def test_objects_go_by_name_and_roots_must_agree():
    def body(engine):
        rank = engine.world.rank
        odd = engine.add_process_set([1, 2])
        told = [objects.broadcast_object(engine, {"from": rank}, root) for root in range(3)]
        heard = objects.allgather_object(engine, list(range(rank)))
        inner = objects.allgather_object(engine, rank, odd) if rank else None
        with pytest.raises(ProcessSetError, match=r"root 0 .*\[1, 2\]"):
            objects.broadcast_object(engine, None, 0, odd)
        with pytest.raises(MismatchError, match="same root"):
            objects.broadcast_object(engine, rank, root=min(rank, 1))
        secret = threading.Lock()  # none that pickle takes
        with pytest.raises(TypeError if rank == 1 else MismatchError, match="pickle"):
            objects.broadcast_object(engine, secret, root=1)
        with pytest.raises(
            TypeError if rank == 1 else MismatchError, match=r"rank 1.*pickle|pickle"
        ):
            objects.allgather_object(engine, secret if rank == 1 else rank)
        return told, heard, inner

    for rank, (told, heard, inner) in enumerate(run_engines(3, body)):
        assert told == [{"from": root} for root in range(3)]
        assert heard == [[], [0], [0, 1]]
        assert inner == ([1, 2] if rank else None)
