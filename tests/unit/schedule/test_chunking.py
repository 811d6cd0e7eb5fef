from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.schedule.chunking import ALIGN_BYTES, chunks_of, part_range
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


@given(st.integers(1, 40), st.integers(0, 50_000), ITEMSIZES, st.integers(0, 3000), st.data())
def test_chunks_cover_a_part_once_and_only_the_ends_are_smaller(
    shares, count, itemsize, size, data
):
    start = data.draw(st.integers(0, shares - 1))
    part = Part(start, data.draw(st.integers(start + 1, shares)))
    chunks = chunks_of(part, shares, count, itemsize, size)
    spans = [chunks.span(number) for number in range(chunks.num_chunks)]
    lo, hi = part_range(part, shares, count, itemsize)
    assert [i for low, high in spans for i in range(low, high)] == list(range(lo, hi))
    assert all(high > low for low, high in spans)
    lengths = [high - low for low, high in spans]
    assert set(lengths[1:-1]) <= {chunks.chunk_elements}
    assert max(lengths, default=0) <= chunks.chunk_elements
    assert size in (0, chunks.chunk_elements)
    if hi - lo < 4 * size or start == 0:  # too few for one more, and the first need not differ
        assert chunks.skip == 0


@given(st.integers(2, 64), st.integers(0, 1 << 14))
def test_channels_that_follow_each_other_begin_with_chunks_far_apart(channels, before):
    shares = channels + before
    parts = [Part(at, at + 1) for at in range(before, shares)]
    chunk = 1 << 16
    skips = sorted(chunks_of(part, shares, shares * 4 * chunk, 4, chunk).skip for part in parts)
    # by the three-distance theorem no two of n such points are nearer than 1 / (sqrt(5) n)
    assert all(3 * channels * (high - low) >= chunk for low, high in pairwise(skips))


@given(st.integers(2, 16), st.sampled_from([2, 3, 4, 6, 8, 16, 64, 256, 1 << 10, 1 << 16]))
def test_finer_shares_scatter_as_well(channels, fine):
    parts = [Part(at * fine, (at + 1) * fine) for at in range(channels)]
    skips = {chunks_of(part, channels * fine, channels << 12, 4, 1 << 10).skip for part in parts}
    assert len(skips) > 1


@pytest.mark.parametrize(
    ("count", "chunk", "wanted"),
    [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (9, 4, 3), (9, 0, 1), (0, 0, 0)],
)
def test_how_many_chunks(count, chunk, wanted):
    assert chunks_of(Part(0, 1), 1, count, 1, chunk).num_chunks == wanted
