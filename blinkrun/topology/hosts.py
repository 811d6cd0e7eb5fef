"""Several hosts as one topology: every host's own links, and the network between them.

Any rank reaches any rank of another host over a NETWORK link, which takes what its host sends and
what the other receives: all NICs of a host together, or the rank's own NIC where that is known. The
way from a GPU to the NIC is taken to be as fast as the network: with GPUDirect RDMA a NIC reads the
memory of whichever GPU holds the data, and trees with many roots spread over many PCIe links. It is
the assumption under which Blink's paper simulates faster networks (MLSys 2020, section 5.5, figure
19). A ring goes through one GPU's PCIe link: `through_one_gpu` gives the topology as a ring finds
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

from blinkrun.errors import TopologyError
from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.between import FINE_UNIT, MB_PER_S_PER_GBPS, Network, scale_of
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Rank

__all__ = [
    "DEVICES_PER_HOST",
    "FINE_UNIT",
    "MB_PER_S_PER_GBPS",
    "Network",
    "host_of",
    "join_hosts",
    "network_names",
    "program_hosts",
    "ranks_by_host",
    "through_one_gpu",
    "units_per_mb_per_s",
]

DEVICES_PER_HOST = 1000
"""Device names of a joined topology: host times this, plus the device's name on its host."""

_UNIT = "MB/s"


def join_hosts(
    hosts: Sequence[Topology],
    *,
    network_gbps: Fraction | int = 1,
    nics: int = 1,
    networks: Sequence[Network] = (),
) -> Topology:
    """Return the hosts as one topology, joined by a network that any two of them share alone.

    Parameters
    ----------
    hosts : sequence of Topology
        In MB/s, without relays; they may differ. Ranks are numbered host by host.
    network_gbps : Fraction or int
        What a NIC sends, and what it receives at the same time, in Gbit/s.
    nics : int, default 1
        NICs per host.
    networks : sequence of Network, optional
        What each host has, instead of both.

    Returns
    -------
    Topology
        Rank r of host h (from 0) is device ``1000 * h`` plus its device on the host. Resources
        have ``host 0 `` before their names; the network's are ``host 0 network out`` and ``host 0
        network in``, each of 125 MB/s per Gbit/s and NIC; ``host 0 network 1 out`` where it is
        known which NIC a rank takes. Counted in kB/s where a network has no whole MB/s.

    Raises
    ------
    TopologyError
        If there is no host, a host counts in lanes or has relays, or the network has no rate or
        is that of other hosts.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1 = machine("dgx-1v", "all")
    >>> from blinkrun.topology.graph import induce
    >>> joined = join_hosts([induce(dgx1, [0, 1, 2]), induce(dgx1, [3, 4])], network_gbps=40)
    >>> joined.devices, host_of(joined)
    ((0, 1, 2, 1003, 1004), (0, 0, 0, 1, 1))
    >>> [link.resources for link in joined.links if (link.src, link.dst) == (0, 3)]
    [('host 0 network out', 'host 1 network in')]
    """
    if not hosts:
        raise TopologyError("no hosts to join")
    networks = tuple(networks) or (Network.of_gbps(network_gbps, nics=nics),) * len(hosts)
    for number, host in enumerate(hosts):
        _check(number, host)
    _check_networks(hosts, networks)
    scale = scale_of(networks) if len(hosts) > 1 else 1
    links = [link for number, host in enumerate(hosts) for link in _own(hosts, number, host)]
    resources = [
        Resource(f"host {number} {resource.name}", resource.capacity * scale)
        for number, host in enumerate(hosts)
        for resource in host.resources
    ]
    if len(hosts) > 1:
        links += _network_links(hosts, networks)
        resources += [
            Resource(f"host {number} {name}", network.capacity(scale))
            for number, network in enumerate(networks)
            for way in ("out", "in")
            for name in network.resources(way)
        ]
    return Topology(
        name=_name(hosts),
        devices=tuple(
            number * DEVICES_PER_HOST + device
            for number, host in enumerate(hosts)
            for device in host.devices
        ),
        links=tuple(links),
        resources=tuple(resources),
        unit=_UNIT if scale == 1 else FINE_UNIT,
    )


def host_of(topology: Topology) -> tuple[int, ...]:
    """Return the host of every rank, from 0; all 0 where hosts were not joined.

    >>> from blinkrun.topology.catalog import machine
    >>> host_of(machine("dgx-1v"))
    (0, 0, 0, 0, 0, 0, 0, 0)
    """
    return tuple(device // DEVICES_PER_HOST for device in topology.devices[: topology.size])


def program_hosts(topology: Topology) -> tuple[int, ...]:
    """Return the host of every rank as programs number them; empty where all are on one.

    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> pair = induce(machine("dgx-1v", "all"), [0, 1])
    >>> joined = join_hosts([pair, pair, pair], network_gbps=100)
    >>> program_hosts(induce(joined, [2001, 0, 2000])), program_hosts(pair)
    ((0, 1, 0), ())
    """
    hosts = host_of(topology)
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return tuple(numbers[host] for host in hosts) if len(numbers) > 1 else ()


def ranks_by_host(topology: Topology) -> tuple[tuple[Rank, ...], ...]:
    """Return the ranks of every host, hosts in ascending order.

    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> pair = induce(machine("dgx-1v", "all"), [0, 1])
    >>> ranks_by_host(join_hosts([pair, pair], network_gbps=100))
    ((0, 1), (2, 3))
    """
    ranks: dict[int, list[Rank]] = {}
    for rank, host in enumerate(host_of(topology)):
        ranks.setdefault(host, []).append(rank)
    return tuple(tuple(ranks[host]) for host in sorted(ranks))


def network_names(topology: Topology, host: int, way: str) -> tuple[str, ...]:
    """Return the resources of a host's NICs for one way, ``out`` or ``in``.

    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> pair = induce(machine("dgx-1v", "all"), [0, 1])
    >>> network_names(join_hosts([pair, pair], network_gbps=100), 1, "out")
    ('host 1 network out',)
    """
    return tuple(
        resource.name
        for resource in topology.resources
        if resource.name.startswith(f"host {host} network ") and resource.name.endswith(f" {way}")
    )


def units_per_mb_per_s(topology: Topology) -> int:
    """Return how many units of the topology's capacities are an MB/s: 1, or 1000 for kB/s."""
    return 1000 if topology.unit == FINE_UNIT else 1


def through_one_gpu(topology: Topology) -> Topology:
    """Return joined hosts such that all traffic of a host with others takes one GPU's PCIe link.

    That is what a single ring gets: it enters a host at one GPU, leaves it at another, and its NIC
    reads and writes their memory over PCIe, however fast the network is.

    Parameters
    ----------
    topology : Topology
        As of `join_hosts`. One without NETWORK links is returned as it is.

    Returns
    -------
    Topology
        NETWORK links take ``host 0 nic pcie out`` and ``host 1 nic pcie in`` as well. These are as
        wide as the widest PCIe link of a GPU of that host; where none is given (a single GPU, or
        NVLink alone), as a PCIe gen3 x16 of `bandwidth.DEFAULT`.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> pair = induce(machine("dgx-1v", "all"), [0, 1])
    >>> ring = through_one_gpu(join_hosts([pair, pair], network_gbps=400))
    >>> {each.name: each.capacity for each in ring.resources if each.name.startswith("host 0 n")}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'host 0 network in': 50000, 'host 0 network out': 50000, 'host 0 nic pcie in': 10000,
     'host 0 nic pcie out': 10000, 'host 0 nvlink 0->1': 23000, 'host 0 nvlink 1->0': 23000}
    """
    if not any(link.kind is LinkKind.NETWORK for link in topology.links):
        return topology
    host = host_of(topology)
    widths = _pcie_widths(topology)
    links = [
        replace(
            link,
            resources=(
                f"host {host[link.src]} nic pcie out",
                *link.resources,
                f"host {host[link.dst]} nic pcie in",
            ),
        )
        if link.kind is LinkKind.NETWORK
        else link
        for link in topology.links
    ]
    slots = [
        Resource(f"host {number} nic pcie {way}", width)
        for number, width in widths.items()
        for way in ("out", "in")
    ]
    return replace(topology, links=tuple(links), resources=(*topology.resources, *slots))


def _pcie_widths(topology: Topology) -> dict[int, int]:
    """Return the widest PCIe link of a GPU, by host, in MB/s."""
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    host = host_of(topology)
    widths: dict[int, int] = {}
    for link in topology.links:
        if link.kind in (LinkKind.PCIE, LinkKind.STAGED):
            # a path over PCIe begins with the GPU's own link
            own = capacity[link.resources[0]]
            widths[host[link.src]] = max(own, widths.get(host[link.src], 0))
    return {number: widths.get(number, DEFAULT["pcie3_x16"]) for number in sorted(set(host))}


def _check(number: int, host: Topology) -> None:
    where = f"host {number} ({host.name})"
    if host.unit != _UNIT:
        raise TopologyError(
            f"{where} counts in {host.unit}, a network in {_UNIT}; use --links all or pcie"
        )
    if host.num_relays:
        raise TopologyError(f"{where} has {host.num_relays} relays; hosts are joined without")
    if max(host.devices) >= DEVICES_PER_HOST:
        raise TopologyError(f"{where} has a device {max(host.devices)}; they are joined already?")


def _check_networks(hosts: Sequence[Topology], networks: Sequence[Network]) -> None:
    if len(networks) != len(hosts):
        raise TopologyError(f"{len(hosts)} hosts, but the networks of {len(networks)}")
    for number, (host, network) in enumerate(zip(hosts, networks, strict=True)):
        if network.nic_of and len(network.nic_of) != host.size:
            raise TopologyError(
                f"host {number} ({host.name}) has {host.size} ranks, NICs are told of "
                f"{len(network.nic_of)}"
            )


def _first_rank(hosts: Sequence[Topology], number: int) -> Rank:
    return sum(host.size for host in hosts[:number])


def _own(hosts: Sequence[Topology], number: int, host: Topology) -> Iterator[Link]:
    """Yield the links of one host under their new names."""
    first = _first_rank(hosts, number)
    for link in host.links:
        resources = tuple(f"host {number} {name}" for name in link.resources)
        yield Link(first + link.src, first + link.dst, resources, link.kind)


def _network_links(hosts: Sequence[Topology], networks: Sequence[Network]) -> Iterator[Link]:
    """Yield a link between any two ranks of different hosts."""
    for one, other in permutations(range(len(hosts)), 2):
        start, end = _first_rank(hosts, one), _first_rank(hosts, other)
        for src in range(hosts[one].size):
            out = f"host {one} {networks[one].resource_of(src, 'out')}"
            for dst in range(hosts[other].size):
                into = f"host {other} {networks[other].resource_of(dst, 'in')}"
                yield Link(start + src, end + dst, (out, into), LinkKind.NETWORK)


def _name(hosts: Sequence[Topology]) -> str:
    names = list(dict.fromkeys(host.name for host in hosts))
    return f"{len(hosts)} x {names[0]}" if len(names) == 1 else " + ".join(names)
