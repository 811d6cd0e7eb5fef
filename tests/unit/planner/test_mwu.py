"""Multiplicative weights: trees that fit, within epsilon of a bound that holds."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import machines, mesh_of

from blinkrun.errors import PlanError, UnreachableRankError, UsageError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.mwu import pack_mwu
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

FLOWS = [(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 1)]
DGX1V = machine("dgx-1v")
PAIR = mesh_of(2, {(0, 1): 1, (1, 0): 1})


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@pytest.mark.parametrize("epsilon", [Fraction(1, 3), Fraction(1, 8)])
@settings(max_examples=8)
@given(topology=machines(max_size=5))
def test_trees_fit_and_come_within_epsilon_of_a_bound_that_holds(topology, flow, root, epsilon):
    packing, certificate = pack_mwu(topology, flow, root, epsilon=epsilon)
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    # the loop looks at floating-point sums
    assert bound * (1 - epsilon) * (1 - Fraction(1, 10**9)) <= packing.rate <= bound


@pytest.mark.parametrize(("flow", "root", "best"), [(Flow.DOWN, 0, 6), (Flow.BOTH, None, 24 / 7)])
def test_closer_takes_more_trees(flow, root, best):
    few, _ = pack_mwu(DGX1V, flow, root, epsilon=Fraction(1, 4))
    many, _ = pack_mwu(DGX1V, flow, root, epsilon=Fraction(1, 20))
    assert len(many.trees) > 2 * len(few.trees)
    assert 0.75 * best <= few.rate < many.rate <= best


@pytest.mark.slow
def test_a_broadcast_on_eight_v100_takes_over_a_hundred_trees():
    packing, _ = pack_mwu(DGX1V, Flow.DOWN, 0, epsilon=Fraction(1, 50))
    assert 100 <= len(packing.trees) <= 200  # the paper's run has 181
    assert packing.rate >= 6 * Fraction(49, 50)


def test_equal_input_gives_equal_packings():
    assert pack_mwu(DGX1V, Flow.DOWN, 3) == pack_mwu(DGX1V, Flow.DOWN, 3)


def test_what_costs_nothing_for_its_width_still_counts():
    wide = mesh_of(3, {(0, 1): 10**12, (1, 0): 10**12, (1, 2): 1, (2, 1): 1})
    packing, certificate = pack_mwu(wide, Flow.BOTH)
    check_packing(wide, packing)
    assert check_certificate(wide, certificate) == packing.rate == 1


def test_nothing_is_proven_while_the_cheapest_tree_costs_nothing():
    lanes = {(0, 1): 10**12, (1, 2): 10**12, (0, 2): 1}
    mesh = mesh_of(3, lanes | {(b, a): count for (a, b), count in lanes.items()})
    packing, certificate = pack_mwu(mesh, Flow.BOTH)
    check_packing(mesh, packing)
    assert packing.rate >= Fraction(9, 10) * 10**12
    assert packing.rate <= check_certificate(mesh, certificate)


@pytest.mark.parametrize(
    ("topology", "flow", "root", "error", "text"),
    [
        (PAIR, Flow.ALL_DOWN, None, UsageError, "do not plan allgather"),
        (induce(DGX1V, [0, 1], [2]), Flow.BOTH, None, UsageError, "runs through relays"),
        (mesh_of(1, {}), Flow.BOTH, None, PlanError, "single rank"),
        (PAIR, Flow.BOTH, 0, PlanError, "allreduce from root 0"),
        (PAIR, Flow.DOWN, None, PlanError, "broadcast from root None"),
        (PAIR, Flow.DOWN, 2, PlanError, "broadcast from root 2 of 2 ranks"),
        (mesh_of(3, {(0, 1): 1, (1, 0): 1}), Flow.DOWN, 0, UnreachableRankError, "rank 2"),
    ],
)
def test_what_cannot_be_planned_is_refused(topology, flow, root, error, text):
    with pytest.raises(error, match=text):
        pack_mwu(topology, flow, root)


@pytest.mark.parametrize("epsilon", [Fraction(0), Fraction(1), Fraction(-1, 2)])
def test_epsilon_is_between_0_and_1(epsilon):
    with pytest.raises(PlanError, match="is not between 0 and 1"):
        pack_mwu(PAIR, Flow.BOTH, epsilon=epsilon)
