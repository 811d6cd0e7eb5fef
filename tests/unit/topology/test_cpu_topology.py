"""Ranks on a CPU host: where they sit and what their links take."""

import pytest
from support.topologies import host_of

from blinkrun.errors import TopologyError
from blinkrun.topology.cpu import Cpu, Host, cpu_topology, socket_of_rank


def test_a_socket_is_a_switch_with_one_port_per_reader():
    topology = cpu_topology(host_of(1, 4), 3)
    assert len(topology.links) == 6
    assert all(link.resources == (f"core of rank {link.dst}",) for link in topology.links)


def test_links_between_sockets_take_the_interconnect_of_their_direction():
    paths = {(link.src, link.dst): link.resources for link in cpu_topology(host_of(2, 2), 4).links}
    assert paths[0, 1] == ("core of rank 1",)
    assert paths[1, 2] == ("core of rank 2", "socket 0->1")
    assert paths[3, 0] == ("core of rank 0", "socket 1->0")


@pytest.mark.parametrize(
    ("sockets", "ranks", "places"),
    [
        (1, 3, (0, 0, 0)),
        (2, 1, (0,)),
        (2, 2, (0, 1)),
        (2, 5, (0, 0, 0, 1, 1)),
        (3, 4, (0, 0, 1, 2)),
    ],
)
def test_ranks_fill_the_sockets_in_order(sockets, ranks, places):
    assert socket_of_rank(host_of(sockets, 2), ranks) == places


def test_ranks_that_outnumber_cores_share_them():
    def core(ranks):
        return cpu_topology(host_of(1, 2), ranks).resources[0].capacity

    assert core(1) == core(2) == 2 * core(4) == 8 * core(16)


def test_hardware_threads_are_no_cores():
    threads = Host(tuple(Cpu(cpu, core=cpu // 2, socket=0, numa=0) for cpu in range(8)))
    assert (threads.num_cores(), threads.num_cores(0), threads.num_cores(1)) == (4, 4, 0)


def test_a_host_says_what_it_is():
    host = Host((Cpu(4, core=1, socket=1, numa=1), Cpu(0, core=0, socket=0, numa=0)), False)
    assert host.cpus[0].cpu == 0
    assert (host.sockets, host.numa_nodes) == ((0, 1), (0, 1))
    assert (
        host.describe() == "2 cores on 2 sockets, 2 NUMA nodes (the machine hides where they sit)"
    )
    assert host_of(1, 1).describe() == "1 core on 1 socket, 1 NUMA node"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Host(()), "at least one processor"),
        (lambda: Host((Cpu(0, 0, 0, 0), Cpu(0, 1, 0, 0))), "a processor twice"),
        (lambda: cpu_topology(host_of(1, 1), 0), "0 ranks on a host"),
    ],
)
def test_impossible_hosts_are_refused(make, text):
    with pytest.raises(TopologyError, match=text):
        make()
