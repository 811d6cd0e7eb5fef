"""Predicted times: latency of the longest way plus bytes over rate, and the best trees by size."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines, mesh_of

from blinkrun.errors import UsageError
from blinkrun.planner.packing import Flow, check_packing
from blinkrun.planner.predict import (
    SIZES,
    Timing,
    Trees,
    candidates,
    choose,
    predict,
    ring_ns,
)
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce

FLOWS = [
    (Flow.BOTH, None),
    (Flow.DOWN, 0),
    (Flow.UP, 1),
    (Flow.ALL_DOWN, None),
    (Flow.ALL_UP, None),
]
LATENCY = {LinkKind.PCIE: 1000, LinkKind.STAGED: 2000, LinkKind.SHM: 200}


def latency_ns(kind):
    return LATENCY.get(kind, 600)


def mesh(lanes):
    return mesh_of(max(map(max, lanes)) + 1, lanes | {(b, a): n for (a, b), n in lanes.items()})


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=8)
@given(topology=machines(max_size=5), size=st.integers(0, 10**10))
def test_the_choice_is_never_later_than_the_plan(topology, flow, root, size):
    timing = Timing(topology, latency_ns)
    packing, _ = pack(topology, flow, root)
    options = candidates(timing, packing)
    for option in options:
        check_packing(topology, option.packing)
        assert option.latency_ns > 0
        bytes_alone = size * 1000 / option.packing.rate
        assert bytes_alone <= option.time_ns(timing, size) - option.latency_ns < bytes_alone + 1
    best = choose(timing, options, size)
    assert best.time_ns(timing, size) == min(o.time_ns(timing, size) for o in options)
    assert options[0].packing == packing


@pytest.mark.parametrize(
    ("flow", "root", "hops"), [(Flow.BOTH, None, 4), (Flow.DOWN, 1, 2), (Flow.UP, 1, 2)]
)
def test_latency_counts_the_longest_way_there_and_back(flow, root, hops):
    path = mesh({(0, 1): 1, (1, 2): 1, (2, 3): 1})
    packing, _ = pack(path, flow, root)
    option = candidates(Timing(path, latency_ns), packing)[0]
    assert option.latency_ns == 600 * hops


def test_kinds_of_links_have_their_own_latency():
    three = induce(machine("dgx-1v", "pcie"), [0, 1, 4])
    packing, _ = pack(three, Flow.DOWN, 0)
    assert candidates(Timing(three, latency_ns), packing)[0].latency_ns % 1000 == 0


def test_small_data_takes_few_hops_and_large_data_all_lanes():
    dgx1 = machine("dgx-1v")
    packing, _ = pack(dgx1, Flow.BOTH)
    timing = Timing(dgx1, latency_ns, unit_mb_per_s=23_000)
    options = candidates(timing, packing)
    assert [option.trees for option in options[:2]] == [Trees.PACKED, Trees.SHALLOW]
    small, large = choose(timing, options, 1000), choose(timing, options, 10**9)
    assert (small.trees, small.latency_ns) == (Trees.SHALLOW, 4 * 600)
    assert large.trees is Trees.PACKED
    gb_per_s = 10**9 / large.time_ns(timing, 10**9)
    assert gb_per_s == pytest.approx(float(packing.rate) * 23, rel=0.001)


def test_a_broadcast_behind_a_switch_changes_from_one_hop_to_the_plan():
    dgx2 = machine("dgx-2")
    packing, _ = pack(dgx2, Flow.DOWN, 0)
    timing = Timing(dgx2, latency_ns, unit_mb_per_s=23_000)
    rows = predict(timing, packing, ring_peer(dgx2, Flow.DOWN))
    assert [row.size_bytes for row in rows] == list(SIZES)
    assert rows[0].trees in (Trees.ONEHOP, Trees.SHALLOW)
    assert rows[-1].trees is Trees.PACKED
    assert all(row.time_ns <= row.ring_ns for row in rows)
    assert float(rows[-1].algbw_gb_per_s) == pytest.approx(6 * 23, rel=0.01)


def test_a_shallow_tree_prefers_quick_links_to_few_hops():
    three = induce(machine("dgx-1v", "all"), [0, 4, 7])
    packing, _ = pack(three, Flow.DOWN, 0)
    slow = Timing(three, lambda kind: 600 if kind.is_fabric else 5000)
    best = choose(slow, candidates(slow, packing), 0)
    kinds = {
        three.links[at].kind for tree in best.packing.trees for e in tree.edges for at in e.links
    }
    assert kinds == {LinkKind.NVLINK}


def test_relays_may_stand_in_a_shallow_tree():
    relayed = induce(machine("dgx-1v"), [1, 4], relays=[0, 5])
    for flow, root in ((Flow.BOTH, None), (Flow.ALL_DOWN, None)):
        packing, _ = pack(relayed, flow, root)
        for option in candidates(Timing(relayed, latency_ns, 23_000), packing):
            check_packing(relayed, option.packing)


def test_a_ring_waits_for_its_slowest_hop_at_every_step():
    three = induce(machine("dgx-1v", "all"), [0, 1, 4])
    timing = Timing(three, latency_ns)
    peer = ring_peer(three, Flow.BOTH)
    slowest = max(latency_ns(three.links[at].kind) for at in peer.rings[0].links)
    assert ring_ns(timing, Flow.BOTH, peer, 0) == 4 * slowest
    assert ring_ns(timing, Flow.DOWN, peer, 0) == 2 * slowest
    expected = 4 * slowest + 10**12 / peer.rate
    assert ring_ns(timing, Flow.BOTH, peer, 10**9) == pytest.approx(float(expected), abs=1)


def test_without_a_ring_there_is_no_time_for_it():
    path = mesh({(0, 1): 1, (1, 2): 1})
    packing, _ = pack(path, Flow.BOTH)
    rows = predict(Timing(path, latency_ns), packing, ring_peer(path, Flow.BOTH), sizes=(0, 8))
    assert [row.ring_ns for row in rows] == [None, None]
    assert rows[0].algbw_gb_per_s == 0
    assert rows[1].algbw_gb_per_s == Fraction(8, rows[1].time_ns)


def test_a_lane_needs_a_speed():
    with pytest.raises(UsageError, match="mesh: no times are predicted from 0 MB/s per lane"):
        Timing(mesh({(0, 1): 1}), latency_ns, unit_mb_per_s=0)
