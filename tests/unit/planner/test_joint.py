"""Allgather and reducescatter: trees of all roots share the links, and no root gets less."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import host_of, machines, mesh_of, meshes, mixed, switches

from blinkrun.errors import UnreachableRankError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.make import in_shares, make_plan
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce

EXACT = Fraction(0)
JOINT = [Flow.ALL_DOWN, Flow.ALL_UP]


def forest_bound(topology, flow):
    """What a point-to-point machine allows, by trying every set of ranks (Edmonds 1973).

    Into a set run the blocks of all ranks outside it; its wires inwards must carry them.
    """
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    size = topology.size
    bounds = []
    for count in range(1, size):
        for inside in combinations(range(size), count):
            ends = ("dst", "src") if flow is Flow.ALL_DOWN else ("src", "dst")
            wires = sum(
                capacity[link.resources[0]]
                for link in topology.links
                if getattr(link, ends[0]) in inside and getattr(link, ends[1]) not in inside
            )
            bounds.append(Fraction(wires * size, size - count))
    return min(bounds)


@pytest.mark.parametrize("flow", JOINT)
@settings(max_examples=8)
@given(topology=meshes(max_size=5))
def test_the_rate_on_a_mesh_is_that_of_its_tightest_set(flow, topology):
    packing, certificate = pack(topology, flow, loss=EXACT)
    check_packing(topology, packing)
    assert packing.rate == check_certificate(topology, certificate) == forest_bound(topology, flow)


@pytest.mark.parametrize("flow", JOINT)
@pytest.mark.parametrize("loss", [EXACT, Fraction(1, 10)])
@settings(max_examples=10)
@given(topology=machines(max_size=5))
def test_every_root_has_the_same_rate(flow, loss, topology):
    packing, _ = pack(topology, flow, loss=loss)
    totals = packing.rates_by_root()
    assert totals == dict.fromkeys(range(topology.size), packing.rate / topology.size)


@settings(max_examples=6)
@given(switches(max_size=5) | mixed(max_size=4))
def test_one_root_alone_is_at_least_as_fast(topology):
    together, _ = pack(topology, Flow.ALL_DOWN, loss=EXACT)
    for root in range(topology.size):
        alone, _ = pack(topology, Flow.DOWN, root, loss=EXACT)
        assert together.rate / topology.size <= alone.rate
    # and all of them in turn are no faster than together
    rates = [pack(topology, Flow.DOWN, root, loss=EXACT)[0].rate for root in range(topology.size)]
    in_turn = topology.size / sum(1 / rate for rate in rates)
    assert together.rate >= in_turn


@pytest.mark.parametrize(
    ("topology", "rate"),
    [
        (machine("dgx-1v"), Fraction(48, 7)),
        (machine("dgx-1p"), Fraction(32, 7)),
        (induce(machine("dgx-1v"), [0, 1, 4]), Fraction(3, 2)),
        (machine("dgx-2"), Fraction(32, 5)),
    ],
    ids=["dgx-1v", "dgx-1p", "dgx-1v-014", "dgx-2"],
)
@pytest.mark.parametrize("flow", JOINT)
def test_optima_of_whole_machines(topology, rate, flow):
    packing, certificate = pack(topology, flow, loss=EXACT)
    check_packing(topology, packing)
    assert packing.rate == check_certificate(topology, certificate) == rate


@pytest.mark.parametrize(
    "topology",
    [machine("dgx-2"), cpu_topology(host_of(1, 4), 5), machine("mi300x-8")],
    ids=["switch", "socket", "full mesh"],
)
@pytest.mark.parametrize("flow", JOINT)
def test_where_all_are_neighbours_every_root_has_a_star(topology, flow):
    packing, _ = pack(topology, flow)
    assert [tree.root for tree in packing.trees] == list(range(topology.size))
    assert all({edge.parent for edge in tree.edges} == {tree.root} for tree in packing.trees)


def test_few_trees_of_a_dgx1():
    for name, trees in (("dgx-1v", 20), ("dgx-1p", 20)):
        packing, _ = pack(machine(name), Flow.ALL_DOWN)
        assert len(packing.trees) <= trees  # eight broadcasts by themselves take 48 and 32


def test_a_root_that_cannot_reach_all_is_named():
    with pytest.raises(UnreachableRankError, match="0"):
        pack(mesh_of(3, {(0, 1): 1, (1, 0): 1, (2, 0): 1}), Flow.ALL_DOWN)


@settings(max_examples=6)
@given(machines(max_size=4), st.sampled_from(JOINT))
def test_each_block_is_cut_into_as_many_shares(topology, flow):
    planned = in_shares(topology, *pack(topology, flow))
    assert planned.joint
    for root in range(topology.size):
        own = [tree for tree in planned.trees if tree.root == root]
        assert (own[0].start, own[-1].stop) == (0, planned.shares)
    assert planned.rate >= planned.bound * (1 - Fraction(1, 20))


@pytest.mark.parametrize(
    ("sockets", "cores", "ranks"), [(1, 2, 2), (1, 4, 4), (2, 4, 5), (2, 4, 8), (2, 8, 16)]
)
def test_sharing_a_host_is_no_slower_than_the_slowest_broadcasts_at_once(sockets, cores, ranks):
    topology = cpu_topology(host_of(sockets, cores), ranks)
    plan = make_plan(topology)
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    link_of = {(link.src, link.dst): link for link in topology.links}
    load = dict.fromkeys(capacity, Fraction(0))
    for packing in plan.broadcast:
        for tree in packing.trees:
            for child, parent in enumerate(tree.parents):
                if parent >= 0:
                    for name in link_of[parent, child].resources:
                        load[name] += Fraction(tree.stop - tree.start, packing.shares)
    at_once = ranks * min(capacity[name] / load[name] for name in load if load[name])
    assert plan.allgather.rate >= at_once
