"""What several hosts cannot exceed, proven: by the network alone, or by one host's own links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from blinkrun.planner.certificate import Certificate
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.topology.graph import Link, LinkKind, Topology
from blinkrun.topology.hosts import network_names, ranks_by_host
from blinkrun.types import Rank

_Prices = tuple[str, dict[int, Fraction]]

_MOST_RANKS = 12  # of a host, up to which it is quickly packed with what is outside


def network_rates(joined: Topology, num_hosts: int) -> list[Fraction]:
    """Return what all NICs of each host send, and receive at the same time."""
    capacity = {each.name: each.capacity for each in joined.resources}
    return [
        Fraction(sum(capacity[name] for name in network_names(joined, number, "in")))
        for number in range(num_hosts)
    ]


def network_bound(
    hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None
) -> Certificate:
    """Return the proof of what the network alone allows.

    A tree of allreduce has at least an edge less than there are hosts, each of which is received
    at both ends, and one of them at every host. One of broadcast leaves the root's host and enters
    every other; one of reduce runs the other way. Of allgather and reducescatter those of all
    other ranks do so.
    """
    rates = network_rates(joined, len(hosts))
    way, prices = min(
        _network_bounds(hosts, joined, flow, root),
        key=lambda bound: sum(price * rates[number] for number, price in bound[1].items()),
    )
    priced = [
        (name, price)
        for number, price in prices.items()
        for name in network_names(joined, number, way)
    ]
    return Certificate(flow, root, tuple(sorted(priced)))


def _network_bounds(
    hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None
) -> Iterator[_Prices]:
    """Yield which way through NICs is priced, and the prices by host."""
    numbers = range(len(hosts))
    if flow is Flow.BOTH:
        yield "in", dict.fromkeys(numbers, Fraction(1, 2 * (len(hosts) - 1)))
        yield from (("in", {number: Fraction(1)}) for number in numbers)
        return
    enters, leaves = ("in", "out") if flow in (Flow.DOWN, Flow.ALL_DOWN) else ("out", "in")
    yield leaves, dict.fromkeys(numbers, Fraction(1, len(hosts) - 1))
    for number in numbers:
        if flow.is_joint:
            outside = joined.size - hosts[number].size
            yield enters, {number: Fraction(joined.size, outside)}
        elif local_root(joined, root, number) is None:
            yield enters, {number: Fraction(1)}
        else:
            yield leaves, {number: Fraction(1)}


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
    first = ranks_by_host(joined)[number][0]
    nics = {
        link.src - first: link.resources[0]
        for link in joined.links
        if link.kind is LinkKind.NETWORK and first <= link.src < first + host.size
    }
    outside = host.size
    links = [own_link(link, number, 0) for link in host.links]
    for rank, out in nics.items():
        back = out.removesuffix("out") + "in"
        links.append(Link(rank, outside, (out,), LinkKind.NETWORK))
        links.append(Link(outside, rank, (back,), LinkKind.NETWORK))
    return Topology(
        name=f"host {number} of {joined.name}",
        devices=tuple(range(host.size + 1)),
        links=tuple(links),
        resources=tuple(
            each for each in joined.resources if each.name.startswith(f"host {number} ")
        ),
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
