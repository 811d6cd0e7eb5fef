"""What joins a host to others, and hosts that it joins."""

from fractions import Fraction

import pytest

from blinkrun.errors import TopologyError
from blinkrun.topology.between import Network, scale_of
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce
from blinkrun.topology.hosts import (
    host_of,
    join_hosts,
    network_names,
    program_hosts,
    units_per_mb_per_s,
)

DGX1V = machine("dgx-1v", "all")
TWO, THREE = induce(DGX1V, [0, 1]), induce(DGX1V, [2, 3, 4])


def capacities(topology):
    return {each.name: each.capacity for each in topology.resources if " network " in each.name}


def test_every_host_has_a_network_of_its_own():
    joined = join_hosts([TWO, THREE], networks=[Network(100), Network(250, nics=2)])
    assert capacities(joined) == {
        "host 0 network in": 100,
        "host 0 network out": 100,
        "host 1 network in": 250,
        "host 1 network out": 250,
    }
    assert network_names(joined, 1, "in") == ("host 1 network in",)


def test_ranks_take_the_nic_next_to_them():
    far = Network(300, nics=3, nic_of=(2, 0, 0))
    joined = join_hosts([TWO, THREE], networks=[Network(100), far])
    assert network_names(joined, 1, "out") == tuple(f"host 1 network {nic} out" for nic in range(3))
    assert {capacities(joined)[name] for name in network_names(joined, 1, "out")} == {100}
    taken = {
        link.src: link.resources[0]
        for link in joined.links
        if link.kind is LinkKind.NETWORK and host_of(joined)[link.src] == 1
    }
    assert taken == {
        2: "host 1 network 2 out",
        3: "host 1 network 0 out",
        4: "host 1 network 0 out",
    }


def test_a_slow_network_is_counted_in_kilobytes_and_so_are_the_hosts():
    slow = Network.of_gbps(Fraction(1, 100))
    joined = join_hosts([TWO, THREE], networks=[slow, Network(125)])
    assert (joined.unit, units_per_mb_per_s(joined)) == ("kB/s", 1000)
    assert capacities(joined)["host 0 network in"] == 1250
    own = {each.name: each.capacity for each in TWO.resources}
    for each in joined.resources:
        if each.name.startswith("host 0 ") and " network " not in each.name:
            assert each.capacity == 1000 * own[each.name.removeprefix("host 0 ")]
    whole = join_hosts([TWO, THREE], networks=[Network(10), Network(125)])
    assert (whole.unit, units_per_mb_per_s(whole)) == ("MB/s", 1)
    assert scale_of([Network(Fraction(1, 3))]) == 1000
    assert Network(Fraction(1, 10**6)).capacity(1000) == 1  # never nothing


def test_programs_number_hosts_by_their_first_ranks():
    joined = join_hosts([TWO, THREE], network_gbps=40)
    assert program_hosts(joined) == (0, 0, 1, 1, 1)
    assert program_hosts(induce(joined, [1003, 0, 1002])) == (0, 1, 0)
    assert program_hosts(induce(joined, [1003, 1002])) == ()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"mb_per_s": 0}, "a network of 0 MB/s over 1 NICs carries nothing"),
        ({"mb_per_s": 5, "nics": 0}, "over 0 NICs"),
        ({"mb_per_s": 5, "latency_us": 0}, "latency is 0 us"),
        ({"mb_per_s": 5, "nics": 2, "nic_of": (0, 2)}, r"next to NICs \(0, 2\), there are 2"),
    ],
)
def test_a_network_that_cannot_be_is_refused(how, message):
    with pytest.raises(TopologyError, match=message):
        Network(**how)


def test_networks_of_other_hosts_are_refused():
    with pytest.raises(TopologyError, match="2 hosts, but the networks of 1"):
        join_hosts([TWO, THREE], networks=[Network(5)])
    near = Network(5, nics=2, nic_of=(0, 1))
    with pytest.raises(TopologyError, match=r"host 1 \(dgx-1v\) has 3 ranks, NICs are told of 2"):
        join_hosts([TWO, THREE], networks=[Network(5), near])
