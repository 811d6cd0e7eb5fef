"""Fingerprints: the same for every numbering, different for different machines."""

import csv
import random
import re
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import ROOT
from support.topologies import machines as topologies
from support.topologies import mesh_of

from blinkrun.errors import UsageError
from blinkrun.topology.catalog import LinkSet, described, machine, machines
from blinkrun.topology.fingerprint import fingerprint
from blinkrun.topology.graph import Link, Resource, Topology, induce
from blinkrun.topology.model import topology_of
from blinkrun.topology.read import read_machine


def renamed(topology, seed):
    """The same topology with other numbers, names and order of everything."""
    shuffle = random.Random(seed)
    order = list(range(topology.size))
    shuffle.shuffle(order)
    order += range(topology.size, topology.num_nodes)  # relays stay behind the ranks
    names = [resource.name for resource in topology.resources]
    shuffle.shuffle(names)
    called = {name: f"r{number}" for number, name in enumerate(names)}
    return Topology(
        name="renamed",
        devices=tuple(range(100, 100 + topology.num_nodes)),
        links=tuple(
            Link(
                order[link.src],
                order[link.dst],
                tuple(called[name] for name in link.resources),
                link.kind,
            )
            for link in topology.links
        ),
        resources=tuple(Resource(called[res.name], res.capacity) for res in topology.resources),
        unit=topology.unit,
        num_relays=topology.num_relays,
    )


@settings(max_examples=25)
@given(topologies(), st.integers(0, 10**6))
def test_no_renaming_changes_it(topology, seed):
    found = fingerprint(topology)
    assert re.fullmatch("[0-9a-f]{16}", found)
    assert fingerprint(renamed(topology, seed)) == found


@settings(max_examples=25)
@given(topologies(), st.data())
def test_a_resource_that_is_wider_changes_it(topology, data):
    taken = sorted({name for link in topology.links for name in link.resources})
    wider = data.draw(st.sampled_from(taken))
    resources = tuple(
        Resource(res.name, res.capacity + (res.name == wider)) for res in topology.resources
    )
    other = Topology("x", topology.devices, topology.links, resources, topology.unit)
    assert fingerprint(other) != fingerprint(topology)


@pytest.mark.parametrize("links", LinkSet)
@pytest.mark.parametrize("name", [name for name in machines() if "72" not in name])
def test_no_numbering_of_a_known_machine_changes_it(name, links):
    try:
        topology = topology_of(described(name), links)
    except UsageError:
        return  # it has no NVLink
    assert fingerprint(renamed(topology, 1)) == fingerprint(topology)


@pytest.mark.slow
def test_no_numbering_of_72_gpus_changes_it():
    topology = machine("gb200-nvl72")
    assert fingerprint(renamed(topology, 1)) == fingerprint(topology)


def test_reports_of_one_machine_under_three_numberings_agree():
    def of_report(case):
        text = (ROOT / "tests/data/topologies" / case / "input.txt").read_text()
        return fingerprint(topology_of(read_machine(text, case), LinkSet.NVLINK))

    cases = "cori-v100-8-commented", "v100-8-unpadded-x", "dgx1-v100-4nic"
    assert {of_report(case) for case in cases} == {fingerprint(machine("dgx-1v"))}
    assert of_report("dgx1-p100-glued-header") == fingerprint(machine("dgx-1p"))


def is_connected(topology):
    reached, stack = {0}, [0]
    while stack:
        at = stack.pop()
        new = {link.dst for link in topology.links if link.src == at} - reached
        reached |= new
        stack += new
    return len(reached) == topology.size


@pytest.mark.parametrize("size", range(3, 9))
@pytest.mark.parametrize("name", ["dgx-1v", "dgx-1p"])
def test_there_are_as_many_different_allocations_as_the_paper_counts(name, size):
    """46 on a DGX-1V, 14 on a DGX-1P, of 3 to 8 GPUs that NVLink connects."""
    with (ROOT / f"tests/data/paper/{name.replace('-', '')}_bounds.csv").open(newline="") as file:
        listed = [row["gpus"].split() for row in csv.DictReader(file)]
    sizes = [int(gpus[1]) if gpus[0] == "any" else len(gpus) for gpus in listed]
    parts = (induce(machine(name), gpus) for gpus in combinations(range(8), size))
    kinds = {fingerprint(part) for part in parts if is_connected(part)}
    assert len(kinds) == sizes.count(size)


def ring(*ranks):
    ends = (*ranks, ranks[0])
    pairs = list(pairwise(ends))
    return dict.fromkeys(pairs + [(dst, src) for src, dst in pairs], 1)


def test_a_ring_of_six_is_not_two_of_three():
    """Every rank has two equal neighbours in both: only singling one out tells them apart."""
    whole = mesh_of(6, ring(0, 1, 2, 3, 4, 5))
    halves = mesh_of(6, ring(0, 1, 2) | ring(3, 4, 5))
    assert fingerprint(whole) != fingerprint(halves)


def test_unit_relays_and_kinds_count():
    topology = machine("dgx-1v")
    parts = (topology.name, topology.devices, topology.links, topology.resources)
    assert fingerprint(Topology(*parts, "furlong")) != fingerprint(topology)
    relayed = [induce(topology, range(7), [7]), induce(topology, [7, *range(1, 7)], [0])]
    assert fingerprint(relayed[0]) != fingerprint(topology)
    assert fingerprint(renamed(relayed[0], 5)) == fingerprint(relayed[0])
