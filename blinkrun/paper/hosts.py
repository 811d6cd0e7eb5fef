"""Figure 19b: allreduce on two hosts with 3 and 5 GPUs, over faster and faster networks."""

from __future__ import annotations

from blinkrun.paper.links import allocation
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import join_hosts

# The paper gives the numbers of GPUs alone. These carry the most of their sizes in figure 16, and
# three of them 35.4 GB/s, which is what the paper's fastest network gives.
HOSTS = ((5, 6, 7), (1, 2, 5, 6, 7))


def two_hosts(network_gbps: int) -> Topology:
    """Return the two hosts, joined by a network with one NIC a host.

    >>> two_hosts(40).size
    8
    """
    return join_hosts([allocation("dgx-1v", gpus) for gpus in HOSTS], network_gbps=network_gbps)
