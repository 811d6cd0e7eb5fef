"""Edmonds' algorithm on vectors against the one on lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines

from blinkrun.planner import spanning
from blinkrun.planner.arborescence import cheapest_arborescence
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.topology.catalog import machine


@settings(max_examples=40)
@given(machines(), st.data())
def test_both_find_trees_of_the_same_cost(topology, data):
    network = network_of(topology, data.draw(st.sampled_from([Flow.DOWN, Flow.UP])))
    price = st.integers(0, 4) | st.integers(0, 10**9)
    weights = [data.draw(price) for _ in network.arcs]
    root = data.draw(st.integers(0, network.size - 1))
    order = data.draw(st.permutations(range(len(network.arcs))))
    column = cheapest_arborescence(network, root, weights, order)
    assert {network.arcs[index].child for index in column} == set(range(network.size)) - {root}
    assert len(column) == network.size - 1
    assert max(network.parents(column, root)) >= 0
    wanted = cheapest_tree(network, root, weights)
    assert sum(weights[arc] for arc in column) == sum(weights[arc] for arc in wanted)


def test_equally_cheap_arcs_are_taken_in_the_given_order():
    network = network_of(machine("dgx-2"), Flow.DOWN)
    free = [0] * len(network.arcs)
    star = cheapest_arborescence(
        network, 3, free, sorted(range(240), key=lambda at: (network.arcs[at].parent != 3, at))
    )
    assert {network.arcs[index].parent for index in star} == {3}


@pytest.mark.parametrize("most", [0, 2**48])
def test_large_networks_take_the_quick_way_unless_weights_are_too_long(monkeypatch, most):
    network = network_of(machine("gb200-nvl72"), Flow.DOWN)
    weights = [1 + (arc.parent * 7 + arc.child * 3) % 11 for arc in network.arcs]
    quick = cheapest_tree(network, 0, weights)
    monkeypatch.setattr(spanning, "_MAX_WEIGHT", most)
    other = cheapest_tree(network, 0, weights)
    assert sum(weights[at] for at in quick) == sum(weights[at] for at in other)
