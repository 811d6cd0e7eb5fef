"""Which rows of arrays a rank gets, for any number of rows, ranks and rows in a batch."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("needs tensorflow", allow_module_level=True)

import blinkrun.tf as blink
from blinkrun.errors import NotInitializedError
from blinkrun.tf.data import EVEN, Part, _rows

counts = st.integers(0, 60)
sizes = st.integers(1, 7)
batches = st.none() | st.integers(1, 9)
seeds = st.none() | st.integers(0, 5)


def parts(count, size, batch, even, seed):
    """The rows of every rank, and its batches."""
    rows = [_rows(count, Part(r, size, even, batch), seed) for r in range(size)]
    dealt = [np.arange(count)[each].tolist() for each in rows]
    return dealt, [-(-len(part) // (batch or 1)) for part in dealt]


@given(counts, sizes, batches, seeds)
def test_what_is_dropped_is_less_than_a_row_for_each_rank(count, size, batch, seed):
    dealt, num_batches = parts(count, size, batch, "drop", seed)
    together = [row for part in dealt for row in part]
    assert len(set(num_batches)) == 1
    assert len(set(together)) == len(together) > count - size
    kept, _ = parts(count, size, batch, None, seed)
    if len(together) < count:  # only where batches would differ in number
        assert len({-(-len(part) // (batch or 1)) for part in kept}) > 1


@given(counts, sizes, batches, seeds)
def test_repeating_leaves_nothing_out(count, size, batch, seed):
    dealt, num_batches = parts(count, size, batch, "repeat", seed)
    together = [row for part in dealt for row in part]
    assert len(set(num_batches)) == 1
    assert set(together) == set(range(count))
    assert len(together) < count + size


@given(counts, sizes, batches, seeds)
def test_uneven_parts_are_each_row_once(count, size, batch, seed):
    dealt, _ = parts(count, size, batch, None, seed)
    assert sorted(row for part in dealt for row in part) == list(range(count))
    if seed is None:
        assert dealt == [list(range(r, count, size)) for r in range(size)]


@given(counts, sizes, st.integers(1, 9), st.sampled_from(EVEN), seeds)
def test_joined_batches_are_those_of_one_process(count, size, batch, even, seed):
    dealt, num_batches = parts(count, size, batch, even, seed)
    (alone,), _ = parts(count, 1, batch * size, even, seed)
    for number in range(max(num_batches) - 1):  # the last one may be cut or filled up
        mine = slice(number * batch, (number + 1) * batch)
        joined = slice(number * batch * size, (number + 1) * batch * size)
        assert sorted(row for part in dealt for row in part[mine]) == sorted(alone[joined])


def test_data_are_not_shared_before_the_job_is_joined():
    with pytest.raises(NotInitializedError):
        blink.shard(np.arange(4))
