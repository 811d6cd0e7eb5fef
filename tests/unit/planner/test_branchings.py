"""Unit arborescences by Edmonds' theorem, unit trees by matroid partition."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import least_cut, machines, mesh_of, meshes, partition_bound, switches

from blinkrun.errors import InternalError
from blinkrun.planner import branchings
from blinkrun.planner.branchings import pack_branchings
from blinkrun.planner.certificate import total_price, tree_cost
from blinkrun.planner.forests import pack_forests
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow


def load(network, packed):
    total = Counter()
    for tree, rate in zip(packed.trees, packed.rates, strict=True):
        for at, times in network.use(tree.column).items():
            total[at] += times * rate
    return total


@settings(max_examples=30)
@given(meshes(), st.data())
def test_as_many_arborescences_as_the_least_cut(topology, data):
    network = network_of(topology, Flow.DOWN)
    root = data.draw(st.integers(0, network.size - 1))
    packed = pack_branchings(network, root, Fraction(0))
    assert packed.rate == packed.bound == least_cut(topology, root)
    assert all(load(network, packed)[at] <= c for at, c in enumerate(network.capacities))
    for tree in packed.trees:
        heads = {network.arcs[index].child for index in tree.column}
        assert heads == set(range(network.size)) - {root}
        assert all(parent != rank for rank, parent in enumerate(network.parents(tree.column, root)))
    assert tree_cost(network, root, packed.prices) >= 1
    assert total_price(packed.prices, network.capacities) == packed.bound


def test_the_unit_is_the_common_divisor_of_the_capacities():
    wide = mesh_of(2, {(0, 1): 46_000, (1, 0): 23_000})
    packed = pack_branchings(network_of(wide, Flow.DOWN), 0, Fraction(0))
    assert packed.rates == (46_000,)


def test_loss_leaves_out_the_deepest_trees():
    lanes = {(0, 1): 11, (1, 0): 10, (1, 2): 10, (2, 1): 10, (2, 0): 10, (0, 2): 10}
    network = network_of(mesh_of(3, lanes), Flow.DOWN)
    whole = pack_branchings(network, 0, Fraction(0))
    less = pack_branchings(network, 0, Fraction(1, 10))
    assert whole.bound * Fraction(9, 10) <= less.rate < whole.rate
    assert sum(tree.depth * rate for tree, rate in zip(less.trees, less.rates, strict=True)) < sum(
        tree.depth * rate for tree, rate in zip(whole.trees, whole.rates, strict=True)
    )


def test_many_units_are_left_to_the_linear_program():
    odd = mesh_of(2, {(0, 1): 101, (1, 0): 100})
    assert pack_branchings(network_of(odd, Flow.DOWN), 0, Fraction(0)) is None


@settings(max_examples=10)
@given(switches(min_size=3))
def test_shared_resources_are_left_to_the_linear_program(topology):
    assert pack_branchings(network_of(topology, Flow.DOWN), 0, Fraction(0)) is None


def test_growing_into_what_does_not_fit_is_our_own_error():
    with pytest.raises(InternalError, match="no arborescence from rank 0"):
        branchings._grow([[(1, 0)], []], 0, [1], [[0, 1], [0, 0]], 1)


@settings(max_examples=40)
@given(meshes(max_lanes=4), st.data())
def test_as_many_unit_trees_as_the_partition_bound(topology, data):
    network = network_of(topology, Flow.BOTH)
    most = int(partition_bound(topology))
    trees = pack_forests(network, network.capacities, most)
    assert len(trees) == most
    total = Counter()
    for tree in trees:
        assert len(tree) == network.size - 1
        assert -1 not in network.parents(tree, 0)[1:]
        total.update(network.use(tree))
    assert all(total[at] <= capacity for at, capacity in enumerate(network.capacities))
    assert pack_forests(network, network.capacities, most + 1) == []


@settings(max_examples=10)
@given(machines(max_size=4))
def test_separate_means_that_no_resource_has_two_takers(topology):
    takers = Counter(name for link in topology.links for name in link.resources)
    assert network_of(topology, Flow.DOWN).is_separate == (max(takers.values()) == 1)
