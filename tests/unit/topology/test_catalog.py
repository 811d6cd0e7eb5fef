"""Known machines: their wiring as published."""

from collections import Counter

import pytest

from blinkrun.errors import UsageError
from blinkrun.topology.catalog import LinkSet, aliases, described, machine, machines
from blinkrun.topology.fabric import fabric_of
from blinkrun.topology.graph import LinkKind, select_links


def lanes_out(topology):
    """Lanes that leave each device over NVLink."""
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    total = Counter()
    for link in topology.links:
        total[link.src] += sum(capacity[name] for name in link.resources)
    return set(total.values())


@pytest.mark.parametrize(("name", "lanes"), [("dgx-1p", 4), ("dgx-1v", 6)])
def test_every_gpu_of_a_dgx1_uses_all_its_lanes(name, lanes):
    topology = machine(name)
    assert (topology.size, topology.unit) == (8, "lane")
    assert lanes_out(topology) == {lanes}


def test_links_of_a_dgx1_go_both_ways_alike():
    topology = machine("dgx-1v")
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    wide = {(link.src, link.dst): capacity[link.resources[0]] for link in topology.links}
    assert all(wide[dst, src] == lanes for (src, dst), lanes in wide.items())


def test_dgx2_joins_any_two_gpus_through_a_port_each():
    topology = machine("dgx-2")
    assert (topology.size, len(topology.links)) == (16, 240)
    assert {resource.capacity for resource in topology.resources} == {6}
    assert {link.kind for link in topology.links} == {LinkKind.NVSWITCH}


def test_pcie_of_a_dgx1_shares_switches_and_the_socket_interconnect():
    paths = {(link.src, link.dst): link.resources for link in machine("dgx-1v", "pcie").links}
    assert len(paths) == 56
    assert paths[0, 1] == ("pcie gpu 0 out", "pcie gpu 1 in")
    assert set(paths[0, 2]) - set(paths[0, 1]) >= {"pcie switch 0 up", "pcie switch 1 down"}
    assert "qpi 0->1" in paths[3, 4]
    assert "qpi 1->0" in paths[7, 0]
    assert not any("qpi" in name for name in paths[0, 3])


def test_all_links_are_those_of_both_kinds_in_the_same_unit():
    both = machine("dgx-1v", LinkSet.ALL)
    assert both.unit == "MB/s"
    nvlink = select_links(both, [LinkKind.NVLINK])
    assert [link.resources for link in nvlink.links] == [
        link.resources for link in machine("dgx-1v").links
    ]
    assert {resource.capacity for resource in nvlink.resources} == {23_000, 46_000}
    alone = {(link.src, link.dst): link for link in machine("dgx-1v", LinkSet.PCIE).links}
    peers = select_links(both, [LinkKind.PCIE]).links
    assert len(peers) == 56 - len(nvlink.links)
    assert all(alone[link.src, link.dst] == link for link in peers)


def test_beside_an_nvlink_pcie_goes_through_host_memory():
    staged = select_links(machine("dgx-1v", LinkSet.ALL), [LinkKind.STAGED])
    paths = {(link.src, link.dst): link.resources for link in staged.links}
    assert set(paths) == {(link.src, link.dst) for link in machine("dgx-1v").links}
    assert paths[0, 1] == (
        "pcie gpu 0 out",
        "pcie switch 0 up",
        "host memory 0",
        "pcie switch 0 down",
        "pcie gpu 1 in",
    )
    assert paths[4, 0][3] == "qpi 1->0"


def test_dgx2_in_megabytes():
    topology = machine("dgx-2", LinkSet.ALL)
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    assert (topology.unit, capacity["port 0 out"]) == ("MB/s", 138_000)
    assert {link.kind for link in topology.links} == {LinkKind.NVSWITCH, LinkKind.STAGED}


@pytest.mark.parametrize("name", [name for name in machines() if "72" not in name])
def test_equal_calls_give_equal_text(name):
    assert machine(name, "all").to_json() == machine(name, "all").to_json()


def test_other_names_and_cases_mean_the_same_machine():
    assert all(described(name).name == meant for name, meant in aliases().items())
    assert not set(aliases()) & set(machines())
    assert described("P3.16xLarge") == described("DGX_1V") == described("dgx-1v")


@pytest.mark.parametrize("name", machines())
def test_described_machines_state_all_that_a_report_would(name):
    stated = described(name)
    assert stated.name == name
    assert all(gpu.model and gpu.arch and gpu.numa is not None for gpu in stated.gpus)
    hosts = {node.host for node in stated.tree if node.parent < 0}
    each = stated.num_gpus // len(hosts)
    assert len(stated.pcie) == len(hosts) * each * (each - 1) // 2
    assert len(stated.gpu_nic) == stated.num_gpus * len(stated.nics)


@pytest.mark.parametrize(
    ("name", "kind", "lanes"),
    [
        ("dgx-a100", "switch", {12}),
        ("dgx-b200", "switch", {18}),
        ("gb200-nvl72", "switch", {18}),
        ("p3.8xlarge", "direct", {4, 5}),
        ("a100-4-mesh", "direct", {12}),
        ("h100-4-mesh", "direct", {18}),
        ("ac922-6", "direct", {4}),
        ("mi250x-8", "direct", {7}),
        ("mi300x-8", "direct", {7}),
        ("a100-pcie-8", "direct", {12}),
        ("rtx4090-8", "none", {0}),
    ],
)
def test_fabrics_of_known_machines(name, kind, lanes):
    fabric = fabric_of(described(name))
    assert (fabric.kind, set(fabric.lanes)) == (kind, lanes)


def test_gpus_of_different_trays_meet_over_nvlink_alone():
    kinds = {
        (link.src // 4 == link.dst // 4, link.kind) for link in machine("gb200-nvl72", "all").links
    }
    assert kinds == {
        (True, LinkKind.NVSWITCH),
        (True, LinkKind.STAGED),
        (False, LinkKind.NVSWITCH),
    }


def test_unknown_machines_are_refused():
    with pytest.raises(UsageError, match="no machine 'dgx-h10' in the catalog; near are dgx-h100"):
        described("dgx-h10")
    with pytest.raises(UsageError, match=r"no machine 'abacus' in the catalog; it has dgx-1p"):
        machine("abacus")
