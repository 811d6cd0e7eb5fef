"""Topology values: what they refuse, how they are cut, that their text is canonical."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import machines, mesh_of

from blinkrun.errors import TopologyError
from blinkrun.topology.graph import (
    Link,
    LinkKind,
    Resource,
    Topology,
    induce,
    select_links,
    to_networkx,
)

PAIR = mesh_of(2, {(0, 1): 1, (1, 0): 2})


def replaced(**fields):
    """The pair with some fields changed."""
    base = {"name": "pair", "devices": (0, 1), "links": PAIR.links, "unit": "lane"}
    return Topology(**{**base, "resources": PAIR.resources, **fields})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Resource("", 1), "needs a name"),
        (lambda: Resource("wire", 0), "wire has capacity 0, need a whole number >= 1"),
        (lambda: Resource("wire", 1.5), "capacity 1.5"),
        (lambda: Resource("wire", True), "capacity True"),
        (lambda: Link(-1, 0, ("wire",), LinkKind.PCIE), "negative rank"),
        (lambda: Link(1, 1, ("wire",), LinkKind.PCIE), "1->1 is a self-loop"),
        (lambda: Link(0, 1, (), LinkKind.PCIE), "0->1 takes no resource"),
        (lambda: Link(0, 1, ("wire", "wire"), LinkKind.PCIE), "0->1 names a resource twice"),
        (lambda: replaced(devices=()), "pair has no devices"),
        (lambda: replaced(devices=(4, 4)), "has device 4 twice"),
        (lambda: replaced(devices=(0,)), "link 0->1: there are 1 ranks"),
        (lambda: replaced(resources=PAIR.resources[:1]), "link 1->0 takes unknown"),
        (lambda: replaced(resources=PAIR.resources * 2), r"resource wire \(0, 1\) twice"),
        (lambda: replaced(links=PAIR.links * 2), "has link"),
    ],
)
def test_values_that_contradict_themselves_are_refused(make, text):
    with pytest.raises(TopologyError, match=text):
        make()


@settings(max_examples=25)
@given(machines(), st.randoms())
def test_order_of_links_and_resources_makes_no_difference(topology, random):
    links, resources = list(topology.links), list(topology.resources)
    random.shuffle(links)
    random.shuffle(resources)
    shuffled = Topology(
        topology.name, topology.devices, tuple(links), tuple(resources), topology.unit
    )
    assert shuffled == topology
    assert shuffled.to_json() == topology.to_json()
    assert shuffled.content_hash == topology.content_hash


@settings(max_examples=25)
@given(machines())
def test_json_gives_the_same_topology_back(topology):
    assert Topology.from_json(topology.to_json()) == topology


def test_hash_depends_on_every_capacity():
    hashes = {mesh_of(2, {(0, 1): 1, (1, 0): lanes}).content_hash for lanes in range(1, 6)}
    assert len(hashes) == 5


def altered(change):
    """The pair's JSON after `change` has had its way with the data."""
    data = json.loads(PAIR.to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no topology: JSONDecodeError"),
        ("[1]", "is no topology: TypeError"),
        ("{}", "is no topology: KeyError"),
        (altered(lambda data: data.update(resources=[1])), "no topology: AttributeError"),
        (altered(lambda data: data["links"][0].pop()), "is no topology: ValueError"),
        (
            altered(lambda data: data["links"][0].__setitem__(2, "string")),
            "no topology: ValueError",
        ),
        (altered(lambda data: data["resources"].update({"wire (0, 1)": 0})), "capacity 0"),
    ],
)
def test_broken_json_is_refused(text, message):
    with pytest.raises(TopologyError, match=message):
        Topology.from_json(text)


@settings(max_examples=25)
@given(machines(), st.data())
def test_induced_part_has_exactly_the_links_between_its_devices(topology, data):
    chosen = data.draw(st.permutations(topology.devices))
    chosen = chosen[: data.draw(st.integers(1, topology.size))]
    part = induce(topology, chosen)
    assert part.devices == tuple(chosen)
    back = [(part.devices[link.src], part.devices[link.dst], link.resources) for link in part.links]
    assert sorted(back) == sorted(
        (link.src, link.dst, link.resources)
        for link in topology.links
        if {link.src, link.dst} <= set(chosen)
    )
    assert {r.name for r in part.resources} == {n for link in part.links for n in link.resources}


def test_parts_of_parts_keep_the_names_of_the_machine():
    ring = mesh_of(4, {(0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 0): 1})
    assert induce(induce(ring, [3, 1, 0]), [0, 3]).devices == (0, 3)


@pytest.mark.parametrize(
    ("devices", "text"),
    [([0, 7], "has no device 7, only"), ([], "no devices"), ([1, 1], "device 1 twice")],
)
def test_wrong_choices_of_devices_are_refused(devices, text):
    with pytest.raises(TopologyError, match=text):
        induce(PAIR, devices)


def test_selecting_links_drops_the_others_with_their_resources():
    both = replaced(
        links=(*PAIR.links, Link(0, 1, ("bus",), LinkKind.PCIE)),
        resources=(*PAIR.resources, Resource("bus", 3)),
    )
    assert select_links(both, [LinkKind.NVLINK]) == replaced()
    assert [link.kind for link in select_links(both, [LinkKind.PCIE]).links] == [LinkKind.PCIE]
    assert select_links(both, [LinkKind.SHM]).links == ()


@given(machines())
def test_the_networkx_graph_has_every_link(machine):
    graph = to_networkx(machine)
    assert sorted(graph.nodes) == list(range(machine.size))
    assert [graph.nodes[rank]["device"] for rank in range(machine.size)] == list(machine.devices)
    edges = sorted(
        (src, dst, data["kind"], data["resources"]) for src, dst, data in graph.edges(data=True)
    )
    assert edges == sorted((x.src, x.dst, x.kind.value, x.resources) for x in machine.links)
    capacity = {resource.name: resource.capacity for resource in machine.resources}
    for _, _, data in graph.edges(data=True):
        assert data["capacity"] == min(capacity[name] for name in data["resources"])
