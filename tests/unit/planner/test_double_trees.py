"""Double binary trees: the properties that their authors prove, and rates behind switches."""

from fractions import Fraction

import pytest
from hypothesis import given
from support.topologies import mesh_of, switches

from blinkrun.errors import PlanError
from blinkrun.planner.double_trees import binary_pair, double_trees
from blinkrun.planner.packing import Flow
from blinkrun.planner.plan import PlannedTree
from blinkrun.planner.rings import ring_peer
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce

SIZES = range(2, 130)


@pytest.mark.parametrize("size", SIZES)
def test_no_rank_is_inner_in_both_trees_and_all_are_shallow(size):
    trees = [PlannedTree(each.index(-1), each, 0, 1) for each in binary_pair(size)]
    inner = [{rank for rank in range(size) if tree.children(rank)} for tree in trees]
    assert not inner[0] & inner[1]
    for tree in trees:
        assert max(len(tree.children(rank)) for rank in range(size)) <= 2
        assert tree.depth <= size.bit_length()


@given(switches())
def test_each_tree_has_half_of_the_data_at_the_rate_that_ports_allow(topology):
    packing = double_trees(topology)
    assert [(tree.start, tree.stop) for tree in packing.trees] == [(0, 1), (1, 2)]
    # a port carries its rank's edges in both trees: at most three and one
    ports = {resource.name: resource.capacity for resource in topology.resources}
    busy = {
        f"port {rank} {way}": sum(
            len(tree.children(rank)) + (tree.parents[rank] >= 0) for tree in packing.trees
        )
        for rank in range(topology.size)
        for way in ("in", "out")
    }
    assert packing.rate == min(Fraction(2 * ports[name], times) for name, times in busy.items())


def test_they_are_nearly_as_fast_as_rings_on_a_dgx_2():
    dgx2 = machine("dgx-2", "all")
    packing = double_trees(dgx2)
    assert packing.rate == 3 * 23_000
    assert packing.rate < ring_peer(dgx2, Flow.BOTH).rate <= packing.bound
    assert packing.depth == 4
    kinds = {kind for tree in packing.trees for kind in (*tree.up, *tree.down)}
    assert kinds == {"", "nvswitch"}


def test_of_parallel_links_the_widest_is_taken():
    pair = Topology(
        name="pair",
        devices=(0, 1),
        links=tuple(
            Link(*ends, (f"{name} {ends[0]}",), LinkKind.NVLINK)
            for ends in ((0, 1), (1, 0))
            for name in ("a", "b", "c")
        ),
        resources=tuple(
            Resource(f"{name} {rank}", width)
            for rank in (0, 1)
            for name, width in (("a", 2), ("b", 5), ("c", 1))
        ),
        unit="MB/s",
    )
    assert double_trees(pair).rate == 5


def test_a_missing_link_is_named():
    with pytest.raises(PlanError, match=r"need a link 1->0|need a link 0->1"):
        double_trees(mesh_of(3, {(1, 2): 1, (2, 1): 1, (0, 2): 1, (2, 0): 1}))
    with pytest.raises(PlanError, match="single rank"):
        double_trees(induce(machine("dgx-2"), [0]))
