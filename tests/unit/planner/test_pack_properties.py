"""Packings of random machines: valid, optimal, certified; against brute force and networkx."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import (
    best_rate,
    doubled,
    least_cut,
    machines,
    mesh_of,
    meshes,
    mixed,
    partition_bound,
    pcie_trees,
    relayed,
    switches,
)

from blinkrun.errors import PlanError, UnreachableRankError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.solve import pack

FLOWS = [
    (Flow.BOTH, None),
    (Flow.DOWN, 0),
    (Flow.UP, 1),
    (Flow.ALL_DOWN, None),
    (Flow.ALL_UP, None),
]


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@pytest.mark.parametrize("loss", [Fraction(0), Fraction(1, 20), Fraction(1, 3)])
@settings(max_examples=10)
@given(topology=machines(max_size=5))
def test_packing_fits_and_keeps_the_wanted_part_of_the_certified_bound(topology, flow, root, loss):
    packing, certificate = pack(topology, flow, root, loss=loss)
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    assert bound * (1 - loss) <= packing.rate <= bound
    assert loss or packing.rate == bound
    assert {tree.root for tree in packing.trees} <= set(range(topology.size))


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=6)
@given(topology=machines(max_size=5), data=st.data())
def test_nothing_is_given_up_below_the_floor(topology, flow, root, data):
    best, certificate = pack(topology, flow, root, loss=Fraction(0))
    bound = check_certificate(topology, certificate)
    floor = bound * data.draw(st.fractions(0, 2, max_denominator=7))
    packing, _ = pack(topology, flow, root, loss=Fraction(1, 2), floor=floor)
    check_packing(topology, packing)
    assert max(bound / 2, min(floor, bound)) <= packing.rate <= best.rate == bound


@settings(max_examples=12)
@given(meshes())
def test_allreduce_on_a_mesh_reaches_the_partition_bound(topology):
    packing, _ = pack(topology, Flow.BOTH, loss=Fraction(0))
    assert packing.rate == partition_bound(topology)


@settings(max_examples=20)
@given(meshes(), st.data())
def test_broadcast_and_reduce_on_a_mesh_reach_the_least_cut(topology, data):
    root = data.draw(st.integers(0, topology.size - 1))
    down, _ = pack(topology, Flow.DOWN, root, loss=Fraction(0))
    up, _ = pack(topology, Flow.UP, root, loss=Fraction(0))
    assert down.rate == least_cut(topology, root)
    assert up.rate == least_cut(topology, root, to_root=True)


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=8)
@given(
    topology=switches(max_size=4)
    | pcie_trees(max_size=4)
    | doubled(meshes(max_size=3))
    | mixed(max_size=3)
    | relayed(max_size=4),
)
def test_rate_equals_that_of_all_trees_listed_one_by_one(topology, flow, root):
    packing, _ = pack(topology, flow, root, loss=Fraction(0))
    assert float(packing.rate) == pytest.approx(best_rate(topology, flow, root), rel=1e-7)


@settings(max_examples=15)
@given(meshes())
def test_trees_of_broadcast_on_a_mesh_number_at_most_the_cut(topology):
    packing, _ = pack(topology, Flow.DOWN, 0)
    assert len(packing.trees) <= least_cut(topology, 0)


@settings(max_examples=3)
@given(machines(max_size=5))
def test_equal_input_gives_equal_packings(topology):
    for flow, root in FLOWS:
        assert pack(topology, flow, root) == pack(topology, flow, root)


@pytest.mark.parametrize(
    ("flow", "root", "lanes", "found"),
    [
        (Flow.BOTH, None, {(0, 1): 1, (1, 2): 1, (2, 0): 1}, (0, 1)),  # a one-way ring
        (Flow.DOWN, 0, {(0, 1): 1, (2, 0): 1}, (0, 2)),
        (Flow.UP, 2, {(2, 0): 1, (1, 2): 1}, (2, 0)),
        (Flow.ALL_DOWN, None, {(0, 1): 1, (1, 2): 1}, (1, 0)),
        (Flow.ALL_UP, None, {(0, 1): 1, (1, 2): 1}, (0, 1)),
    ],
)
def test_a_rank_that_links_do_not_reach_is_named(flow, root, lanes, found):
    with pytest.raises(UnreachableRankError) as error:
        pack(mesh_of(3, lanes), flow, root)
    assert (error.value.root, error.value.rank) == found


@pytest.mark.parametrize(
    ("flow", "root", "loss", "text"),
    [
        (Flow.BOTH, 0, Fraction(0), "allreduce from root 0 of 2 ranks"),
        (Flow.DOWN, None, Fraction(0), "broadcast from root None"),
        (Flow.UP, 2, Fraction(0), "reduce from root 2 of 2 ranks"),
        (Flow.ALL_DOWN, 0, Fraction(0), "allgather from root 0 of 2 ranks"),
        (Flow.BOTH, None, Fraction(1), "loss 1 is not in"),
        (Flow.BOTH, None, Fraction(-1, 2), "loss -1/2 is not in"),
    ],
)
def test_contradicting_arguments_are_refused(flow, root, loss, text):
    with pytest.raises(PlanError, match=text):
        pack(mesh_of(2, {(0, 1): 1, (1, 0): 1}), flow, root, loss=loss)


def test_a_single_rank_needs_no_trees():
    with pytest.raises(PlanError, match="single rank"):
        pack(mesh_of(1, {}), Flow.BOTH)
