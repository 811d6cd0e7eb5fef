"""What a ring library gets: ring counts of the paper, rings that fit, and never more than trees."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper import bounds, gpus
from support.topologies import cpu_hosts, mesh_of, meshes, pcie_trees, switches

from blinkrun.errors import InternalError, PlanError
from blinkrun.planner.cycles import pack_cycles
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingKind, nvlink_ring_count, ring_peer, ring_steps
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce

DGX1V, DGX1P = machine("dgx-1v", "all"), machine("dgx-1p", "all")
RATES = [Flow.BOTH, Flow.DOWN, Flow.UP, Flow.ALL_DOWN, Flow.ALL_UP]


def full(size, lanes=1):
    return mesh_of(size, dict.fromkeys(permutations(range(size), 2), lanes))


def as_kind(topology, kind):
    links = tuple(Link(link.src, link.dst, link.resources, kind) for link in topology.links)
    return Topology(topology.name, topology.devices, links, topology.resources, topology.unit)


def loads(topology, peer):
    """What the rings put on each resource."""
    load = Counter()
    for ring in peer.rings:
        for index in (*ring.links, *ring.back):
            for name in topology.links[index].resources:
                load[name] += ring.width
    return load


def check_rings(topology, peer):
    """Every ring visits all ranks over links that exist, and together they fit."""
    for ring in peer.rings:
        assert sorted(ring.order) == list(range(topology.size))
        hops = list(zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True))
        assert [(topology.links[at].src, topology.links[at].dst) for at in ring.links] == hops
        if ring.back:
            back = [(topology.links[at].dst, topology.links[at].src) for at in ring.back]
            assert back == hops
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    for name, load in loads(topology, peer).items():
        assert load <= capacity[name]


@pytest.mark.parametrize(("name", "row"), bounds("dgx1v") + bounds("dgx1p"))
def test_gpu_sets_of_the_paper_have_as_many_rings(name, row):
    topology = induce(machine(name), gpus(row["gpus"]))
    assert nvlink_ring_count(topology) == int(row["nvlink_rings"])
    peer = ring_peer(topology, Flow.BOTH)
    check_rings(topology, peer)
    assert peer.is_exact


@pytest.mark.parametrize("flow", RATES)
def test_rates_count_what_passes_a_hop(flow):
    share = {
        Flow.BOTH: Fraction(8, 14),
        Flow.ALL_DOWN: Fraction(8, 7),
        Flow.ALL_UP: Fraction(8, 7),
    }.get(flow, 1)
    assert ring_peer(DGX1V, flow).rate == 6 * 23_000 * share


def test_without_nvlink_ring_hops_leave_the_fabric_where_they_must():
    peer = ring_peer(induce(DGX1V, [0, 1, 4]), Flow.DOWN)
    assert (peer.kind, len(peer.rings), peer.rate) == (RingKind.PCIE, 1, 6000)
    kinds = {induce(DGX1V, [0, 1, 4]).links[at].kind for at in peer.rings[0].links}
    assert kinds == {LinkKind.NVLINK, LinkKind.PCIE}


def test_two_gpus_use_all_their_lanes():
    lanes = induce(machine("dgx-1v"), [0, 3])
    assert nvlink_ring_count(lanes) == 2
    assert ring_peer(lanes, Flow.BOTH).rate == 2
    assert nvlink_ring_count(induce(DGX1V, [0, 3])) == 1  # both lanes as one
    assert nvlink_ring_count(induce(DGX1V, [0, 3]), lane=23_000) == 2
    assert ring_peer(induce(DGX1V, [0, 3]), Flow.BOTH).rate == 46_000


def test_behind_a_switch_rings_are_as_wide_as_a_port():
    dgx2 = machine("dgx-2")
    peer = ring_peer(dgx2, Flow.BOTH)
    assert (peer.kind, len(peer.rings), peer.rate) == (RingKind.NVLINK, 6, Fraction(16, 5))
    check_rings(dgx2, peer)


def test_ports_that_close_no_ring_give_none():
    star = Topology(
        name="star",
        devices=(0, 1, 2),
        links=tuple(
            Link(a, b, (f"out {a}", f"in {b}"), LinkKind.NVSWITCH)
            for a, b in ((0, 1), (1, 0), (0, 2), (2, 0))
        ),
        resources=tuple(Resource(f"{way} {a}", 4) for a in range(3) for way in ("in", "out")),
        unit="lane",
    )
    assert (ring_peer(star, Flow.BOTH).kind, nvlink_ring_count(star)) == (RingKind.NONE, 0)


@given(switches())
def test_uneven_ports_give_the_rings_of_the_narrowest(topology):
    peer = ring_peer(topology, Flow.DOWN)
    assert peer.rate == min(resource.capacity for resource in topology.resources)
    check_rings(topology, peer)


def test_a_lane_wider_than_a_port_leaves_one_ring():
    peer = ring_peer(machine("dgx-2"), Flow.DOWN, lane=100)
    assert (len(peer.rings), peer.rate) == (1, 6)


def test_one_way_rings_use_up_the_odd_link_of_xgmi():
    mesh = as_kind(full(8), LinkKind.XGMI)
    peer = ring_peer(mesh, Flow.BOTH)
    check_rings(mesh, peer)
    assert (peer.kind, len(peer.rings), peer.rate) == (RingKind.XGMI, 7, 4)
    assert ring_peer(full(8), Flow.BOTH).rate == Fraction(6 * 8, 14)
    assert ring_peer(as_kind(full(4), LinkKind.XGMI), Flow.DOWN).rate == 2  # no third one exists


def test_links_that_close_no_ring_give_none():
    path = mesh_of(3, {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1})
    for flow in RATES:
        peer = ring_peer(path, flow)
        assert (peer.kind, peer.rings, peer.rate, peer.is_exact) == (RingKind.NONE, (), 0, True)
    assert nvlink_ring_count(path) == 0
    assert nvlink_ring_count(mesh_of(1, {})) == 0
    assert nvlink_ring_count(mesh_of(2, {(0, 1): 3})) == 0
    assert nvlink_ring_count(induce(machine("dgx-1v", "pcie"), [0, 1, 2])) == 0


def test_relays_are_in_no_ring():
    relayed = induce(DGX1V, [0, 1, 4], relays=[5])
    assert ring_peer(relayed, Flow.BOTH).rate == ring_peer(induce(DGX1V, [0, 1, 4]), Flow.BOTH).rate


@given(cpu_hosts())
def test_cores_have_a_ring_in_shared_memory(topology):
    peer = ring_peer(topology, Flow.DOWN)
    assert peer.kind is RingKind.SHM
    check_rings(topology, peer)


@settings(max_examples=25)
@given(pcie_trees(max_size=5))
def test_the_ring_over_pcie_is_the_widest_of_all_orders(topology):
    peer = ring_peer(topology, Flow.DOWN)
    check_rings(topology, peer)
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    link_of = {(link.src, link.dst): link for link in topology.links}
    best = 0
    for order in permutations(range(1, topology.size)):
        ring = (0, *order)
        hops = zip(ring, (*order, 0), strict=True)
        load = Counter(name for hop in hops for name in link_of[hop].resources)
        best = max(best, min(Fraction(capacity[name], times) for name, times in load.items()))
    assert (peer.rate, peer.is_exact) == (best, True)


@settings(max_examples=25)
@given(meshes(min_size=3, max_size=5, even=True))
def test_rings_are_as_many_as_trying_all_sets_finds(topology):
    lanes = {
        (link.src, link.dst): topology.resources[at].capacity
        for link in topology.links
        for at, resource in enumerate(topology.resources)
        if resource.name in link.resources
    }
    rings = [
        [tuple(sorted(hop)) for hop in zip((0, *order), (*order, 0), strict=True)]
        for order in permutations(range(1, topology.size))
        if order[0] < order[-1]
    ]

    def most(left, start):
        found = 0
        for at in range(start, len(rings)):
            if all(left.get(hop, 0) > 0 for hop in rings[at]):
                rest = dict(left)
                for hop in rings[at]:
                    rest[hop] -= 1
                found = max(found, 1 + most(rest, at))
        return found

    peer = ring_peer(topology, Flow.BOTH)
    check_rings(topology, peer)
    assert (nvlink_ring_count(topology), peer.is_exact) == (most(lanes, 0), True)


EVEN = st.one_of(
    meshes(max_size=5, even=True),
    st.integers(1, 9).map(lambda lanes: induce(switch(lanes), range(5))),
    st.sampled_from(
        [induce(DGX1V, some) for count in (3, 4) for some in combinations(range(8), count)]
    ),
)


def switch(lanes):
    return Topology(
        name="switch",
        devices=tuple(range(6)),
        links=tuple(
            Link(a, b, (f"out {a}", f"in {b}"), LinkKind.NVSWITCH)
            for a, b in permutations(range(6), 2)
        ),
        resources=tuple(Resource(f"{way} {a}", lanes) for a in range(6) for way in ("in", "out")),
        unit="lane",
    )


@pytest.mark.parametrize("flow", RATES)
@settings(max_examples=10)
@given(topology=EVEN)
def test_trees_are_never_slower_where_links_are_the_same_both_ways(topology, flow):
    root = 0 if flow.is_rooted else None
    packing, _ = pack(topology, flow, root, loss=Fraction(0))
    assert packing.rate >= ring_peer(topology, flow, root).rate


@pytest.mark.parametrize(
    ("size", "one_way", "count", "is_most"),
    [
        (5, True, 4, True),
        (6, True, 4, True),
        (9, False, 4, True),
        (9, True, 6, False),
        (16, False, 3, False),
    ],
)
def test_full_meshes(size, one_way, count, is_most):
    lanes = dict.fromkeys(permutations(range(size), 2), 1)
    cycles = pack_cycles(size, lanes, one_way=one_way)
    assert (len(cycles.orders), cycles.is_most) == (count, is_most)


def test_a_solver_that_gives_up_is_reported(monkeypatch):
    monkeypatch.setattr(
        "scipy.optimize.milp", lambda *_, **__: SimpleNamespace(x=None, message="?")
    )
    with pytest.raises(InternalError, match="choice of rings was not solved"):
        pack_cycles(6, dict.fromkeys(permutations(range(6), 2), 1), one_way=True)


def test_one_way_rings_of_eight_need_every_link():
    lanes = dict.fromkeys(permutations(range(8), 2), 1)
    del lanes[0, 1]
    cycles = pack_cycles(8, {hop: 1 for hop in lanes if 7 not in hop} | {(0, 7): 1, (7, 0): 1})
    assert cycles.orders == ()


def test_steps_of_a_ring():
    assert [ring_steps(flow, 4) for flow in RATES] == [6, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("topology", "root", "lane", "text"),
    [
        (full(1), None, None, "single rank has no ring"),
        (full(3), 3, None, "broadcast from root 3 of 3 ranks"),
        (full(3), 0, 0, "a lane of 0 lane is no width"),
    ],
)
def test_what_makes_no_sense_is_refused(topology, root, lane, text):
    with pytest.raises(PlanError, match=text):
        ring_peer(topology, Flow.DOWN, root, lane=lane)
