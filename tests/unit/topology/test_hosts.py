"""Several hosts as one topology."""

import pytest

from blinkrun.errors import TopologyError
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.hosts import host_of, join_hosts, ranks_by_host, through_one_gpu

DGX1V = machine("dgx-1v", "all")
THREE, FIVE = induce(DGX1V, [0, 1, 2]), induce(DGX1V, [3, 4, 5, 6, 7])


def without_prefix(link, first):
    names = tuple(name.split(" ", 2)[2] for name in link.resources)
    return link.src - first, link.dst - first, names, link.kind


def test_every_host_keeps_its_links_and_resources():
    joined = join_hosts([THREE, FIVE], network_gbps=40)
    assert joined.size == 8
    for number, (host, first) in enumerate([(THREE, 0), (FIVE, 3)]):
        prefix = f"host {number} "
        own = [
            link
            for link in joined.links
            if link.kind is not LinkKind.NETWORK and host_of(joined)[link.src] == number
        ]
        assert {without_prefix(link, first) for link in own} == {
            (link.src, link.dst, link.resources, link.kind) for link in host.links
        }
        capacity = {each.name: each.capacity for each in joined.resources}
        assert all(capacity[prefix + each.name] == each.capacity for each in host.resources)


def test_any_two_ranks_of_different_hosts_share_what_their_hosts_send_and_receive():
    joined = join_hosts([THREE, FIVE, THREE], network_gbps=40, nics=2)
    host = host_of(joined)
    assert host == (0,) * 3 + (1,) * 5 + (2,) * 3
    assert joined.devices == (0, 1, 2, 1003, 1004, 1005, 1006, 1007, 2000, 2001, 2002)
    assert ranks_by_host(joined) == ((0, 1, 2), (3, 4, 5, 6, 7), (8, 9, 10))
    across = [link for link in joined.links if link.kind is LinkKind.NETWORK]
    assert {(link.src, link.dst) for link in across} == {
        (src, dst) for src in range(11) for dst in range(11) if host[src] != host[dst]
    }
    for link in across:
        assert link.resources == (
            f"host {host[link.src]} network out",
            f"host {host[link.dst]} network in",
        )
    rates = {each.capacity for each in joined.resources if " network " in each.name}
    assert rates == {40 * 125 * 2}


def test_a_single_host_has_no_network():
    alone = join_hosts([THREE], network_gbps=40)
    assert len(alone.links) == len(THREE.links)
    assert through_one_gpu(alone) is alone
    assert not [each for each in alone.resources if "network" in each.name]


def test_joined_hosts_are_a_topology_like_any_other():
    joined = join_hosts([THREE, FIVE], network_gbps=100)
    assert Topology.from_json(joined.to_json()) == joined
    assert host_of(induce(joined, [2, 1004, 1003])) == (0, 1, 1)
    assert join_hosts([THREE, THREE], network_gbps=1).name == "2 x dgx-1v"
    mixed = join_hosts([THREE, machine("dgx-2", "all")], network_gbps=1)
    assert mixed.name == "dgx-1v + dgx-2"


def test_a_ring_finds_the_widest_pcie_link_of_a_host_before_the_network():
    alone = induce(DGX1V, [0])
    nvlink = select_links(THREE, [LinkKind.NVLINK])
    dgx_a100 = machine("dgx-a100", "all")
    ring = through_one_gpu(join_hosts([THREE, alone, nvlink, dgx_a100], network_gbps=400))
    capacity = {each.name: each.capacity for each in ring.resources}
    widths = [capacity[f"host {number} nic pcie out"] for number in range(4)]
    assert widths == [10_000, 10_000, 10_000, 22_000]
    for link in ring.links:
        if link.kind is LinkKind.NETWORK:
            src, dst = host_of(ring)[link.src], host_of(ring)[link.dst]
            assert link.resources[0] == f"host {src} nic pcie out"
            assert link.resources[-1] == f"host {dst} nic pcie in"


@pytest.mark.parametrize(
    ("hosts", "how", "message"),
    [
        ([], {}, "no hosts to join"),
        ([THREE], {"network_gbps": 0}, "a network of 0 Gbit/s over 1 NICs"),
        ([THREE], {"nics": 0}, "a network of 40 Gbit/s over 0 NICs"),
        ([THREE, machine("dgx-1v")], {}, r"host 1 \(dgx-1v\) counts in lane"),
        ([induce(DGX1V, [0, 1], relays=[2])], {}, "has 1 relays"),
        ([join_hosts([THREE, THREE], network_gbps=1)], {}, "has a device 1002"),
    ],
)
def test_what_cannot_be_joined_is_said(hosts, how, message):
    with pytest.raises(TopologyError, match=message):
        join_hosts(hosts, **{"network_gbps": 40, **how})
