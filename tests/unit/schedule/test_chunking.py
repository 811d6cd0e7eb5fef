from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.schedule.chunking import ALIGN_BYTES, num_chunks, part_range
from blinkrun.schedule.ir import Part

ITEMSIZES = st.sampled_from([1, 2, 4, 8])


@given(st.integers(1, 40), st.integers(0, 5000), ITEMSIZES, st.data())
def test_parts_cover_every_element_once_and_share_no_cache_line(shares, count, itemsize, data):
    inner = data.draw(st.sets(st.integers(1, shares - 1))) if shares > 1 else set()
    cuts = [0, *sorted(inner), shares]
    ranges = [part_range(Part(lo, hi), shares, count, itemsize) for lo, hi in pairwise(cuts)]
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(count))
    assert all(lo * itemsize % ALIGN_BYTES == 0 for lo, hi in ranges[1:] if lo < count)


@given(st.integers(1, 50), st.integers(2, 6), st.integers(0, 10_000), ITEMSIZES)
def test_finer_shares_leave_a_boundary_where_it_is(shares, factor, count, itemsize):
    part = Part(0, shares)
    finer = Part(0, shares * factor)
    total = shares + 1
    assert part_range(part, total, count, itemsize) == part_range(
        finer, total * factor, count, itemsize
    )


@pytest.mark.parametrize(
    ("lo", "hi", "chunk", "wanted"),
    [(0, 0, 4, 0), (7, 7, 4, 0), (0, 1, 4, 1), (0, 4, 4, 1), (3, 8, 4, 2), (0, 9, 4, 3)],
)
def test_num_chunks(lo, hi, chunk, wanted):
    assert num_chunks(lo, hi, chunk) == wanted
