"""The widest single ring, against trying all orders."""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.planner.ring_order import Hops, best_ring
from blinkrun.topology.graph import Link, LinkKind


@st.composite
def hops(draw, min_size=2, max_size=6):
    """Some of the hops between a few ranks; each takes its own wire and maybe something shared."""
    size = draw(st.integers(min_size, max_size))
    capacity = {f"shared {at}": draw(st.integers(1, 12)) for at in range(2)}
    links = {}
    for pair in permutations(range(size), 2):
        if draw(st.integers(0, 4)):
            shared = draw(st.sets(st.sampled_from(["shared 0", "shared 1"])))
            own = f"wire {pair}"
            capacity[own] = draw(st.integers(1, 6))
            links[pair] = Link(*pair, (own, *sorted(shared)), LinkKind.PCIE)
    return Hops(size, links, capacity)


@settings(max_examples=40)
@given(hops(max_size=5))
def test_no_order_is_wider(case):
    order, width, is_exact = best_ring(case)
    every = [case.width((0, *others)) for others in permutations(range(1, case.size))]
    assert (width, is_exact) == (max(every), True)
    assert width <= case.bound()
    assert case.width(order) == width if order else width == 0


@settings(max_examples=5)
@given(hops(min_size=9, max_size=9))
def test_large_rings_are_real_and_say_whether_they_are_the_widest(case):
    order, width, is_exact = best_ring(case)
    if order:
        assert sorted(order) == list(range(case.size))
        assert case.width(order) == width <= case.bound()
    assert is_exact is (width == case.bound())


def grid(width_of):
    """Ten ranks, all linked; `width_of` says how wide each hop is."""
    pairs = list(permutations(range(10), 2))
    return Hops(
        size=10,
        links={pair: Link(*pair, (f"{pair}",), LinkKind.PCIE) for pair in pairs},
        capacity={f"{pair}": width_of(*pair) for pair in pairs},
    )


def test_turning_parts_round_mends_what_growing_misses():
    """Growing takes 5, 9 and 1 first and must then cross back over a narrow hop."""
    wide = {frozenset(pair) for pair in zip(range(10), (*range(1, 10), 0), strict=True)}
    lure = {frozenset((at, (at + 5) % 10)) for at in range(5)}
    case = grid(
        lambda a, b: 9 if frozenset((a, b)) in lure else 8 if frozenset((a, b)) in wide else 1
    )
    order, width, is_exact = best_ring(case)
    assert case.width(order) == width
    assert (width, is_exact) == (8, True)


def test_what_growing_does_not_find_is_searched():
    """The only ring, 0 3 2 1, starts over the narrowest hop of all."""
    widths = {
        (0, 2): 2,
        (0, 3): 1,
        (1, 0): 2,
        (1, 2): 3,
        (2, 0): 4,
        (2, 1): 3,
        (2, 3): 4,
        (3, 0): 2,
        (3, 2): 2,
    }
    links = {pair: Link(*pair, (f"{pair}",), LinkKind.PCIE) for pair in widths}
    case = Hops(4, links, {f"{pair}": width for pair, width in widths.items()})
    assert best_ring(case) == ((0, 3, 2, 1), 1, True)


@pytest.mark.parametrize("size", [2, 5, 12])
def test_equal_hops_are_walked_in_order(size):
    pairs = list(permutations(range(size), 2))
    case = Hops(
        size, {p: Link(*p, (f"{p}",), LinkKind.PCIE) for p in pairs}, {f"{p}": 7 for p in pairs}
    )
    assert best_ring(case) == (tuple(range(size)), Fraction(7), True)
