"""What several hosts cannot exceed, proven: by the network alone, or by one host's own links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from blinkrun.planner.certificate import Certificate
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.topology.hosts import ranks_by_host
from blinkrun.types import Rank

_MOST_RANKS = 12  # of a host, up to which it is quickly packed with what is outside


def network_bound(
    hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None
) -> Certificate:
    """Return the proof of what the network alone allows.

    A tree of allreduce has at least an edge less than there are hosts, each of which is received
    at both ends; one of broadcast enters every host but the root's, one of reduce leaves them.
    """
    if root is None:
        price = Fraction(1, 2 * (len(hosts) - 1))
        priced = [(f"host {number} network in", price) for number in range(len(hosts))]
    else:
        way = "in" if flow is Flow.DOWN else "out"
        numbers = range(len(hosts))
        other = next(at for at in numbers if local_root(joined, root, at) is None)
        priced = [(f"host {other} network {way}", Fraction(1))]
    return Certificate(flow, root, tuple(sorted(priced)))


def outside_bounds(
    hosts: Sequence[Topology],
    joined: Topology,
    flow: Flow,
    root: Rank | None,
    numbers: Sequence[int],
) -> Iterator[Certificate]:
    """Yield proofs of what hosts allow whose own links are slower than the network.

    All that is outside of a host is drawn together to one more rank, which its NIC reaches. Trees
    over all ranks so become trees over these, at most as dear.
    """
    for number in numbers:
        if hosts[number].size >= _MOST_RANKS:
            continue
        topology = _with_outside(hosts[number], joined, number)
        top = root
        if root is not None:
            own = local_root(joined, root, number)
            top = hosts[number].size if own is None else own
        _, proof = pack(topology, flow, top)
        yield replace(proof, root=root)


def _with_outside(host: Topology, joined: Topology, number: int) -> Topology:
    out, back = (f"host {number} network {way}" for way in ("out", "in"))
    capacity = {each.name: each.capacity for each in joined.resources}
    outside = host.size
    links = [own_link(link, number, 0) for link in host.links]
    for rank in range(host.size):
        links.append(Link(rank, outside, (out,), LinkKind.NETWORK))
        links.append(Link(outside, rank, (back,), LinkKind.NETWORK))
    own = [Resource(f"host {number} {each.name}", each.capacity) for each in host.resources]
    return Topology(
        name=f"host {number} of {joined.name}",
        devices=tuple(range(host.size + 1)),
        links=tuple(links),
        resources=(*own, *(Resource(name, capacity[name]) for name in (out, back))),
        unit=joined.unit,
    )


def own_link(link: Link, number: int, first: Rank) -> Link:
    """Return a host's link as `join_hosts` names it."""
    names = tuple(f"host {number} {name}" for name in link.resources)
    return Link(first + link.src, first + link.dst, names, link.kind)


def local_root(joined: Topology, root: Rank | None, host: int) -> Rank | None:
    """Return the root among the ranks of that host, None if it is elsewhere."""
    ranks = ranks_by_host(joined)[host]
    return root - ranks[0] if root in ranks and root is not None else None
