"""Plans as JSON values: units, directions, kinds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.packing import Edge, Flow, Packing, Tree
from blinkrun.planner.packing_json import packing_from_json, packing_to_json
from blinkrun.planner.predict import SIZES, Timing
from blinkrun.planner.report import Planned, as_json, depth_of, from_root, kind_of, times_of
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import pack
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce

ZERO = Fraction(0)


def planned(name, devices, flow, root=None, links="nvlink", relays=()):
    topology = induce(machine(name, links), devices, relays)
    rings = induce(machine(name, "all"), devices)
    packing, certificate = pack(topology, flow, root, loss=ZERO)
    peer = ring_peer(rings, flow, root)
    unit = 23_000 if links == "nvlink" else 1
    timing = Timing(topology, lambda kind: 600, unit)
    times = times_of(timing, packing, Timing(rings, lambda kind: 600), peer)
    return Planned(topology, packing, certificate, 23_000, peer, times)


def test_lanes_and_gb_per_s_say_the_same():
    lanes = as_json(planned("dgx-1v", (0, 1, 4), Flow.BOTH))
    assert (lanes["rate_exact"], lanes["unit"], lanes["unit_gb_per_s"]) == ("1", "lane", 23.0)
    both = as_json(planned("dgx-1v", (0, 1, 4), Flow.BOTH, links="all"))
    assert (both["unit"], both["unit_gb_per_s"]) == ("GB/s", 1.0)
    assert float(Fraction(both["rate_exact"])) == both["rate_gb_per_s"] == 31.0


@pytest.mark.parametrize(
    ("flow", "root", "edges"),
    [
        (Flow.DOWN, 1, [[0, 4, "nvlink"], [4, 6, "nvlink"]]),
        (Flow.UP, 1, [[4, 0, "nvlink"], [6, 4, "nvlink"]]),
        (Flow.BOTH, None, [[4, 0, "nvlink"], [4, 6, "nvlink"]]),
    ],
)
def test_edges_are_gpus_in_the_direction_of_the_data(flow, root, edges):
    """The root's side first for allreduce, which runs both ways; GPUs 4 0 6 are a path."""
    report = as_json(planned("dgx-1v", (4, 0, 6), flow, root))
    assert report["trees"][0]["edges"] == edges
    assert report["root"] == (None if root is None else 0)


def test_relays_are_no_devices():
    report = as_json(planned("dgx-1v", (0, 1, 6), Flow.DOWN, 0, relays=(2,)))
    assert (report["devices"], report["relays"]) == ([0, 1, 6], [2])
    assert [2, 6, "nvlink"] in report["trees"][0]["edges"]
    assert sorted(gpu for part in report["certificate"]["partition"] for gpu in part) == [0, 1, 6]


def test_a_peer_without_rings_has_no_ratio():
    links = tuple(Link(a, b, (f"{a}{b}",), LinkKind.NVLINK) for a, b in ((0, 1), (0, 2)))
    resources = tuple(Resource(link.resources[0], 5_000) for link in links)
    star = Topology("star", (0, 1, 2), links, resources, "MB/s")
    packing, certificate = pack(star, Flow.DOWN, 0, loss=ZERO)
    peer = ring_peer(star, Flow.DOWN, 0)
    timing = Timing(star, lambda kind: 600)
    times = times_of(timing, packing, timing, peer)
    report = as_json(Planned(star, packing, certificate, 0, peer, times))
    assert report["ring"]["ratio"] is None
    assert report["rate_gb_per_s"] == 5.0
    assert [row["ring_seconds"] for row in report["times"]] == [None] * len(SIZES)


def test_an_edge_whose_ways_differ_names_both_kinds():
    links = (
        Link(0, 1, ("a",), LinkKind.NVLINK),
        Link(1, 0, ("b",), LinkKind.PCIE),
        Link(1, 0, ("c",), LinkKind.NVLINK),
    )
    pair = Topology("pair", (0, 1), links, tuple(Resource(n, 1) for n in "abc"), "MB/s")
    number = {(link.src, link.kind): at for at, link in enumerate(pair.links)}
    down, up = number[0, LinkKind.NVLINK], number[1, LinkKind.PCIE]
    assert kind_of(pair, Edge(0, 1, (down, up))) == "nvlink/pcie"
    assert kind_of(pair, Edge(1, 0, (down, up))) == "pcie/nvlink"
    assert kind_of(pair, Edge(0, 1, (down, number[1, LinkKind.NVLINK]))) == "nvlink"
    assert kind_of(pair, Edge(0, 1, (down,))) == "nvlink"


def test_edges_come_in_the_order_of_the_data():
    tree = Tree(2, (Edge(0, 3, ()), Edge(1, 0, ()), Edge(2, 1, ())))
    assert [(edge.parent, edge.child) for edge in from_root(tree)] == [(2, 1), (1, 0), (0, 3)]
    assert depth_of(tree) == 3


def test_what_does_not_hold_is_not_reported():
    good = planned("dgx-1v", (0, 1, 4), Flow.BOTH)
    fast = replace(good.packing, rates=(Fraction(2),))
    with pytest.raises(PlanError, match="its capacity is 1"):
        Planned(good.topology, fast, good.certificate, 23_000, good.peer, good.times)
    cheap = Certificate(Flow.BOTH, None, good.certificate.prices[:1])
    with pytest.raises(PlanError, match="certificate does not hold"):
        Planned(good.topology, good.packing, cheap, 23_000, good.peer, good.times)


@pytest.mark.parametrize("flow", list(Flow))
def test_a_packing_is_kept_exactly(flow):
    proven = pack(machine("dgx-1v"), flow, 3 if flow.is_rooted else None)
    assert packing_from_json(packing_to_json(proven)) == proven


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"flow":"sum"}', "null", '{"flow":"reduce"}'])
def test_what_is_no_packing_is_refused(text):
    with pytest.raises(PlanError, match="text is no packing"):
        packing_from_json(text)


def test_a_kept_packing_is_of_these_types():
    packing, certificate = packing_from_json(
        '{"flow":"broadcast","root":0,"rates":["1/2"],"trees":[[0,[[0,1,[3]]]]],"prices":{"a":"2"}}'
    )
    assert packing == Packing(Flow.DOWN, 0, (Tree(0, (Edge(0, 1, (3,)),)),), (Fraction(1, 2),))
    assert certificate.prices == (("a", Fraction(2)),)
