"""From machines to links over shared resources."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import ROOT

from blinkrun.errors import UsageError
from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.catalog import described, machines
from blinkrun.topology.fabric import FabricKind, fabric_of
from blinkrun.topology.graph import LinkKind
from blinkrun.topology.machine import (
    Gpu,
    Machine,
    Nic,
    NvSwitch,
    PciKind,
    PciNode,
    PciPath,
    Wire,
    Xgmi,
)
from blinkrun.topology.model import LinkSet, link_latency_ns, topology_of
from blinkrun.topology.read import read_machine

CASES = sorted((ROOT / "tests/data/topologies").glob("*/case.json"))


def paths_of(topology):
    """Resources of every link by (src, dst, kind)."""
    return {(link.src, link.dst, link.kind): link.resources for link in topology.links}


def capacities(topology):
    return {resource.name: resource.capacity for resource in topology.resources}


def flat(size=2, *, gpu=None, **parts):
    """GPUs at one CPU of which no more is known than `parts`."""
    gpus = tuple(replace(gpu or Gpu(""), name=f"GPU{at}") for at in range(size))
    return Machine("m", "by hand", gpus, **parts)


def tree_of(*nodes, gpu=None, **parts):
    """A machine with an exact tree, as many GPUs as the tree has."""
    size = sum(len(node.gpus) for node in nodes)
    return flat(size, gpu=gpu, tree=nodes, **parts)


CPU = PciNode(PciKind.CPU, "cpu 0", numa=0)


def gpu_node(gpu, parent, gt_per_s=None, width=None):
    return PciNode(PciKind.GPU, f"g{gpu}", parent, gt_per_s, width, gpus=(gpu,))


def bridge(parent, gt_per_s=None, width=None):
    return PciNode(PciKind.BRIDGE, "b", parent, gt_per_s, width)


def any_machine(seed):
    """A machine as no reader would give it, contradictions and all."""
    rng = random.Random(seed)
    size = rng.randint(1, 6)
    pairs = list(combinations(range(size), 2))

    def some():
        return [pair for pair in pairs if rng.random() < rng.choice((0.2, 0.9))]

    def maybe(*values):
        return rng.choice((None, *values))

    words = ["PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PCIE", "?"]
    tree = []
    if rng.random() < 0.5:
        tree.append(CPU)
        for gpu in rng.sample(range(size), rng.randint(1, size)):
            tree.append(bridge(rng.randrange(-1, len(tree)), 2.5, 1))
            speed = maybe(0.0, 2.5, 5.0, 16.0, 1e9)
            tree.append(gpu_node(gpu, rng.randrange(-1, len(tree)), speed, rng.randint(0, 20)))
    return Machine(
        "any",
        "by hand",
        tuple(
            Gpu(
                f"GPU{at}",
                model=rng.choice(["", "Tesla V100", "GeForce RTX 3090", "MI300X"]),
                numa=maybe(-1, 0, 1),
                lanes=maybe(1, 4, 18),
                lane_gb_per_s=maybe(0.0, 1e-9, 25.0),
                c2c_mb_per_s=maybe(0, 9000),
            )
            for at in range(size)
        ),
        (Nic("NIC0"),),
        nvlink=maybe(tuple(Wire(*pair, rng.randint(1, 20)) for pair in some())),
        xgmi=tuple(Xgmi(*pair, hops=rng.randint(1, 2)) for pair in some()),
        pcie=maybe(tuple(PciPath(*pair, rng.choice(words)) for pair in some())),
        p2p=tuple((*pair, rng.choice(["OK", "GNS", "U"])) for pair in some()),
        switches=maybe((NvSwitch("s", tuple(range(size))), NvSwitch("t", (3,) * size))) or (),
        tree=tuple(tree),
    )


@given(st.integers(0, 10**9), st.sampled_from(LinkSet))
def test_any_machine_gives_a_topology_or_a_usage_error(seed, links):
    machine = any_machine(seed)
    try:
        topology = topology_of(machine, links)
    except UsageError:
        return
    assert topology.size == machine.num_gpus
    assert topology.unit == ("lane" if links is LinkSet.NVLINK else "MB/s")
    reverse = Counter((link.dst, link.src, link.kind) for link in topology.links)
    assert reverse == Counter((link.src, link.dst, link.kind) for link in topology.links)
    taken = {name for link in topology.links for name in link.resources}
    assert taken == set(capacities(topology))
    if links is not LinkSet.NVLINK:
        pcie = [link for link in topology.links if not link.kind.is_fabric]
        assert {(link.src, link.dst) for link in pcie} == set(
            permutations(range(machine.num_gpus), 2)
        )
        joined = fabric_of(machine).pairs if links is LinkSet.ALL else ()
        for link in pcie:
            if (min(link.src, link.dst), max(link.src, link.dst)) in joined:
                assert link.kind is LinkKind.STAGED


@given(st.integers(0, 10**9))
def test_by_way_of_memory_takes_all_that_peer_access_takes(seed):
    machine = any_machine(seed)
    pairs = list(combinations(range(machine.num_gpus), 2))
    allowed = replace(machine, p2p=tuple((*pair, "OK") for pair in pairs))
    refused = replace(machine, p2p=tuple((*pair, "GNS") for pair in pairs))
    try:
        peers = paths_of(topology_of(allowed, LinkSet.PCIE))
    except UsageError:
        return
    staged = paths_of(topology_of(refused, LinkSet.PCIE))
    for (src, dst, kind), path in peers.items():
        assert kind is LinkKind.PCIE
        longer = staged[src, dst, LinkKind.STAGED]
        has_c2c = {at for at in (src, dst) if machine.gpus[at].c2c_mb_per_s}
        beside = [name for name in path if name.startswith(("socket", "qpi", "upi"))]
        assert set(beside if has_c2c else path) < set(longer)


@pytest.mark.parametrize("case", CASES, ids=[case.parent.name for case in CASES])
def test_reports_of_real_machines_are_what_they_are_known_to_be(case):
    meta = json.loads(case.read_text())
    text = (case.parent / meta["input"]).read_text()
    machine = read_machine(text, case.parent.name, partial=True)
    fabric = fabric_of(machine)
    if not (machine.nvlink or machine.xgmi):
        assert fabric.kind is FabricKind.NONE
    else:
        known = {"nvswitch": "switch", "bridge": "direct"}
        assert fabric.kind == known.get(meta["fabric_guess"], meta["fabric_guess"])
        lanes = topology_of(machine, LinkSet.NVLINK)
        assert {link.kind.is_fabric for link in lanes.links} == {True}
    if machine.nvlink is None:
        with pytest.raises(UsageError, match=r"topo -m|no GPU"):
            topology_of(machine)
        return
    both = topology_of(machine)
    joined = {(link.src, link.dst) for link in both.links}
    assert joined == set(permutations(range(machine.num_gpus), 2))
    # whatever a real machine has, it is within what such links achieve
    assert all(2_000 <= capacity <= 800_000 for capacity in capacities(both).values())


@pytest.mark.parametrize("name", machines())
def test_machines_of_the_catalog_are_joined_by_all_links(name):
    machine = described(name)
    topology = topology_of(machine)
    assert topology.size == machine.num_gpus
    assert {(link.src, link.dst) for link in topology.links} == set(
        permutations(range(topology.size), 2)
    )


def test_behind_a_switch_a_pair_takes_a_port_each_and_what_is_narrow():
    wires = tuple(Wire(*pair, 9 if pair == (0, 2) else 12) for pair in combinations(range(4), 2))
    topology = topology_of(flat(4, nvlink=wires), LinkSet.NVLINK)
    paths = paths_of(topology)
    assert paths[0, 1, LinkKind.NVSWITCH] == ("port 0 out", "port 1 in")
    assert paths[0, 2, LinkKind.NVSWITCH] == ("port 0 out", "port 2 in", "nvlink 0->2")
    assert capacities(topology)["port 0 out"] == 12
    assert capacities(topology)["nvlink 2->0"] == 9
    assert capacities(topology_of(flat(4, nvlink=wires)))["port 0 out"] == 12 * 22_500


def test_xgmi_has_links_of_its_own_kind():
    topology = topology_of(flat(2, xgmi=(Xgmi(0, 1, lanes=4),)), LinkSet.NVLINK)
    assert capacities(topology) == {"xgmi 0->1": 4, "xgmi 1->0": 4}
    assert {link.kind for link in topology.links} == {LinkKind.XGMI}


def test_two_at_one_switch_share_its_uplink_only_beyond_it():
    nodes = (CPU, bridge(0), gpu_node(0, 1), gpu_node(1, 1), gpu_node(2, 0))
    paths = paths_of(topology_of(tree_of(*nodes), LinkSet.PCIE))
    assert paths[0, 1, LinkKind.PCIE] == ("pcie gpu 0 out", "pcie gpu 1 in")
    assert paths[0, 2, LinkKind.PCIE] == ("pcie gpu 0 out", "pcie switch 0 up", "pcie gpu 2 in")
    assert paths[2, 1, LinkKind.PCIE] == ("pcie gpu 2 out", "pcie switch 0 down", "pcie gpu 1 in")


def test_chains_of_bridges_are_as_wide_as_their_narrowest_link():
    nodes = (
        CPU,
        bridge(0, 16.0, 16),
        bridge(1, 16.0, 8),
        gpu_node(0, 2, 16.0, 16),
        bridge(2, 16.0, 4),
        bridge(4, 16.0, 16),
        gpu_node(1, 5, 16.0, 16),
    )
    topology = topology_of(tree_of(*nodes, p2p=((0, 1, "GNS"),)), LinkSet.PCIE)
    found = capacities(topology)
    x16 = DEFAULT["pcie4_x16"]
    assert found["pcie gpu 0 out"] == x16
    assert found["pcie gpu 1 in"] == x16 // 4
    assert found["pcie switch 0 up"] == x16 // 2
    assert len([name for name in found if "switch" in name]) == 2


@pytest.mark.parametrize(
    ("gt_per_s", "width", "gpu", "rate"),
    [
        (16.0, 16, None, ("pcie4_x16", 16)),
        (16.0, 8, None, ("pcie4_x16", 8)),
        (8.0, 1, None, ("pcie3_x16", 1)),
        (32.0, None, None, ("pcie5_x16", 16)),
        (32.0, 0, None, ("pcie5_x16", 16)),
        (None, None, None, ("pcie3_x16", 16)),
        (None, None, Gpu("", arch="90"), ("pcie5_x16", 16)),
        (2.5, 16, Gpu("", arch="90"), ("pcie5_x16", 16)),  # asleep
        (2.5, 8, Gpu("", arch="80"), ("pcie4_x16", 8)),
        (2.5, 1, Gpu("", arch="80"), ("pcie4_x16", 16)),  # a virtual bridge
        (0.0, 16, Gpu("", arch="80"), ("pcie4_x16", 16)),
        (16.0, 16, Gpu("", arch="70"), ("pcie3_x16", 16)),  # more than a V100 can
        (8.0, 16, Gpu("", arch="90"), ("pcie3_x16", 16)),
        (16.0, 32, None, ("pcie4_x16", 16)),
    ],
)
def test_speed_and_width_as_stated_unless_that_cannot_be(gt_per_s, width, gpu, rate):
    nodes = (CPU, gpu_node(0, 0, gt_per_s, width), gpu_node(1, 0, gt_per_s, width))
    name, lanes = rate
    found = capacities(topology_of(tree_of(*nodes, gpu=gpu), LinkSet.PCIE))
    assert set(found.values()) == {DEFAULT[name] * lanes // 16}


def test_a_bridge_that_says_nothing_is_like_the_newest_gpu_below():
    nodes = (CPU, bridge(0, 2.5, 1), gpu_node(0, 1, 8.0, 16), gpu_node(1, 1, 16.0, 16))
    machine = tree_of(*nodes, p2p=((0, 1, "NS"),))
    assert capacities(topology_of(machine))["pcie switch 0 up"] == DEFAULT["pcie4_x16"]


@pytest.mark.parametrize(
    ("vendor", "gpu", "name", "figure"),
    [
        ("intel", "60", "qpi", "qpi"),
        ("intel", "70", "qpi", "qpi"),
        ("intel", "80", "upi", "upi"),
        ("intel", "90", "upi", "upi2"),
        ("intel", "100", "upi", "upi3"),
        ("amd", "80", "socket", "epyc_socket"),
        ("amd", "90", "socket", "epyc3_socket"),
        ("amd", "100", "socket", "epyc5_socket"),
        ("power", "70", "socket", "power9_socket"),
        ("arm", "90", "socket", "arm_socket"),
        ("zhaoxin", "80", "socket", "zhaoxin_socket"),
        ("", "80", "socket", "epyc_socket"),
        ("", "", "socket", "upi"),
    ],
)
def test_between_sockets(vendor, gpu, name, figure):
    nodes = (
        PciNode(PciKind.CPU, "cpu 0", numa=0, vendor=vendor),
        gpu_node(0, 0),
        PciNode(PciKind.CPU, "cpu 4", numa=4),
        gpu_node(1, 2),
    )
    topology = topology_of(tree_of(*nodes, gpu=Gpu("", arch=gpu)), LinkSet.PCIE)
    assert paths_of(topology)[0, 1, LinkKind.PCIE][1] == f"{name} 0->4"
    assert capacities(topology)[f"{name} 4->0"] == DEFAULT[figure]


def test_volta_behind_switches_came_with_newer_cpus():
    found = capacities(topology_of(described("dgx-2"), LinkSet.PCIE))
    assert found["upi 0->1"] == DEFAULT["upi"]


@pytest.mark.parametrize(
    ("word", "figures"),
    [("SOC", ("pcie3_x16", "qpi")), ("SYS", ("pcie3_x16", "upi")), ("PCIE", ("pcie4_x16",))],
)
def test_the_words_of_a_report_tell_its_age(word, figures):
    found = capacities(topology_of(flat(2, pcie=(PciPath(0, 1, word),))))
    assert set(found.values()) == {DEFAULT[figure] for figure in figures}


def test_sockets_of_one_numa_node_share_what_leads_out_of_it():
    """Eight cards, each of its own domain, SYS to all; two NUMA nodes all the same."""
    pcie = tuple(PciPath(*pair, "SYS") for pair in combinations(range(4), 2))
    gpus = tuple(Gpu(f"GPU{at}", numa=at // 2) for at in range(4))
    paths = paths_of(topology_of(Machine("m", "x", gpus, pcie=pcie)))
    crossing = {paths[src, dst, LinkKind.PCIE][1] for src in (0, 1) for dst in (2, 3)}
    assert crossing == {"socket 0->1"}
    assert paths[0, 1, LinkKind.PCIE][1] == "socket 0.0->0.1"


def test_hosts_apart_have_no_pcie_between_them():
    nodes = (
        PciNode(PciKind.CPU, "cpu 0", numa=0, host="a"),
        gpu_node(0, 0),
        gpu_node(1, 0),
        PciNode(PciKind.CPU, "cpu 0", numa=0, host="b"),
        gpu_node(2, 3),
        gpu_node(3, 3),
    )
    topology = topology_of(tree_of(*nodes, p2p=((2, 3, "GNS"),)), LinkSet.PCIE)
    assert {(link.src, link.dst) for link in topology.links} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert "host memory h1.0" in capacities(topology)


def test_a_link_to_the_cpu_in_the_package_replaces_pcie_on_the_way_to_memory():
    gpu = Gpu("", arch="90", c2c_mb_per_s=400_000)
    topology = topology_of(flat(2, gpu=gpu, p2p=((0, 1, "GNS"),)))
    assert paths_of(topology)[0, 1, LinkKind.STAGED] == (
        "c2c gpu 0 out",
        "host memory 0",
        "c2c gpu 1 in",
    )
    assert capacities(topology)["c2c gpu 0 out"] == 400_000


@pytest.mark.parametrize(
    ("model", "word", "kind"),
    [
        ("", None, LinkKind.PCIE),
        ("", "OK", LinkKind.PCIE),
        ("", "U", LinkKind.PCIE),
        *(("", word, LinkKind.STAGED) for word in ("CNS", "GNS", "TNS", "NS", "DR")),
        ("NVIDIA GeForce RTX 4090", None, LinkKind.STAGED),
        ("NVIDIA GeForce RTX 4090", "U", LinkKind.STAGED),
        ("NVIDIA GeForce RTX 4090", "OK", LinkKind.PCIE),  # a driver that was changed
        ("NVIDIA RTX A6000", None, LinkKind.PCIE),
    ],
)
def test_peer_access_as_stated_else_as_usual_for_the_model(model, word, kind):
    p2p = ((0, 1, word),) if word else ()
    machine = flat(2, gpu=Gpu("", model=model), p2p=p2p, pcie=(PciPath(0, 1, "PHB"),))
    for links in (LinkSet.PCIE, LinkSet.ALL):
        assert {link.kind for link in topology_of(machine, links).links} == {kind}


def test_pcie_alone_is_peer_to_peer_even_where_nvlink_is():
    machine = flat(2, nvlink=(Wire(0, 1, 4),))
    assert {link.kind for link in topology_of(machine, LinkSet.PCIE).links} == {LinkKind.PCIE}


def test_measured_bandwidths_are_used():
    table = DEFAULT.updated({"nvlink2_lane": 20_000, "pcie3_x16": 9_000, "qpi": 7_000}, "mine")
    found = capacities(topology_of(described("dgx-1v"), LinkSet.ALL, table))
    assert (found["nvlink 0->3"], found["pcie gpu 0 out"], found["qpi 0->1"]) == (
        *(40_000, 9_000, 7_000),
    )


def test_every_kind_of_link_has_a_latency():
    assert all(link_latency_ns(kind) > 0 for kind in LinkKind)
    slow = DEFAULT.updated({"latency_pcie_staged": 9_000}, "mine")
    assert link_latency_ns(LinkKind.STAGED, slow) == 9_000


@pytest.mark.parametrize(
    ("machine", "links", "problem"),
    [
        (flat(0), LinkSet.ALL, "m: the report names no GPU"),
        (flat(2, nvlink=None, pcie=None), LinkSet.ALL, "the one of `nvidia-smi topo -m` does"),
        (flat(2, nvlink=None, pcie=None), LinkSet.PCIE, "does not say which GPUs are linked"),
        (flat(2, nvlink=None), LinkSet.NVLINK, "does not say which GPUs are linked"),
        (flat(2), LinkSet.NVLINK, "m has no NVLink; use --links pcie"),
    ],
)
def test_what_cannot_be_planned_is_said(machine, links, problem):
    with pytest.raises(UsageError, match=problem):
        topology_of(machine, links)


def test_what_is_stated_in_part_is_used():
    assert len(topology_of(flat(2, nvlink=None)).links) == 2
    assert len(topology_of(flat(2, nvlink=None, pcie=None, xgmi=(Xgmi(0, 1),))).links) == 4
    with_tree = tree_of(CPU, gpu_node(0, 0), gpu_node(1, 0), nvlink=None, pcie=None)
    assert len(topology_of(with_tree).links) == 2
    assert topology_of(flat(1)).links == ()
