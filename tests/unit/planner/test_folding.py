"""Symmetry that folds linear programs: renamings that are ones, and everything that they move."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import host_of, machines, mesh_of

from blinkrun.planner import folding as folding_module
from blinkrun.planner import solve
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.folding import folding_of
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.seeds import shallow_trees
from blinkrun.planner.solve import pack
from blinkrun.planner.symmetry import is_symmetry
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce


def assert_holds(topology, root):
    folding = folding_of(topology, root)
    if folding is None:
        return
    assert len(set(folding.turns)) == len(folding.turns) > 1
    capacity = [resource.capacity for resource in topology.resources]
    for ranks in folding.turns:
        assert is_symmetry(folding.shape, ranks)
        assert root is None or ranks[root] == root
        assert all(folding.ranks[rank] == folding.ranks[to] for rank, to in enumerate(ranks))
    for at, first in enumerate(folding.resources):
        assert capacity[at] == capacity[first]
        assert folding.resources[first] == first


@settings(max_examples=15)
@given(machines(max_size=5), st.booleans())
def test_every_turn_takes_the_machine_to_itself(topology, rooted):
    assert_holds(topology, 0 if rooted else None)


@pytest.mark.parametrize("root", [None, 5])
def test_hosts_and_the_gpus_in_them_are_turned(root):
    rack = induce(machine("gb200-nvl72", "all"), range(12))
    assert_holds(rack, root)
    folding = folding_of(rack, root)
    assert len(folding.turns) == (12 if root is None else 16)
    assert len(set(folding.ranks)) == (1 if root is None else 4)


@pytest.mark.parametrize("flow", [Flow.BOTH, Flow.ALL_DOWN])
def test_turned_trees_load_alike_what_is_alike(flow):
    topology = cpu_topology(host_of(2, 4), 8)
    network = network_of(topology, flow)
    folding = folding_of(topology, None)
    one = shallow_trees(network, None)[0].column
    turned = folding.turned(network, {one: Fraction(1)})
    assert sum(turned.values()) == 1
    loads = [Fraction(0)] * len(network.capacities)
    for column, rate in turned.items():
        for at, times in network.use(column).items():
            loads[at] += times * rate
    for at, first in enumerate(folding.resources):
        assert loads[at] == loads[first]


def test_what_is_lopsided_is_not_folded():
    assert folding_of(mesh_of(3, {(0, 1): 1, (1, 0): 1, (1, 2): 2, (2, 1): 1}), None) is None


def test_too_many_turns_are_not_made(monkeypatch):
    monkeypatch.setattr(folding_module, "_MAX_TURNS", 3)
    assert folding_of(machine("dgx-2"), None) is None


@pytest.mark.parametrize(("flow", "root"), [(Flow.BOTH, None), (Flow.UP, 3), (Flow.ALL_DOWN, None)])
@pytest.mark.parametrize("loss", [Fraction(0), Fraction(1, 20)])
def test_large_machines_are_packed_at_their_optimum(flow, root, loss):
    topology = induce(machine("dgx-2", "all"), range(10))
    packing, certificate = pack(topology, flow, root, loss=loss)
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    assert packing.rate >= bound * (1 - loss)


def test_a_program_is_taken_at_once_where_there_are_many_ranks(monkeypatch):
    topology = machine("pcie-8", "all")
    few, _ = pack(topology, Flow.ALL_DOWN, loss=Fraction(0))
    monkeypatch.setattr(solve, "_MANY_RANKS", 2)
    program, _ = pack(topology, Flow.ALL_DOWN, loss=Fraction(0))
    assert program.rate == few.rate
