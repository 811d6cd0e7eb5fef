"""What a library of rings gets on the same GPUs: the peer to compare with.

NCCL 2.4, and libraries that build on it, split the data over rings [1]_: as many NVLink rings as
fit side by side, each as wide as a lane and used in both directions; where NVLink closes no ring,
one ring whose hops take an NVLink where there is one and PCIe elsewhere, as wide as its narrowest
hop. Behind a switch a ring is as wide as a port. Over several hosts there is one ring, which enters
and leaves each host once (`ring_hosts`). RCCL lets xGMI rings run one way, so that an odd
number of links is used up too [2]_.

With rings of the total width B, counted per direction, over n ranks the data per second is

- allreduce: B n / (2 (n - 1)): every byte passes each hop twice, but for one hop;
- allgather, reducescatter: B n / (n - 1);
- broadcast, reduce: B.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   section 2; S. Jeaugey, "NCCL 2.0", GTC 2017.
.. [2] RCCL, src/graph/rome_models.cc: the rings of full meshes of 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import gcd

from blinkrun.errors import PlanError
from blinkrun.planner.cycles import Cycles, Order, pack_cycles
from blinkrun.planner.packing import Flow
from blinkrun.planner.ring_hosts import order_over_hosts
from blinkrun.planner.ring_order import Hops, best_ring
from blinkrun.topology.graph import Link, LinkKind, Topology
from blinkrun.topology.hosts import ranks_by_host
from blinkrun.types import Rank


class RingKind(StrEnum):
    """What the rings are limited by."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    SHM = "shm"
    NETWORK = "network"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of all ranks.

    Attributes
    ----------
    order : tuple of Rank
        The last rank is followed by the first.
    links, back : tuple of int
        Indices into ``Topology.links``: from each rank of `order` to the next, and the same hops
        the other way. `back` is empty for a ring that is used in one direction.
    width : Fraction
        What every hop carries per direction, in the topology's unit.
    """

    order: tuple[Rank, ...]
    links: tuple[int, ...]
    back: tuple[int, ...]
    width: Fraction

    @property
    def total_width(self) -> Fraction:
        """Both directions together."""
        return self.width * (2 if self.back else 1)


@dataclass(frozen=True, slots=True)
class RingPeer:
    """What a library of rings gets.

    Attributes
    ----------
    kind : RingKind
    rings : tuple of Ring
        Side by side; empty if the links close no ring.
    rate : Fraction
        Data per second of the collective (algbw), in the topology's unit; 0 without a ring.
    is_exact : bool
        Whether no more or wider rings exist.
    """

    kind: RingKind
    rings: tuple[Ring, ...]
    rate: Fraction
    is_exact: bool


def ring_peer(
    topology: Topology, flow: Flow, root: Rank | None = None, *, lane: int | None = None
) -> RingPeer:
    """Return what a library of rings gets for a collective on these ranks.

    Parameters
    ----------
    topology : Topology
        All links of the allocation, `induce`d. Relays are not used.
    flow : Flow
        The collective.
    root : Rank, optional
        Of the collective; every rank of a ring gives the same rate.
    lane : int, optional
        Width of one lane, in the topology's unit. Default: 1 where the unit is a lane, else what
        all NVLink capacities are multiples of.

    Raises
    ------
    PlanError
        If there is a single rank, `root` is none of the ranks, or `lane` is less than 1.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> peer = ring_peer(machine("dgx-1v", "all"), Flow.BOTH)
    >>> peer.kind.value, len(peer.rings), float(peer.rate)  # 6 lanes of 23 GB/s, times 8 / 14
    ('nvlink', 3, 78857.14285714286)
    >>> peer = ring_peer(induce(machine("dgx-1v", "all"), [0, 1, 4]), Flow.BOTH)
    >>> peer.kind.value, float(peer.rate)  # a hop over QPI at 6 GB/s, times 3 / 4
    ('pcie', 4500.0)
    """
    if topology.size < 2:
        raise PlanError("a single rank has no ring")
    if root not in (None, *range(topology.size)):
        raise PlanError(f"{flow} from root {root} of {topology.size} ranks")
    found = _fabric_rings(topology, lane)
    if not found.rings:
        found = _host_ring(topology)
    width = sum((ring.total_width for ring in found.rings), Fraction(0))
    return RingPeer(found.kind, found.rings, width * _share(flow, topology.size), found.is_exact)


def nvlink_ring_count(topology: Topology, *, lane: int | None = None) -> int:
    """Return how many edge-disjoint rings of lanes the ranks have; `lane` as for `ring_peer`.

    >>> from blinkrun.topology.catalog import machine
    >>> nvlink_ring_count(machine("dgx-1v")), nvlink_ring_count(machine("dgx-1p"))
    (3, 2)
    """
    return len(_fabric_rings(topology, lane).rings) if topology.size > 1 else 0


def lane_width(topology: Topology, lane: int | None = None) -> int:
    """Return the width of a lane that rings are made of; `lane` as for `ring_peer`.

    Raises
    ------
    PlanError
        If `lane` is less than 1.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> lane_width(machine("dgx-1v")), lane_width(machine("dgx-1v", "all"))
    (1, 23000)
    """
    if lane is not None and lane < 1:
        raise PlanError(f"a lane of {lane} {topology.unit} is no width")
    if lane is not None or topology.unit == "lane":
        return lane or 1
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    fabric = [link for _, link in _links(topology) if link.kind.is_fabric]
    return gcd(*(capacity[name] for link in fabric for name in link.resources))


def ring_steps(flow: Flow, size: int) -> int:
    """Return how many hops one after the other the first byte needs to be everywhere.

    >>> ring_steps(Flow.BOTH, 8), ring_steps(Flow.DOWN, 8)
    (14, 7)
    """
    return (size - 1) * (2 if flow is Flow.BOTH else 1)


def _share(flow: Flow, size: int) -> Fraction:
    """Return the rate of a collective over a ring of width 1."""
    if flow in (Flow.DOWN, Flow.UP):
        return Fraction(1)
    return Fraction(size, size - 1) / (2 if flow is Flow.BOTH else 1)


@dataclass(frozen=True, slots=True)
class _Found:
    kind: RingKind
    rings: tuple[Ring, ...]
    is_exact: bool


def _fabric_rings(topology: Topology, lane: int | None) -> _Found:
    """Return rings that use nothing but NVLink or xGMI."""
    links = [(at, link) for at, link in _links(topology) if link.kind.is_fabric]
    if not links:
        return _Found(RingKind.NONE, (), is_exact=True)
    wide = lane_width(topology, lane)
    takers = Counter(name for _, link in links for name in link.resources)
    if max(takers.values()) > 1:
        return _switch_rings(topology, links, wide)
    return _mesh_rings(topology, links, wide)


def _mesh_rings(topology: Topology, links: Sequence[tuple[int, Link]], lane: int) -> _Found:
    """Return rings of lanes between pairs, each of which belongs to one ring."""
    stock: dict[tuple[Rank, Rank], list[int]] = {}
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    for at, link in links:
        lanes = min(capacity[name] for name in link.resources) // lane
        stock.setdefault((link.src, link.dst), []).extend([at] * lanes)
    counts = {pair: len(lanes) for pair, lanes in stock.items()}
    one_way = all(link.kind is LinkKind.XGMI for _, link in links)
    cycles, is_paired = _most_cycles(topology.size, counts, one_way)
    rings = []
    for order in cycles.orders:
        onward = tuple(stock[hop].pop() for hop in _hops(order))
        back = tuple(stock[b, a].pop() for a, b in _hops(order)) if is_paired else ()
        rings.append(Ring(order, onward, back, Fraction(lane)))
    kind = RingKind.XGMI if one_way else RingKind.NVLINK
    return _Found(kind, tuple(rings), cycles.is_most)


def _most_cycles(
    size: int, lanes: Mapping[tuple[Rank, Rank], int], one_way: bool
) -> tuple[Cycles, bool]:
    """Return the most rings, and whether each takes both directions of its hops."""
    if size == 2:  # a ring of two runs there and back
        count = min(lanes.get((0, 1), 0), lanes.get((1, 0), 0))
        return Cycles(((0, 1),) * count, is_most=True), False
    paired = pack_cycles(size, lanes)
    if one_way:
        single = pack_cycles(size, lanes, one_way=True)
        if len(single.orders) > 2 * len(paired.orders):
            return single, False
    return paired, True


def _switch_rings(topology: Topology, links: Sequence[tuple[int, Link]], lane: int) -> _Found:
    """Return rings through ports: the same order for every lane, each ring one way."""
    order, width, links_of, is_exact = _best(topology, links)
    if not order:
        return _Found(RingKind.NONE, (), is_exact)
    count = max(1, int(width // lane))
    # what is left of a lane goes to the last ring
    widths = [Fraction(lane)] * (count - 1)
    widths.append(width - sum(widths))
    rings = tuple(Ring(order, links_of, (), each) for each in widths)
    return _Found(RingKind.NVLINK, rings, is_exact)


def _host_ring(topology: Topology) -> _Found:
    """Return one ring that leaves the fabric where it has to."""
    best: dict[tuple[Rank, Rank], tuple[int, Link]] = {}
    for at, link in _links(topology):
        known = best.get((link.src, link.dst))
        if known is None or _preference(link.kind) < _preference(known[1].kind):
            best[link.src, link.dst] = at, link
    order, width, links_of, is_exact = _best(topology, best.values())
    if not order:
        return _Found(RingKind.NONE, (), is_exact)
    kinds = {topology.links[at].kind for at in links_of}
    kind = RingKind.SHM if LinkKind.SHM in kinds else RingKind.PCIE
    if LinkKind.NETWORK in kinds:
        kind = RingKind.NETWORK
    return _Found(kind, (Ring(order, links_of, (), width),), is_exact)


def _preference(kind: LinkKind) -> int:
    """Return the place of a kind among those that a ring library would take, best first."""
    others = [LinkKind.PCIE, LinkKind.STAGED, LinkKind.SHM, LinkKind.NETWORK]
    return 0 if kind.is_fabric else 1 + others.index(kind)


def _best(
    topology: Topology, links: Iterable[tuple[int, Link]]
) -> tuple[Order, Fraction, tuple[int, ...], bool]:
    """Return the widest ring over these links: order, width, its links; and if it is proven so."""
    index_of = {(link.src, link.dst): at for at, link in links}
    hops = Hops(
        size=topology.size,
        links={pair: topology.links[at] for pair, at in index_of.items()},
        capacity={resource.name: resource.capacity for resource in topology.resources},
    )
    hosts = ranks_by_host(topology)
    order = order_over_hosts(hops, hosts) if len(hosts) > 1 else ()
    if order and hops.width(order):
        width, is_exact = hops.width(order), False
    else:
        order, width, is_exact = best_ring(hops)
        by_device = tuple(sorted(range(topology.size), key=lambda rank: topology.devices[rank]))
        if order and hops.width(by_device) == width:  # as libraries go through them, by bus
            order = by_device
    return order, width, tuple(index_of[hop] for hop in _hops(order)), is_exact


def _links(topology: Topology) -> list[tuple[int, Link]]:
    """Return links between ranks, with their indices."""
    return [
        (at, link)
        for at, link in enumerate(topology.links)
        if max(link.src, link.dst) < topology.size
    ]


def _hops(order: Order) -> list[tuple[Rank, Rank]]:
    return list(zip(order, (*order[1:], *order[:1]), strict=True))
