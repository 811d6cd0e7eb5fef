import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.engine.bucket import (
    ALIGN_BYTES,
    NO_BUCKET,
    BucketProgress,
    GradientSpec,
    plan_buckets,
)
from blinkrun.errors import GradientOrderError, UsageError
from blinkrun.types import DType

FLOATS = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]


@st.composite
def gradient_sets(draw):
    shapes = draw(st.lists(st.tuples(st.sampled_from(FLOATS), st.integers(0, 300)), max_size=12))
    gradients = [GradientSpec(f"g{i}", dtype, count) for i, (dtype, count) in enumerate(shapes)]
    order = draw(st.permutations(range(len(gradients))))
    return gradients, order, draw(st.integers(1, 2000)), draw(st.none() | st.integers(1, 900))


def three(count=32, dtype=DType.FLOAT32):
    return [GradientSpec(name, dtype, count) for name in "abc"]


@given(gradient_sets())
def test_every_gradient_has_one_slot_and_no_byte_is_shared(case):
    gradients, order, bucket_bytes, direct_bytes = case
    layout = plan_buckets(gradients, order, bucket_bytes, direct_bytes)
    spans = []
    for number, bucket in enumerate(layout.buckets):
        assert bucket.offset_bytes % ALIGN_BYTES == 0
        width = bucket.dtype.itemsize
        for slot in bucket.slots:
            assert layout.bucket_of[slot.gradient] == number
            assert gradients[slot.gradient].dtype == bucket.dtype
            assert gradients[slot.gradient].num_elements == slot.num_elements
            begin = bucket.offset_bytes + slot.start * width
            spans.append((begin, begin + slot.num_elements * width))
        assert spans[-1][1] == bucket.offset_bytes + bucket.num_bytes
    spans.append((layout.flags_offset_bytes, layout.flags_offset_bytes + len(gradients)))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= layout.num_bytes
    again = plan_buckets(gradients, sorted(order), 64)
    assert again.num_bytes == layout.num_bytes  # so the arena serves every order
    placed = sorted(slot.gradient for bucket in layout.buckets for slot in bucket.slots)
    assert placed == list(range(len(gradients)))


@given(gradient_sets())
def test_a_bucket_is_within_its_size_unless_one_gradient_is_larger(case):
    gradients, order, bucket_bytes, direct_bytes = case
    for bucket in plan_buckets(gradients, order, bucket_bytes, direct_bytes).buckets:
        filled = sum(gradients[slot.gradient].padded_bytes for slot in bucket.slots)
        assert filled <= bucket_bytes or len(bucket.slots) == 1


@given(gradient_sets())
def test_gradients_that_are_not_copied_are_the_large_ones_each_alone(case):
    gradients, order, bucket_bytes, direct_bytes = case
    for bucket in plan_buckets(gradients, order, bucket_bytes, direct_bytes).buckets:
        for slot in bucket.slots:
            size_bytes = slot.num_elements * bucket.dtype.itemsize
            assert bucket.is_direct == (direct_bytes is not None and size_bytes >= direct_bytes)
        assert not bucket.is_direct or len(bucket.slots) == 1


@given(gradient_sets())
def test_buckets_fill_in_their_order_when_gradients_come_as_expected(case):
    gradients, order, bucket_bytes, direct_bytes = case
    progress = BucketProgress(plan_buckets(gradients, order, bucket_bytes, direct_bytes))
    released = [list(progress.arrive(gradient)) for gradient in order]
    num_buckets = len(progress.layout.buckets)
    assert [b for some in released for b in some] == list(range(num_buckets))
    assert all(len(some) <= 1 for some in released)  # none had to wait for one before it


@given(gradient_sets(), st.data())
def test_buckets_are_released_in_one_order_whatever_comes_first(case, data):
    gradients, order, bucket_bytes, direct_bytes = case
    progress = BucketProgress(plan_buckets(gradients, order, bucket_bytes, direct_bytes))
    arrivals = data.draw(st.permutations(range(len(gradients))))
    released = [bucket for gradient in arrivals for bucket in progress.arrive(gradient)]
    assert released == list(range(len(progress.layout.buckets)))
    assert progress.absent() == ()
    assert progress.arrivals() == tuple(arrivals)


def test_a_bucket_waits_for_all_its_gradients_and_for_the_bucket_before():
    progress = BucketProgress(plan_buckets(three(), [2, 1, 0], bucket_bytes=256))
    assert progress.arrive(0) == range(0)  # bucket 1 is full, bucket 0 is not
    assert progress.arrive(2) == range(0)
    assert progress.absent() == (1,)
    assert progress.arrive(1) == range(2)
    assert progress.num_released == 2


def test_gradients_of_two_types_go_into_two_buckets_ordered_by_when_they_are_full():
    gradients = [
        GradientSpec("a", DType.FLOAT32, 8),
        GradientSpec("b", DType.BFLOAT16, 8),
        GradientSpec("c", DType.FLOAT32, 8),
    ]
    layout = plan_buckets(gradients, [0, 1, 2], bucket_bytes=1000)
    assert [[slot.gradient for slot in bucket.slots] for bucket in layout.buckets] == [[1], [0, 2]]


def test_a_gradient_is_ready_after_its_passes_and_not_before():
    progress = BucketProgress(plan_buckets(three(), [0, 1, 2], 1000), passes=2)
    assert not progress.began
    assert [progress.count_pass(1), progress.count_pass(1)] == [False, True]
    assert progress.began
    with pytest.raises(UsageError, match="more than backward_passes_per_step=2 backward passes"):
        progress.count_pass(1)
    progress.reset()
    assert not progress.began
    assert progress.count_pass(1) is False


def test_a_gradient_that_was_counted_absent_is_one_pass_too_many_afterwards():
    progress = BucketProgress(plan_buckets(three(), [0, 1, 2], 1000))
    for gradient in progress.absent():
        progress.arrive(gradient)
    with pytest.raises(GradientOrderError):
        progress.count_pass(0)
    assert issubclass(GradientOrderError, AssertionError)  # what Horovod raises
    assert issubclass(GradientOrderError, ValueError)


def test_reset_forgets_arrivals():
    progress = BucketProgress(plan_buckets(three(), [0, 1, 2], 100))
    progress.arrive(0)
    progress.reset()
    assert progress.num_released == 0
    assert progress.absent() == (0, 1, 2)


@given(gradient_sets(), st.data())
def test_gradients_that_the_order_leaves_out_have_no_place_and_hold_nothing_up(case, data):
    gradients, order, bucket_bytes, direct_bytes = case
    some = order[: data.draw(st.integers(0, len(order)))]
    layout = plan_buckets(gradients, some, bucket_bytes, direct_bytes)
    placed = [slot.gradient for bucket in layout.buckets for slot in bucket.slots]
    assert sorted(placed) == sorted(some)
    assert [g for g, b in enumerate(layout.bucket_of) if b == NO_BUCKET] == sorted(
        set(order) - set(some)
    )
    progress = BucketProgress(layout)
    released = [bucket for gradient in order for bucket in progress.arrive(gradient)]
    assert released == list(range(len(layout.buckets)))
    assert progress.absent() == ()


@given(gradient_sets(), st.data())
def test_a_group_is_in_one_bucket_of_each_dtype_alone(case, data):
    gradients, order, bucket_bytes, direct_bytes = case
    labels = [data.draw(st.sampled_from([0, 1, None])) for _ in gradients]
    groups = [[g for g, label in enumerate(labels) if label == which] for which in (0, 1)]
    layout = plan_buckets(gradients, order, bucket_bytes, direct_bytes, groups)
    for bucket in layout.buckets:
        assert len({labels[slot.gradient] for slot in bucket.slots}) == 1
    for group in groups:
        kinds = {(gradients[g].dtype, layout.bucket_of[g]) for g in group}
        assert len(kinds) == len({gradients[g].dtype for g in group})
    placed = sorted(slot.gradient for bucket in layout.buckets for slot in bucket.slots)
    assert placed == list(range(len(gradients)))
    last = [max(order.index(slot.gradient) for slot in bucket.slots) for bucket in layout.buckets]
    assert last == sorted(last)


def test_other_buckets_keep_the_passes_that_were_counted():
    progress = BucketProgress(plan_buckets(three(), [0, 1, 2], 1000), passes=2)
    progress.count_pass(1)
    progress.move_to(plan_buckets(three(), [1], 1000))
    assert progress.count_pass(1) is True
    assert progress.arrive(1) == range(1)
    assert progress.absent() == (0, 2)


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_an_order_with_a_gradient_twice_or_unknown_is_refused(order):
    with pytest.raises(UsageError, match="each of 3 gradients once"):
        plan_buckets(three(), order, 100)


def test_sizes_and_passes_below_one_are_refused():
    with pytest.raises(UsageError, match="bucket_bytes is 0"):
        plan_buckets(three(), [0, 1, 2], 0)
    with pytest.raises(UsageError, match="backward_passes_per_step is 0"):
        BucketProgress(plan_buckets(three(), [0, 1, 2], 100), passes=0)
    with pytest.raises(UsageError, match="'w' has -1 elements"):
        GradientSpec("w", DType.FLOAT32, -1)
