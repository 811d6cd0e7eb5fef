"""From a certificate to words: what it is that no plan can get round.

The prices of a certificate are positive on what limits the rate and zero elsewhere. Ranks that
free links join form parts. On a mesh the priced links are those between the parts, and the proof
is a cut (broadcast) or a partition (allreduce); elsewhere it is a switch port, an uplink or a
socket's link that every tree has to take a share of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from blinkrun.planner.certificate import Certificate
from blinkrun.planner.network import Network, network_of
from blinkrun.planner.packing import Flow, Packing
from blinkrun.topology.graph import Link, LinkKind, Topology
from blinkrun.types import Rank

Parts = tuple[tuple[Rank, ...], ...]
_LISTED = 4  # names up to which a group of resources is spelled out


def partition(topology: Topology, certificate: Certificate) -> Parts:
    """Return the ranks in parts that links join which cost nothing at the certificate's prices.

    Returns
    -------
    tuple of tuple of Rank
        Every rank once. For broadcast and reduce the first part is what the root reaches for free
        (or what reaches it), the others are what free links join of the rest. Elsewhere two ranks
        are in one part if free links lead from each to the other; parts are in the order of their
        lowest ranks.

    Examples
    --------
    >>> from blinkrun.planner.solve import pack
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> three = induce(machine("dgx-1v"), [0, 1, 4])
    >>> _, certificate = pack(three, Flow.DOWN, root=1)
    >>> partition(three, certificate)
    ((1,), (0, 2))
    """
    network = network_of(topology, certificate.flow)
    arcs = _free_arcs(topology, network, certificate)
    if certificate.root is None:
        reach = [_reach(arcs, rank) for rank in range(topology.size)]
        parts = [
            tuple(other for other in range(topology.size) if other in mine and rank in reach[other])
            for rank, mine in enumerate(reach)
        ]
        return tuple(dict.fromkeys(parts))
    first = _reach(arcs, certificate.root)
    rest = [(a, b) for a, b in arcs if a not in first and b not in first]
    rest += [(b, a) for a, b in rest]
    parts = [tuple(sorted(rank for rank in first if rank < topology.size))]
    for rank in range(topology.size):
        if not any(rank in part for part in parts):
            joined = _reach(rest, rank)
            parts.append(tuple(sorted(other for other in joined if other < topology.size)))
    return tuple(parts)


def why(topology: Topology, certificate: Certificate, packing: Packing) -> str:
    """Return in words what bounds the rate, ending in the exact bound.

    Parameters
    ----------
    topology : Topology
    certificate : Certificate
        Of `topology`.
    packing : Packing
        Whose rate is compared with the bound.

    Examples
    --------
    >>> from blinkrun.planner.solve import pack
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> three = induce(machine("dgx-1v"), [0, 1, 4])
    >>> packing, certificate = pack(three, Flow.BOTH)
    >>> why(three, certificate, packing)
    'optimal: GPUs 0 4 | GPU 1: 1 lane joins them, every tree takes 1; no allreduce exceeds 1 lane'
    """
    bound = _bound(topology, certificate)
    reached = "optimal"
    if packing.rate < bound:
        reached = f"{float(100 * packing.rate / bound):.4g} % of what is possible"
    parts = partition(topology, certificate)
    proof = (
        _cut(topology, certificate, parts, bound)
        or _partition_bound(topology, certificate, parts, bound)
        or _priced(topology, certificate, parts, bound)
    )
    start = "" if certificate.root is None else f" {_start(topology, certificate)}"
    limit = _amount(bound, topology.unit)
    return f"{reached}: {proof}; no {certificate.flow}{start} exceeds {limit}"


def _start(topology: Topology, certificate: Certificate) -> str:
    way = "from" if certificate.flow is Flow.DOWN else "to"
    return f"{way} {_named(topology, [certificate.root or 0])}"


def _cut(topology: Topology, certificate: Certificate, parts: Parts, bound: Fraction) -> str | None:
    """Return the cut between a root's side and the rest, if that is what the prices are."""
    if certificate.root is None or len(parts) != 2:
        return None
    near, far = parts if certificate.flow is Flow.DOWN else (parts[1], parts[0])
    across = _capacity(topology, near, far)
    if across != bound:
        return None
    return (
        f"{_named(topology, near)} -> {_named(topology, far)}: "
        f"{_amount(across, topology.unit)} lead{_s(across)} across, every tree takes 1"
    )


def _partition_bound(
    topology: Topology, certificate: Certificate, parts: Parts, bound: Fraction
) -> str | None:
    """Return the partition of an allreduce, if that is what the prices are."""
    if certificate.flow is not Flow.BOTH or len(parts) < 2:
        return None
    part_of = {rank: at for at, part in enumerate(parts) for rank in part}
    between: dict[tuple[Rank, Rank], list[Link]] = {}
    for link in topology.links:
        between.setdefault((link.src, link.dst), []).append(link)
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    across = Fraction(0)
    for (src, dst), links in between.items():
        if src < dst < topology.size and part_of[src] != part_of[dst]:
            back = between.get((dst, src), [])
            across += min(_together(capacity, links), _together(capacity, back))
    if across != bound * (len(parts) - 1):
        return None
    return (
        f"{_apart(topology, parts)}: {_amount(across, topology.unit)} join{_s(across)} them, "
        f"every tree takes {len(parts) - 1}"
    )


def _priced(topology: Topology, certificate: Certificate, parts: Parts, bound: Fraction) -> str:
    """Return the priced resources, alike ones together, and what a tree takes of them."""
    groups: dict[tuple[Fraction, str], list[str]] = {}
    for name, price in certificate.prices:
        groups.setdefault((price, re.sub(r"\d+", "#", name)), []).append(name)
    where = "" if len(parts) in (1, topology.size) else f"{_apart(topology, parts)}: "
    average = " on average over the roots" if certificate.flow.is_joint else ""
    prices = {price for price, _ in groups}
    if len(prices) > 1:
        shares = _listed(
            f"{_alike(names)} ({_share(topology, names, price / bound)} of the bound)"
            for (price, _), names in groups.items()
        )
        return f"{where}every tree takes shares of {shares}{average}"
    several = len(certificate.prices) > 1
    room = bound / certificate.prices[0][1]
    return (
        f"{where}{_listed(map(_alike, groups.values()))} carr{'y' if several else 'ies'} "
        f"{_amount(room, topology.unit)}{' together' if several else ''}, "
        f"every tree takes {'them' if several else 'it'} {_times(room / bound)}{average}"
    )


def _share(topology: Topology, names: Sequence[str], price: Fraction) -> str:
    room = sum(resource.capacity for resource in topology.resources if resource.name in names)
    return f"{float(100 * price * room):.3g} %"


def _alike(names: Sequence[str]) -> str:
    """Return names that differ in their numbers: all of them if they are few."""
    if len(names) <= _LISTED:
        return _listed(names)
    pattern = re.sub(r"\d+", "#", names[0])
    return f"{len(names)} of '{pattern}'"


def _listed(words: Iterable[str]) -> str:
    """Return words joined for a sentence.

    >>> _listed(["a"]), _listed("abc")
    ('a', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _times(count: Fraction) -> str:
    return {1: "once", 2: "twice"}.get(
        int(count) if count.denominator == 1 else 0, f"{count} times"
    )


def _bound(topology: Topology, certificate: Certificate) -> Fraction:
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    return sum((price * capacity[name] for name, price in certificate.prices), Fraction(0))


def _capacity(topology: Topology, near: Sequence[Rank], far: Sequence[Rank]) -> Fraction:
    """Return what the links from `near` to `far` carry if no two share anything, else 0."""
    links = [link for link in topology.links if link.src in near and link.dst in far]
    return _together({part.name: part.capacity for part in topology.resources}, links)


def _together(capacity: Mapping[str, int], links: Sequence[Link]) -> Fraction:
    """Return what links carry if no two share anything and each takes one resource, else 0."""
    taken = [name for link in links for name in link.resources]
    if len(set(taken)) != len(links):
        return Fraction(0)
    return Fraction(sum(capacity[name] for name in taken))


def _free_arcs(
    topology: Topology, network: Network, certificate: Certificate
) -> list[tuple[Rank, Rank]]:
    """Return (parent, child) of the arcs without a price; both ways for allreduce."""
    prices = dict(certificate.prices)
    priced = [resource.name in prices for resource in topology.resources]
    free = [
        (arc.parent, arc.child) for arc in network.arcs if not any(priced[at] for at, _ in arc.use)
    ]
    return free + [(b, a) for a, b in free] if certificate.flow is Flow.BOTH else free


def _reach(arcs: Sequence[tuple[Rank, Rank]], start: Rank) -> set[Rank]:
    reached = {start}
    grown = True
    while grown:
        new = {child for parent, child in arcs if parent in reached} - reached
        reached |= new
        grown = bool(new)
    return reached


def _apart(topology: Topology, parts: Parts) -> str:
    return " | ".join(_named(topology, part) for part in parts)


def _named(topology: Topology, ranks: Sequence[Rank]) -> str:
    """Return ranks as the machine calls them."""
    word = "core" if any(link.kind is LinkKind.SHM for link in topology.links) else "GPU"
    names = " ".join(str(topology.devices[rank]) for rank in ranks)
    return f"{word}{'s' if len(ranks) > 1 else ''} {names}"


def _amount(value: Fraction, unit: str) -> str:
    """Return a rate exactly; those in MB/s as GB/s, which is how people compare them.

    >>> _amount(Fraction(24, 7), "lane"), _amount(Fraction(6500), "MB/s")
    ('24/7 lanes', '6.5 GB/s')
    >>> _amount(Fraction(572_000, 7), "MB/s")
    '81.71 GB/s (572/7)'
    """
    if unit != "MB/s":
        return f"{value} {unit}{'s' if unit == 'lane' and value != 1 else ''}"
    rate = value / 1000
    short = f"{float(rate):g}"
    return f"{short} GB/s" if Fraction(short) == rate else f"{float(rate):.4g} GB/s ({rate})"


def _s(count: Fraction) -> str:
    """Return the ending of a verb."""
    return "s" if count == 1 else ""
