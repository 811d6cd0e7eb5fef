"""Whole-number trees of the part of a machine in which nothing is shared."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import least_cut, machines, mesh_of, meshes, partition_bound

from blinkrun.planner import whole
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.planner.whole import separate_part, whole_trees
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce


def prices_of(topology, flow, root):
    """The certificate's, one per resource."""
    found = dict(pack(topology, flow, root, loss=Fraction(0))[1].prices)
    return [found.get(resource.name, Fraction(0)) for resource in topology.resources]


@settings(max_examples=30)
@given(machines(), st.sampled_from([Flow.BOTH, Flow.DOWN, Flow.UP]))
def test_the_arcs_of_the_separate_part_share_nothing(topology, flow):
    network = network_of(topology, flow)
    part, arcs, resources = separate_part(network)
    assert part.is_separate
    assert len(part.arcs) == len(arcs) > 0
    for index, arc in zip(arcs, part.arcs, strict=True):
        original = network.arcs[index]
        assert (arc.parent, arc.child, arc.links) == (
            original.parent,
            original.child,
            original.links,
        )
        assert tuple((resources[at], times) for at, times in arc.use) == original.use
    assert part.capacities == tuple(network.capacities[at] for at in resources)


@settings(max_examples=20)
@given(meshes(max_size=5), st.integers(1, 4))
def test_whole_trees_of_a_mesh_reach_any_rate_that_shares_can(topology, shares):
    network = network_of(topology, Flow.BOTH)
    target = Fraction(int(partition_bound(topology) * shares), shares)
    if target:
        trees = whole_trees(network, None, prices_of(topology, Flow.BOTH, None), target)
        assert trees
        for column in trees:
            assert len(column) == network.size - 1
            assert -1 not in network.parents(column, 0)[1:]


@settings(max_examples=20)
@given(meshes(max_size=5), st.sampled_from([Flow.DOWN, Flow.UP]))
def test_unit_arborescences_of_a_mesh_reach_its_cut_and_no_more(topology, flow):
    network = network_of(topology, flow)
    prices = prices_of(topology, flow, 0)
    cut = Fraction(least_cut(topology, 0, to_root=flow is Flow.UP))
    trees = whole_trees(network, 0, prices, cut)
    assert 0 < len(trees) <= cut
    assert all(network.root_of(column) == 0 for column in trees)
    assert whole_trees(network, 0, prices, cut + 1) == []


def test_nvlink_beside_pcie_gives_six_unit_trees():
    topology = machine("dgx-1v", "all")
    packing, _ = pack(topology, Flow.DOWN, 0)
    assert len(packing.trees) <= 6
    kinds = Counter(
        topology.links[link].kind.value
        for tree in packing.trees
        for edge in tree.edges
        for link in edge.links
    )
    assert set(kinds) == {"nvlink"}


def test_a_part_that_joins_not_all_gives_nothing():
    topology = induce(machine("dgx-1v", "all"), (0, 1, 6, 7))
    network = network_of(topology, Flow.DOWN)
    assert whole_trees(network, 0, prices_of(topology, Flow.DOWN, 0), Fraction(1)) == []


@pytest.mark.parametrize(("flow", "root"), [(Flow.BOTH, None), (Flow.DOWN, 0)])
def test_more_trees_than_anyone_wants_are_not_made(monkeypatch, flow, root):
    monkeypatch.setattr(whole, "_MAX_SHARES", 2)
    odd = mesh_of(3, {(a, b): 101 + a + b for a in range(3) for b in range(3) if a != b})
    prices = prices_of(odd, flow, root)
    bound = pack(odd, flow, root, loss=Fraction(0))[0].rate
    assert whole_trees(network_of(odd, flow), root, prices, bound) == []
