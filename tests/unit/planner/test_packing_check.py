"""The exact checks refuse whatever is wrong, and say what."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines, mesh_of

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, check_packing, fastest_rate
from blinkrun.planner.solve import pack

# links by index: 0: 0->1, 1: 0->2, 2: 1->0, 3: 1->2, 4: 2->0, 5: 2->1
TRIANGLE = mesh_of(3, {(a, b): 2 for a in range(3) for b in range(3) if a != b})
STAR = Tree(0, (Edge(0, 1, (0,)), Edge(0, 2, (1,))))
GOOD = Packing(Flow.DOWN, 0, (STAR,), (Fraction(2),))


def star(*edges, root=0):
    return replace(GOOD, trees=(Tree(root, edges),))


@pytest.mark.parametrize(
    ("packing", "text"),
    [
        (replace(GOOD, rates=()), "1 trees have 0 rates"),
        (replace(GOOD, root=None), "broadcast packing has root None"),
        (replace(GOOD, flow=Flow.BOTH), "allreduce packing has root 0"),
        (replace(GOOD, rates=(Fraction(0),)), "rate 0 is not positive"),
        (replace(GOOD, rates=(Fraction(5, 2),)), r"\(0, 1\)' carries 5/2 lane, its capacity is 2"),
        (replace(GOOD, root=1), "tree 0 at root 0: the packing's root is 1"),
        (replace(star(root=3), root=3), "there are 3 ranks"),
        (star(Edge(0, 1, (0,))), "1 edges, 3 ranks"),
        (star(Edge(1, 2, (3,)), Edge(2, 1, (5,))), "edge 1->2 hangs loose"),
        (star(Edge(0, 1, (0,)), Edge(0, 1, (0,))), "rank 1 has two parents"),
        (star(Edge(0, 1, (0,)), Edge(1, 0, (2,))), "rank 0 has two parents"),
        (star(Edge(0, 1, (0,)), Edge(0, 2, (9,))), "there is no link 9"),
        (star(Edge(0, 1, (0,)), Edge(0, 2, (-1,))), "there is no link -1"),
        (star(Edge(0, 1, (0,)), Edge(0, 2, (0,))), r"edge 0->2 takes links \[\(0, 1\)\]"),
        (star(Edge(0, 1, (0, 2)), Edge(0, 2, (1,))), "edge 0->1 takes links"),
        (star(Edge(0, 1, ()), Edge(0, 2, (1,))), r"edge 0->1 takes links \[\]"),
    ],
)
def test_packings_that_cannot_be_carried_out_are_refused(packing, text):
    check_packing(TRIANGLE, GOOD)
    with pytest.raises(PlanError, match=text):
        check_packing(TRIANGLE, packing)


@settings(max_examples=15)
@given(machines(max_size=5), st.sampled_from([(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 0)]))
def test_a_packing_fits_up_to_its_fastest_rate_and_not_beyond(topology, case):
    packing, _ = pack(topology, *case)
    faster = fastest_rate(topology, packing) / packing.rate
    assert faster >= 1
    check_packing(topology, replace(packing, rates=tuple(r * faster for r in packing.rates)))
    beyond = faster * Fraction(1_000_001, 1_000_000)
    with pytest.raises(PlanError, match="its capacity is"):
        check_packing(topology, replace(packing, rates=tuple(r * beyond for r in packing.rates)))


THREE_STARS = Packing(
    Flow.ALL_DOWN,
    None,
    tuple(
        Tree(root, tuple(Edge(root, rank, (2 * root + at,)) for at, rank in enumerate(others)))
        for root, others in enumerate([(1, 2), (0, 2), (0, 1)])
    ),
    (Fraction(2),) * 3,
)


@pytest.mark.parametrize(
    ("packing", "text"),
    [
        (replace(THREE_STARS, root=0), "allgather packing has root 0"),
        (
            replace(THREE_STARS, trees=THREE_STARS.trees[:2], rates=THREE_STARS.rates[:2]),
            "no tree has rank 2 for its root",
        ),
        (
            replace(THREE_STARS, rates=(Fraction(2), Fraction(1), Fraction(2))),
            "the trees at root 1 have rate 1 lane, those at root 0 2",
        ),
    ],
)
def test_roots_without_their_equal_part_are_refused(packing, text):
    check_packing(TRIANGLE, THREE_STARS)
    with pytest.raises(PlanError, match=text):
        check_packing(TRIANGLE, packing)


def test_a_joint_certificate_counts_the_mean_of_the_roots():
    into_two = (("wire (0, 2)", Fraction(1)), ("wire (1, 2)", Fraction(1)))
    wires = (*into_two, ("wire (0, 1)", Fraction(1, 2)), ("wire (2, 1)", Fraction(1, 2)))
    # from 0 and 1 a tree costs 1.5 and 1, from 2 only a half
    assert check_certificate(TRIANGLE, Certificate(Flow.ALL_DOWN, None, wires)) == 6
    with pytest.raises(PlanError, match="a tree costs 2/3"):
        check_certificate(TRIANGLE, Certificate(Flow.ALL_DOWN, None, into_two))


def cut(price, name="wire (0, 1)"):
    prices = ((name, price), ("wire (2, 1)", Fraction(1)))
    return Certificate(Flow.DOWN, 0, prices)


def test_the_wires_into_a_rank_certify_its_cut():
    assert check_certificate(TRIANGLE, cut(Fraction(1))) == 4


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        (cut(Fraction(999, 1000)), "a tree costs 999/1000, less than 1"),
        (cut(Fraction(-1)), "at -1, less than 0"),
        (cut(Fraction(1), "wire (7, 8)"), r"prices 'wire \(7, 8\)', which mesh has not"),
        (Certificate(Flow.UP, 0, ()), "a tree costs 0"),
    ],
)
def test_prices_that_prove_nothing_are_refused(certificate, text):
    with pytest.raises(PlanError, match=text):
        check_certificate(TRIANGLE, certificate)


@settings(max_examples=15)
@given(machines(max_size=5), st.sampled_from([(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 0)]))
def test_no_price_of_a_certificate_can_be_lowered_much(topology, case):
    """A bound that equals the rate is tight: prices a little lower would prove the impossible."""
    packing, certificate = pack(topology, *case, loss=Fraction(0))
    assert check_certificate(topology, certificate) == packing.rate
    lower = tuple((name, price * Fraction(999, 1000)) for name, price in certificate.prices)
    with pytest.raises(PlanError, match="less than 1"):
        check_certificate(topology, replace(certificate, prices=lower))
