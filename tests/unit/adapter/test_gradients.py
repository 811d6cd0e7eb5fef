"""Gradients reduced in buckets, with ranks that are threads of this process."""

from __future__ import annotations

import gc
import queue
from typing import Any

import numpy as np
import pytest
from support.engines import run_engines

from blinkrun.adapter import gradients
from blinkrun.adapter.gradients import Gradient, Gradients
from blinkrun.buffers import numpy_dtype, view
from blinkrun.engine import ADASUM, Engine, Settings
from blinkrun.errors import MismatchError, NonFiniteError, UsageError
from blinkrun.types import DType, Op

F32 = DType.FLOAT32
SHAPES = [(3, 4), (), (0, 5), (257,), (1000, 3), (64,)]
DTYPES = [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32]


def gradients_of(shapes: Any, dtypes: Any = (F32,)) -> list[Gradient]:
    kinds = [dtypes[i % len(dtypes)] for i in range(len(shapes))]
    return [Gradient(f"w{i}", d, s) for i, (d, s) in enumerate(zip(kinds, shapes, strict=True))]


def values_of(gradients: list[Gradient], rank: int) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [
        rng.integers(-8, 8, g.shape).astype(numpy_dtype(g.dtype)).reshape(g.shape)
        for g in gradients
    ]


def make(engine: Engine, gradients: list[Gradient], **options: Any) -> Gradients:
    return Gradients(gradients, owner="test", current=lambda: engine, **options)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 4096, 1 << 20])
def test_every_gradient_is_summed_over_ranks(size: int, bucket_bytes: int) -> None:
    known = gradients_of(SHAPES * 2, DTYPES)

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM, bucket_bytes=bucket_bytes)
        return [grads.reduce(values_of(known, engine.world.rank)) for _ in range(3)]

    wanted = [sum(each) for each in zip(*(values_of(known, r) for r in range(size)), strict=True)]
    for steps in run_engines(size, body):
        for results in steps:
            for result, want, gradient in zip(results, wanted, known, strict=True):
                assert (result.shape, result.dtype) == (gradient.shape, numpy_dtype(gradient.dtype))
                assert (result.astype(np.float64) == np.asarray(want, np.float64)).all()


def test_buckets_hold_the_last_gradients_first() -> None:
    known = gradients_of([(16,)] * 4)

    def body(engine: Engine) -> Any:
        return make(engine, known, bucket_bytes=128).buckets

    assert run_engines(2, body) == [((3, 2), (1, 0))] * 2


def test_buckets_begin_one_by_one_in_any_order() -> None:
    known = gradients_of([(16,)] * 4)

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM, bucket_bytes=64)
        values = values_of(known, engine.world.rank)
        order = range(4) if engine.world.rank else range(3, -1, -1)
        started = {b: grads.begin(b, [values[g] for g in grads.buckets[b]]) for b in order}
        return [started[b].wait()[0] for b in range(3, -1, -1)]

    wanted = [sum(pair) for pair in zip(values_of(known, 0), values_of(known, 1), strict=True)]
    for results in run_engines(2, body):
        assert all((a == b).all() for a, b in zip(results, wanted, strict=True))


def test_results_are_aligned_and_stay_what_they_are() -> None:
    known = gradients_of(SHAPES)

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM)
        first = grads.reduce(values_of(known, engine.world.rank))
        kept = [each.copy() for each in first]
        for step in range(1, 4):
            grads.reduce(values_of(known, step + 10))
        same = all((a == b).all() for a, b in zip(first, kept, strict=True))
        return same, [each.ctypes.data % 64 for each in first if each.size]

    assert run_engines(2, body) == [(True, [0] * 5)] * 2


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    known = gradients_of([(1000,), (3,)])

    def body(engine: Engine) -> Any:
        grads = make(engine, known)
        places = set()
        for step in range(4):
            results = grads.reduce(values_of(known, step))
            places.add(results[0].ctypes.data)
            tail = results[1][1:]
            del results
            places.add(grads.reduce(values_of(known, step))[0].ctypes.data)
            del tail
        gc.collect()
        return len(places)

    assert run_engines(2, body) == [2, 2]  # a view of the first keeps it while the second is made


def test_large_gradients_are_read_in_place_and_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(gradients, "choose_direct_bytes", lambda _: 4 << 20)
    known = gradients_of([((5 << 20) // 4,), (7,)])

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM)
        values = values_of(known, engine.world.rank)
        kept = values[0].copy()
        results: list[Any] = []
        sums = []
        for each in (values[0], view(values[0], "w0"), np.repeat(values[0], 2)[::2]):
            results.clear()  # the arena of these tests has no room for two
            results += grads.reduce([each, values[1]])
            sums.append(results[0].copy())
        return sums, (values[0] == kept).all(), len(grads.buckets)

    wanted = sum(values_of(known, rank)[0] for rank in range(2))
    for sums, is_untouched, buckets in run_engines(2, body):
        assert all((each == wanted).all() for each in sums)
        assert (is_untouched, buckets) == (True, 2)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (gradients_of([(3,), (5,)]), r"rank 1: gradient 'w1' is float32 \(5,\), rank 0 has .*4"),
        (gradients_of([(3,)]), "only rank 0 has 'w1'"),
        (gradients_of([(4,), (3,)]), "rank 1: gradient 'w0' is"),
        ([Gradient("v", F32, (3,))], "rank 1 has gradient 'v' where rank 0 has 'w0'"),
        (gradients_of([(3,), (4,)], (F32, DType.FLOAT64)), "rank 1: gradient 'w1' is float64"),
        ([], "only rank 0 has 'w0'"),
    ],
)
def test_a_difference_between_ranks_is_named_and_work_goes_on(other: Any, told: str) -> None:
    known = gradients_of([(3,), (4,)])

    def body(engine: Engine) -> Any:
        mine = other if engine.world.rank == 1 else known
        with pytest.raises(MismatchError, match=told):
            make(engine, mine, bucket_bytes=1).reduce(values_of(mine, 0))
        again = make(engine, known, op=Op.SUM, bucket_bytes=1)
        return again.reduce([np.ones(g.shape, np.float32) for g in known])[0].tolist()

    assert run_engines(3, body) == [[3.0] * 3] * 3


def test_a_difference_in_arguments_is_named() -> None:
    def body(engine: Engine) -> None:
        known = gradients_of([(3,)])
        op = Op.SUM if engine.world.rank else Op.AVERAGE
        with pytest.raises(MismatchError, match=r"rank 1: .* op=Sum, on rank 0 with op=Average"):
            make(engine, known, op=op).reduce(values_of(known, 0))

    run_engines(2, body)


def test_a_rank_that_changes_its_gradients_later_is_found() -> None:
    def body(engine: Engine) -> Any:
        known = gradients_of([(3,), (4,)])
        usual = make(engine, known)
        usual.reduce(values_of(known, 0))
        changed = gradients_of([(3,), (4,), (5,)])
        mine = usual if engine.world.rank else make(engine, changed)
        with pytest.raises(MismatchError, match="only rank 0 has 'w2'"):
            mine.reduce(values_of(changed if mine is not usual else known, 0))
        return usual.reduce(values_of(known, 0))[0].tolist()

    results = run_engines(2, body)
    assert results[0] == results[1]


def test_a_rank_that_has_joined_counts_as_zeros() -> None:
    def body(engine: Engine) -> Any:
        known = gradients_of([(3,), (4,)])
        grads = make(engine, known, op=Op.AVERAGE)
        steps = 3 if engine.world.rank else 1
        results = [
            grads.reduce([np.ones(g.shape, np.float32) for g in known]) for _ in range(steps)
        ]
        engine.join()
        return [each[0].tolist() for each in results]

    one, other = run_engines(2, body)
    assert (one, other) == ([[1.0] * 3], [[1.0] * 3, [0.5] * 3, [0.5] * 3]) or (
        other,
        one,
    ) == ([[1.0] * 3], [[1.0] * 3, [0.5] * 3, [0.5] * 3])


def test_adasum_combines_each_gradient_by_itself() -> None:
    known = gradients_of([(2,), (2,)])

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=ADASUM)
        mine = np.float32([1, 0] if engine.world.rank else [0, 1])
        return [each.tolist() for each in grads.reduce([mine, np.ones(2, np.float32)])]

    assert run_engines(2, body) == [[[1.0, 1.0], [1.0, 1.0]]] * 2  # orthogonal: sum; equal: one


def test_a_gradient_that_is_no_number_is_named() -> None:
    known = gradients_of([(3,), (4,)])

    def body(engine: Engine) -> Any:
        values = values_of(known, 0)
        if engine.world.rank == 1:
            values[1][2] = np.nan
        grads = make(engine, known)
        with pytest.raises(NonFiniteError, match="rank 1: gradient 'w1' holds NaN") as caught:
            grads.reduce(values)
        grads.reduce(values_of(known, 0))
        return caught.value.name, caught.value.rank

    assert run_engines(2, body, settings=Settings(check_nan=True)) == [("w1", 1)] * 2


def test_a_value_of_another_shape_is_refused_before_anything_is_sent() -> None:
    def body(engine: Engine) -> None:
        grads = make(engine, gradients_of([(3,), (4,)]))
        with pytest.raises(UsageError, match=r"'w1' is float32 .* was float32"):
            grads.reduce([np.zeros(3, np.float32), np.zeros(1, np.float32)])
        with pytest.raises(UsageError, match="'w0' is float64"):
            grads.reduce([np.zeros(3), np.zeros(4, np.float32)])
        with pytest.raises(UsageError, match="2 gradients, got 1"):
            grads.reduce([np.zeros(3, np.float32)])

    run_engines(2, body)


def test_a_reduction_that_nobody_waited_for_is_over_before_the_next() -> None:
    known = gradients_of([(3,)])

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM)
        for _ in range(5):
            grads.begin(0, [np.ones(3, np.float32)])
        return grads.begin(0, [np.ones(3, np.float32)]).wait()[0].tolist()

    assert run_engines(2, body) == [[2.0] * 3] * 2


def test_a_callback_comes_once_when_all_is_through() -> None:
    known = gradients_of([(3,), (4,)])

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM, bucket_bytes=1)
        for _ in range(3):
            calls: queue.Queue[int] = queue.Queue()
            started = grads.begin_all(values_of(known, 0))
            started.add_done_callback(lambda calls=calls: calls.put(1))  # type: ignore[misc]
            calls.get(timeout=10)
            assert started.done()
            started.wait()
            assert calls.empty()
        return True

    assert all(run_engines(2, body))


def test_a_callback_comes_when_the_difference_is_known() -> None:
    def body(engine: Engine) -> Any:
        known = gradients_of([(3,), (4,)] if engine.world.rank else [(3,), (4,), (5,)])
        calls: queue.Queue[int] = queue.Queue()
        started = make(engine, known, bucket_bytes=1).begin_all(values_of(known, 0))
        started.add_done_callback(lambda: calls.put(1))
        calls.get(timeout=10)
        with pytest.raises(MismatchError, match="only rank 0 has 'w2'"):
            started.wait()
        return calls.empty()

    assert all(run_engines(2, body))


def test_buckets_that_were_begun_one_by_one_are_waited_for_together() -> None:
    known = gradients_of([(16,)] * 3)

    def body(engine: Engine) -> Any:
        grads = make(engine, known, op=Op.SUM, bucket_bytes=64)
        values = values_of(known, engine.world.rank)
        begun = [grads.begin(b, [values[g] for g in m]) for b, m in enumerate(grads.buckets)]
        return grads.together(begun).wait()

    wanted = [sum(pair) for pair in zip(values_of(known, 0), values_of(known, 1), strict=True)]
    for results in run_engines(2, body):
        assert all((a == b).all() for a, b in zip(results, wanted, strict=True))


def test_a_job_that_is_joined_again_has_new_buckets() -> None:
    known = gradients_of([(3,)])
    engines: dict[int, Engine] = {}
    kept: dict[int, Gradients] = {}

    def body(engine: Engine) -> Any:
        rank = engine.world.rank
        engines[rank] = engine
        if rank not in kept:
            kept[rank] = Gradients(known, owner="again", op=Op.SUM, current=lambda: engines[rank])
        return kept[rank].reduce([np.ones(3, np.float32)])[0].tolist()

    assert run_engines(2, body) == [[2.0] * 3] * 2
    assert run_engines(3, body) == [[3.0] * 3] * 3
