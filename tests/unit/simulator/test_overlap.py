from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import UsageError
from blinkrun.simulator.overlap import (
    DDP_BUCKETS,
    Gradient,
    Step,
    TimeTable,
    buckets,
    monotone,
    split_by_weight,
    training_step,
)

gradients = st.lists(
    st.builds(Gradient, st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=12
)
caps = st.lists(st.integers(1, 900), min_size=1, max_size=3)


def affine(size):
    return 7 + 3 * size


@given(gradients, caps)
def test_buckets_hold_every_byte_once_and_become_ready_in_order(layers, caps_bytes):
    found = buckets(layers, caps_bytes)
    assert sum(bucket.size_bytes for bucket in found) == sum(one.size_bytes for one in layers)
    assert all(first.ready_ns <= second.ready_ns for first, second in pairwise(found))
    limits = [caps_bytes[min(at, len(caps_bytes) - 1)] for at in range(len(found))]
    assert all(
        bucket.size_bytes >= limit for bucket, limit in list(zip(found, limits, strict=True))[:-1]
    )


@given(gradients, caps)
def test_a_bucket_would_not_be_full_without_its_last_gradient(layers, caps_bytes):
    sizes = iter([one.size_bytes for one in reversed(layers)])
    for at, bucket in enumerate(buckets(layers, caps_bytes)):
        held = last = 0
        while held < bucket.size_bytes:
            last = next(sizes)
            held += last
        assert held == bucket.size_bytes
        assert held - last < caps_bytes[min(at, len(caps_bytes) - 1)]


@given(gradients, caps, st.integers(0, 500), st.booleans())
def test_a_step_lies_between_its_bounds(layers, caps_bytes, forward_ns, overlaps):
    step = training_step(
        layers, forward_ns=forward_ns, caps_bytes=caps_bytes, time_ns=affine, overlaps=overlaps
    )
    assert step.compute_ns == forward_ns + sum(one.backward_ns for one in layers)
    assert step.communication_ns == sum(affine(b.size_bytes) for b in buckets(layers, caps_bytes))
    assert max(step.compute_ns, forward_ns + step.communication_ns) <= step.iteration_ns
    assert step.iteration_ns <= step.compute_ns + step.communication_ns
    for one in step.exchanges:
        assert one.ready_ns <= one.start_ns
    for before, after in pairwise(step.exchanges):
        assert before.end_ns <= after.start_ns  # one stream: one after the other


@given(gradients, caps)
def test_without_overlap_all_communication_is_exposed(layers, caps_bytes):
    step = training_step(
        layers, forward_ns=5, caps_bytes=caps_bytes, time_ns=affine, overlaps=False
    )
    assert step.exposed_ns == step.communication_ns


@given(gradients, caps)
def test_overlap_never_lengthens_a_step_and_leaves_communication_as_it_is(layers, caps_bytes):
    after, during = (
        training_step(
            layers, forward_ns=5, caps_bytes=caps_bytes, time_ns=affine, overlaps=overlaps
        )
        for overlaps in (False, True)
    )
    assert during.iteration_ns <= after.iteration_ns
    assert during.communication_ns == after.communication_ns


@given(gradients, caps, st.integers(0, 3))
def test_a_slower_allreduce_never_shortens_a_step(layers, caps_bytes, slower):
    fast = training_step(layers, forward_ns=5, caps_bytes=caps_bytes, time_ns=affine)
    slow = training_step(
        layers, forward_ns=5, caps_bytes=caps_bytes, time_ns=lambda size: affine(size) + slower
    )
    assert fast.iteration_ns <= slow.iteration_ns
    assert fast.exposed_ns <= slow.exposed_ns


def test_a_step_worked_out_by_hand():
    # backward: the last layer's 8 bytes at 10, the next 8 at 30, the first 4 at 60
    layers = [Gradient(4, 30), Gradient(8, 20), Gradient(8, 10)]
    step = training_step(layers, forward_ns=100, caps_bytes=[8], time_ns=lambda size: 5 * size)
    times = [(one.size_bytes, one.ready_ns, one.start_ns, one.end_ns) for one in step.exchanges]
    assert times == [(8, 110, 110, 150), (8, 130, 150, 190), (4, 160, 190, 210)]
    assert (step.compute_ns, step.iteration_ns, step.exposed_ns) == (160, 210, 50)


def test_a_step_without_gradients_only_computes():
    step = training_step([], forward_ns=9, caps_bytes=DDP_BUCKETS, time_ns=affine)
    assert step == Step(9, ())
    assert (step.iteration_ns, step.communication_ns, step.exposed_ns) == (9, 0, 0)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_split_adds_up_and_keeps_proportions(total, weights):
    if not any(weights):
        with pytest.raises(UsageError, match="is not split by weights"):
            split_by_weight(total, weights)
        return
    parts = split_by_weight(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) <= 1 + total * 1e-12


points = st.dictionaries(st.integers(0, 10**6), st.integers(0, 10**6), min_size=2, max_size=8)


@given(points, st.lists(st.integers(0, 2 * 10**6), min_size=2, max_size=6))
def test_a_larger_size_never_takes_less_time(known, sizes):
    table = monotone(known.items())
    times = [table(size) for size in sorted(sizes)]
    assert times == sorted(times)


@given(points)
def test_known_times_are_kept_unless_a_smaller_size_took_longer(known):
    table = monotone(known.items())
    for size, time_ns in known.items():
        longest = max(value for other, value in known.items() if other <= size)
        assert table(size) == longest >= time_ns


def test_beyond_the_largest_known_size_its_rate_goes_on():
    table = TimeTable(((1000, 50), (2000, 60)))
    assert [table(size) for size in (0, 999, 1001, 2000, 4000, 4001)] == [50, 50, 51, 60, 120, 121]


@given(points, st.integers(0, 3 * 10**6), st.integers(1, 50))
def test_no_size_is_faster_than_a_link_that_bounds_all_known_ones(known, size, link):
    table = monotone((one, max(time_ns, one * link)) for one, time_ns in known.items())
    assert table(size) >= size * link


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: TimeTable(((1, 1),)), "1 known times"),
        (lambda: TimeTable(((2, 1), (1, 3))), "sizes must ascend"),
        (lambda: TimeTable(((1, 3), (2, 1))), "times must not fall"),
        (lambda: Gradient(-1, 0), "gradient of -1 bytes"),
        (lambda: buckets([Gradient(1, 1)], []), "buckets of"),
        (lambda: buckets([Gradient(1, 1)], [5, 0]), "buckets of"),
        (lambda: training_step([], forward_ns=-1, caps_bytes=[1], time_ns=affine), "forward pass"),
        (lambda: split_by_weight(-1, [1]), "is not split"),
        (lambda: split_by_weight(1, []), "is not split"),
    ],
)
def test_what_makes_no_sense_is_refused(build, says):
    with pytest.raises(UsageError, match=says):
        build()
