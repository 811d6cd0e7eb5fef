"""Choices up to exchanges: together they are all choices, and exchanges change nothing."""

from itertools import combinations, islice, permutations
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines, mesh_of

from blinkrun.planner.network import network_of
from blinkrun.planner.orbits import blocks_of, orbits
from blinkrun.planner.packing import Flow
from blinkrun.planner.symmetry import shape_of
from blinkrun.topology.catalog import machine
from blinkrun.topology.fingerprint import fingerprint
from blinkrun.topology.graph import Topology, induce


def blocks(topology, alone=None):
    return blocks_of(shape_of(network_of(topology, Flow.DOWN)), alone)


def islands(sizes):
    """Groups of ranks, all linked inside; no links between groups."""
    lanes = {}
    start = 0
    for size in sizes:
        for pair in permutations(range(start, start + size), 2):
            lanes[pair] = 1
        start += size
    return mesh_of(start, lanes)


@settings(max_examples=30)
@given(machines(max_size=6), st.data())
def test_orbits_are_all_choices_once_and_alike_inside(topology, data):
    count = data.draw(st.integers(1, topology.size))
    alone = data.draw(st.none() | st.integers(0, topology.size - 1))
    seen = []
    for orbit in orbits(blocks(topology, alone), count, alone):
        members = list(orbit.members())
        assert len(set(members)) == len(members) == orbit.count
        if count > 1:
            assert len({fingerprint(induce(topology, member)) for member in members}) == 1
        seen += members
    every = [c for c in combinations(range(topology.size), count) if alone is None or alone in c]
    assert sorted(seen) == every


@pytest.mark.parametrize(
    ("topology", "nestings"),
    [
        (machine("dgx-2"), [(16,)]),
        (machine("dgx-1v"), [()] * 8),
        (machine("dgx-1v", "pcie"), [(2, 2, 2)]),
        (islands([3, 3, 2]), [(2, 3), (2,)]),
        (islands([2, 2, 2, 1]), [(3, 2), ()]),
    ],
    ids=["switch", "cube mesh", "tree", "islands", "more islands"],
)
def test_blocks_of_known_machines(topology, nestings):
    assert [block.nesting for block in blocks(topology)] == nestings


def test_the_rank_that_is_alone_is_exchanged_with_none():
    found = blocks(machine("dgx-2"), alone=5)
    assert [block.ranks for block in found if 5 in block.ranks] == [(5,)]
    assert sorted(block.nesting for block in found) == [(), (15,)]
    assert [orbit.count for orbit in orbits(found, 4, alone=5)] == [comb(15, 3)]


def test_a_rack_has_few_ways_to_choose():
    """18 hosts of two pairs each, as NVL72 is built: exchanges at three depths."""
    rack = islands([4] * 18)
    assert isinstance(rack, Topology)
    found = list(orbits(blocks(rack), 8))
    assert sum(orbit.count for orbit in found) == comb(72, 8)
    assert len(found) < 20
    for orbit in found:
        assert len(set(islice(orbit.members(), 50))) == min(50, orbit.count)
