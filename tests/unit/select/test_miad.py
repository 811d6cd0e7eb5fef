"""MIAD: it always settles, close to the best size, and noise does not mislead it."""

from fractions import Fraction
from itertools import cycle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import UsageError
from blinkrun.schedule.chunking import ALIGN_BYTES
from blinkrun.select.miad import Miad, Phase

LEAST, MOST = 4 << 10, 64 << 20
NOISE = Fraction(1, 20)
WIDE = 2 * NOISE / (1 - NOISE)  # as the rule asks for with that much noise


def pipeline_ns(chunk, *, size, hops, step_ns, rate):
    """Chunks of `size` bytes through `hops` hops, each taking a step and the transfer."""
    return int((size / chunk + hops - 1) * (chunk / rate + step_ns))


def settle(state, time_ns):
    """Feed `time_ns(chunk)` until settled; give the final state and the number of records."""
    records = 0
    while not state.is_settled:
        state = state.record(time_ns(state.chunk_bytes))
        records += 1
        assert records <= state.most_records
    return state, records


pipelines = st.fixed_dictionaries(
    {
        "size": st.integers(10**4, 10**9),
        "hops": st.integers(1, 16),
        "step_ns": st.integers(100, 10**6),
        "rate": st.integers(1, 200),
    }
)


@given(
    times=st.lists(st.integers(0, 100), min_size=1, max_size=200),
    factor=st.integers(2, 8),
    samples=st.integers(1, 5),
    tolerance=st.fractions(0, 1),
    least=st.integers(1, 50),
    wider=st.integers(0, 10**6),
)
def test_it_settles_whatever_the_times_are(times, factor, samples, tolerance, least, wider):
    lines = least * ALIGN_BYTES, (least + wider) * ALIGN_BYTES
    state = Miad(*lines, factor=factor, samples=samples, tolerance=tolerance)
    given_times = cycle(times)
    final, records = settle(state, lambda chunk: next(given_times))
    assert records == samples * len(final.tried)
    sizes = [chunk for chunk, _ in final.tried]
    assert len(set(sizes)) == len(sizes)  # no size is tried twice
    assert all(lines[0] <= size <= lines[1] and size % ALIGN_BYTES == 0 for size in sizes)
    assert (final.chunk_bytes, min(time for _, time in final.tried)) == final.best
    assert final.record(0) is final


@given(curve=pipelines, factor=st.integers(2, 4))
def test_of_a_pipeline_it_ends_within_the_stated_factor(curve, factor):
    state = Miad(LEAST, MOST, factor=factor)
    final, _ = settle(state, lambda chunk: pipeline_ns(chunk, **curve))
    reach = [LEAST * 2**power for power in range(20) if LEAST * 2**power <= MOST // factor]
    least_ns = min(pipeline_ns(chunk, **curve) for chunk in reach)
    assert pipeline_ns(final.chunk_bytes, **curve) <= factor**0.5 * (least_ns + 1)


@given(curve=pipelines, seed=st.integers(0, 10**6), samples=st.sampled_from([1, 3]))
def test_noise_costs_no_more_than_itself(curve, seed, samples):
    noise = Random(seed)

    def noisy(chunk):
        return int(pipeline_ns(chunk, **curve) * noise.uniform(1 - float(NOISE), 1 + float(NOISE)))

    state = Miad(LEAST, MOST, samples=samples, tolerance=WIDE)
    final, _ = settle(state, noisy)
    reach = [LEAST * 2**power // 4 for power in range(2, 18) if LEAST * 2**power // 4 <= MOST]
    least_ns = min(pipeline_ns(chunk, **curve) for chunk in reach)
    allowed = 2**0.5 * float((1 + NOISE) / (1 - NOISE)) * (least_ns + 2)
    assert pipeline_ns(final.chunk_bytes, **curve) <= allowed


@given(optimum=st.integers(1, 1000), low=st.integers(1, 9), high=st.integers(1, 9))
def test_of_any_valley_it_keeps_the_best_tried_next_to_the_bottom(optimum, low, high):
    def valley(chunk):
        lines = chunk // ALIGN_BYTES
        return low * (optimum - lines) if lines <= optimum else high * (lines - optimum)

    final, _ = settle(Miad(ALIGN_BYTES, 1024 * ALIGN_BYTES), valley)
    lines = final.chunk_bytes // ALIGN_BYTES
    assert optimum / 2 <= lines <= 2 * optimum
    ladder = [2**power * ALIGN_BYTES for power in range(11)]
    assert valley(final.chunk_bytes) <= min(map(valley, ladder))


def test_the_way_down_finds_what_the_ladder_steps_over():
    final, _ = settle(Miad(64, 64 << 10), lambda chunk: abs(chunk - 1600))
    assert final.chunk_bytes == 1536
    sizes = [size for size, _ in final.tried]
    assert sizes == [64, 128, 256, 512, 1024, 2048, 4096, 3584, 3072, 2560, 1536]


def test_a_single_outlier_is_outvoted():
    state = Miad(64, 256, samples=3)
    for time in (10, 10**9, 12):
        assert (state.chunk_bytes, state.phase) == (64, Phase.INCREASE)
        state = state.record(time)
    assert state.tried == ((64, 12),)
    assert state.chunk_bytes == 128


@pytest.mark.parametrize(
    ("bounds", "more"),
    [
        ((0, 64), {}),
        ((128, 64), {}),
        ((65, 128), {}),
        ((64, 100), {}),
        ((64, 64), {"factor": 1}),
        ((64, 64), {"samples": 0}),
        ((64, 64), {"tolerance": Fraction(-1)}),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds, more):
    with pytest.raises(UsageError):
        Miad(*bounds, **more)


def test_no_time_is_negative():
    with pytest.raises(UsageError, match="-1 ns"):
        Miad(64, 64).record(-1)
