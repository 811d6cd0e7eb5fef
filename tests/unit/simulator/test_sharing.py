"""Fair sharing against its definition."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.simulator.sharing import SCALE, Sharing, components, max_min_rates, without_idle


@st.composite
def loads(draw):
    """Capacities, pipes over them, transfers in each."""
    capacities = draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    resource = st.integers(0, len(capacities) - 1)
    pipe = st.sets(resource, min_size=1, max_size=4).map(lambda each: tuple(sorted(each)))
    pipes = draw(st.lists(pipe, min_size=1, max_size=7))
    counts = draw(st.lists(st.integers(0, 4), min_size=len(pipes), max_size=len(pipes)).filter(any))
    return capacities, pipes, counts


@given(loads())
def test_every_transfer_has_a_full_resource_where_none_gets_more(case):
    """What makes rates max-min fair (Bertsekas and Gallager, section 6.5.2)."""
    capacities, pipes, counts = case
    rates = [Fraction(rate, SCALE) for rate in max_min_rates(*case)]
    slack = Fraction(sum(counts) * len(capacities), SCALE)  # roundings
    used = [
        sum(
            rate * count
            for rate, count, pipe in zip(rates, counts, pipes, strict=True)
            if at in pipe
        )
        for at in range(len(capacities))
    ]
    assert all(got <= limit for got, limit in zip(used, capacities, strict=True))
    for pipe, rate, count in zip(pipes, rates, counts, strict=True):
        assert (rate > 0) == (count > 0)
        if count:
            assert any(
                used[at] >= capacities[at] - slack
                and all(
                    other <= rate + slack
                    for other, way in zip(rates, pipes, strict=True)
                    if at in way
                )
                for at in pipe
            )


@given(loads())
def test_resources_that_are_left_out_change_nothing(case):
    capacities, pipes, counts = case
    needed = without_idle(capacities, pipes)
    assert all(needed)
    thin = max_min_rates(capacities, needed, counts)
    whole = max_min_rates(capacities, pipes, counts)
    assert all(abs(a - b) <= sum(counts) * 8 for a, b in zip(thin, whole, strict=True))


@given(loads())
def test_components_rate_by_themselves(case):
    capacities, pipes, counts = case
    whole = max_min_rates(capacities, pipes, counts)
    groups = components(pipes)
    assert sorted(number for group in groups for number in group) == list(range(len(pipes)))
    for group in groups:
        sharing = Sharing(capacities, [pipes[number] for number in group])
        got = sharing.rates(tuple(counts[number] for number in group))
        assert got == tuple(whole[number] for number in group)


@pytest.mark.parametrize("flows", range(1, 17))
def test_equal_shares_are_exact(flows):
    (rate,) = max_min_rates([7], [(0,)], [flows])
    assert rate * flows == 7 * SCALE


def test_a_port_that_only_narrower_wires_cross_is_left_out():
    assert without_idle([10, 5, 80], [(0, 2), (1, 2)]) == [(0,), (1,)]
    assert without_idle([10, 5, 14], [(0, 2), (1, 2)]) == [(0, 2), (1, 2)]
    assert without_idle([10, 10], [(0, 1)]) in ([(0,)], [(1,)])  # one of two equal ones stays
