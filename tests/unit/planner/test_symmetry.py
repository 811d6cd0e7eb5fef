"""Roots that look the same share a solution: only if they really do."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from support.topologies import host_of, machines, mesh_of

from blinkrun.planner import make
from blinkrun.planner.make import make_plan
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.planner.symmetry import find_renaming, shape_of
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology


def solutions(topology, monkeypatch):
    """How many packings a plan of `topology` solves, by flow."""
    solved = Counter()

    def counted(topology, flow, *args, **options):
        solved[flow] += 1
        return pack(topology, flow, *args, **options)

    monkeypatch.setattr(make, "pack", counted)
    make_plan(topology)
    return tuple(solved[flow] for flow in Flow)


@pytest.mark.parametrize(
    ("topology", "solved"),
    [
        (machine("dgx-2"), (1, 1, 0, 1, 0)),  # reduce is broadcast backwards
        (machine("dgx-1v"), (1, 2, 0, 1, 0)),
        (machine("dgx-1v", "pcie"), (1, 1, 0, 1, 0)),
        # the reader does the work: not the same
        (cpu_topology(host_of(1, 2), 5), (1, 1, 1, 1, 1)),
        (cpu_topology(host_of(2, 2), 4), (1, 1, 1, 1, 1)),
    ],
    ids=["dgx-2", "dgx-1v", "pcie", "socket", "sockets"],
)
def test_equal_roots_are_solved_once(topology, solved, monkeypatch):
    assert solutions(topology, monkeypatch) == solved


@settings(max_examples=5)
@given(machines(max_size=5))
def test_renamed_plans_are_as_good_as_solved_ones(topology):
    plan = make_plan(topology, loss=Fraction(0))
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    for flow, packings in ((Flow.DOWN, plan.broadcast), (Flow.UP, plan.reduce)):
        for root, planned in enumerate(packings):
            packing, _ = pack(topology, flow, root, loss=Fraction(0))
            assert planned.rate >= packing.rate * Fraction(999, 1000)
            if (
                len(network_of(topology, flow).arcs)
                == len(topology.links)
                == len({(link.src, link.dst) for link in topology.links})
            ):  # no parallel links: the trees say which links they take
                assert_fits(topology, flow, planned, capacity)


def assert_fits(topology, flow, planned, capacity):
    links = {(link.src, link.dst): link for link in topology.links}
    load = Counter()
    for tree in planned.trees:
        for child, parent in enumerate(tree.parents):
            if parent >= 0:
                way = (parent, child) if flow is Flow.DOWN else (child, parent)
                for name in links[way].resources:
                    load[name] += planned.rate * (tree.stop - tree.start) / planned.shares
    assert all(load[name] <= capacity[name] for name in load)


def pair(*links):
    """Two ranks; links by (src, dst, resource), each resource with capacity 1 or as it says."""
    return Topology(
        name="pair",
        devices=(0, 1),
        links=tuple(Link(a, b, (name,), LinkKind.PCIE) for a, b, name in links),
        resources=tuple(Resource(name, int(name[-1])) for name in {link[2] for link in links}),
        unit="lane",
    )


@pytest.mark.parametrize(
    "other",
    [
        pair((0, 1, "a1"), (1, 0, "b2")),  # one direction is wider
        pair((0, 1, "bus1"), (1, 0, "bus1")),  # both directions share
        pair((0, 1, "a1"), (1, 0, "b1"), (0, 1, "c1"), (1, 0, "d1")),  # parallel and alike
    ],
)
def test_what_differs_is_not_renamed(other):
    plain = shape_of(network_of(pair((0, 1, "a1"), (1, 0, "b1")), Flow.DOWN))
    assert find_renaming(plain, plain, 0, 1) == (1, 0)
    assert find_renaming(plain, shape_of(network_of(other, Flow.DOWN)), 0, 1) is None


def test_bit_flips_that_leave_the_ranks_are_not_tried():
    chain = {(0, 1): 1, (1, 2): 2, (2, 1): 2, (1, 0): 1}
    shape = shape_of(network_of(mesh_of(3, chain), Flow.DOWN))
    assert find_renaming(shape, shape, 0, 2) is None
