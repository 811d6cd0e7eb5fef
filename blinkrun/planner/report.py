"""A packing as people and scripts get it: in GB/s, with the machine's own GPU numbers.

The form of `as_json` is that of ``blinkrun plan --json``; docs/planning.md describes it. Rates are
floats there for reading, and exact fractions beside them for checking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.explain import partition, why
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, check_packing, resource_loads
from blinkrun.planner.predict import SIZES, Prediction, Timing, candidates, choose, ring_ns
from blinkrun.planner.rings import RingPeer
from blinkrun.topology.graph import Link, Topology
from blinkrun.types import Rank

SCHEMA_VERSION = 1  # raised when a key goes or changes its meaning
LANE = "lane"
_MB_PER_GB = 1000
_UPWARDS = (Flow.UP, Flow.ALL_UP)


@dataclass(frozen=True, slots=True)
class Planned:
    """A packing with all that is said of it.

    Attributes
    ----------
    topology : Topology
        The job's ranks and relays; unit ``lane`` or ``MB/s``.
    packing, certificate
        Of that topology.
    lane_mb_per_s : int
        What a lane is worth; not used where the unit is MB/s.
    peer : RingPeer
        What a ring library gets on these GPUs; its rate is in MB/s.
    times : tuple of Prediction
        Predicted times by size; their rings are those of `peer`.

    Raises
    ------
    PlanError
        If the packing does not fit the topology or the certificate does not hold.
    """

    topology: Topology
    packing: Packing
    certificate: Certificate
    lane_mb_per_s: int
    peer: RingPeer
    times: tuple[Prediction, ...]
    bound: Fraction = field(init=False)

    def __post_init__(self) -> None:
        check_packing(self.topology, self.packing)
        bound = check_certificate(self.topology, self.certificate)
        object.__setattr__(self, "bound", bound)

    @property
    def unit_gb_per_s(self) -> Fraction:
        """What a unit of the exact rates is worth: a lane, or 1 GB/s."""
        return Fraction(self.lane_mb_per_s, _MB_PER_GB) if self.is_in_lanes else Fraction(1)

    @property
    def is_in_lanes(self) -> bool:
        """Whether capacities count lanes."""
        return self.topology.unit == LANE

    def exact(self, amount: Fraction | int) -> Fraction:
        """Return an amount of the topology's unit in units of the report: lanes, or GB/s."""
        return Fraction(amount) if self.is_in_lanes else Fraction(amount) / _MB_PER_GB

    def gb_per_s(self, amount: Fraction | int) -> float:
        """Return an amount of the topology's unit in GB/s."""
        return float(self.exact(amount) * self.unit_gb_per_s)


def as_json(planned: Planned) -> dict[str, Any]:
    """Return the plan as plain JSON values.

    Returns
    -------
    dict
        ``collective``, ``devices``, ``rate_gb_per_s``, ``rate_exact``, ``unit_gb_per_s``,
        ``bound_gb_per_s``, ``certificate``, ``trees``, ``resources``, ``ring`` and more as
        docs/planning.md describes them. GPUs are named by their numbers on the machine.
    """
    topology, packing, bound = planned.topology, planned.packing, planned.bound
    devices = topology.devices
    return {
        "version": SCHEMA_VERSION,
        "machine": topology.name,
        "collective": packing.flow.value,
        "devices": list(devices[: topology.size]),
        "relays": list(devices[topology.size :]),
        "root": None if packing.root is None else devices[packing.root],
        "rate_gb_per_s": planned.gb_per_s(packing.rate),
        "rate_exact": str(planned.exact(packing.rate)),
        "unit": LANE if planned.is_in_lanes else "GB/s",
        "unit_gb_per_s": float(planned.unit_gb_per_s),
        "bound_gb_per_s": planned.gb_per_s(bound),
        "bound_exact": str(planned.exact(bound)),
        "is_optimal": packing.rate == bound,
        "certificate": {
            "prices": {name: str(price) for name, price in planned.certificate.prices},
            "partition": [
                [devices[rank] for rank in part]
                for part in partition(topology, planned.certificate)
            ],
            "why": why(topology, planned.certificate, packing),
        },
        "trees": [
            _tree(planned, tree, rate)
            for tree, rate in zip(packing.trees, packing.rates, strict=True)
        ],
        "resources": _resources(planned),
        "ring": _ring(planned),
        "times": [_time(row) for row in planned.times],
    }


def times_of(
    plan: Timing, packing: Packing, rings: Timing, peer: RingPeer
) -> tuple[Prediction, ...]:
    """Return the predicted times for 1 KB to 1 GB.

    As `predict`, but a ring library may use other links than the plan, and in another unit.
    """
    options = candidates(plan, packing)
    rows = []
    for size in SIZES:
        best = choose(plan, options, size)
        beside = ring_ns(rings, packing.flow, peer, size)
        rows.append(Prediction(size, best.trees, best.time_ns(plan, size), beside))
    return tuple(rows)


def depth_of(tree: Tree) -> int:
    """Return the hops from the root to the farthest node.

    >>> depth_of(Tree(1, (Edge(0, 2, (5,)), Edge(1, 0, (2,)))))
    2
    """
    parent_of = {edge.child: edge.parent for edge in tree.edges}
    deepest = 0
    for node in parent_of:
        hops, at = 0, node
        while at != tree.root:
            hops, at = hops + 1, parent_of[at]
        deepest = max(deepest, hops)
    return deepest


def from_root(tree: Tree) -> list[Edge]:
    """Return the edges in the order in which data from the root passes them."""
    below: dict[Rank, list[Edge]] = {}
    for edge in tree.edges:
        below.setdefault(edge.parent, []).append(edge)
    ordered: list[Edge] = []
    level = [tree.root]
    while level:
        edges = [edge for node in level for edge in below.get(node, [])]
        ordered += edges
        level = [edge.child for edge in edges]
    return ordered


def kind_of(topology: Topology, edge: Edge) -> str:
    """Return what an edge runs over; ``down/up`` where the two ways of an allreduce differ."""
    kind = {(link.src, link.dst): link.kind.value for link in _links(topology, edge)}
    ways = [
        kind[way] for way in ((edge.parent, edge.child), (edge.child, edge.parent)) if way in kind
    ]
    return "/".join(dict.fromkeys(ways))


def _links(topology: Topology, edge: Edge) -> Sequence[Link]:
    return [topology.links[index] for index in edge.links]


def _tree(planned: Planned, tree: Tree, rate: Fraction) -> dict[str, Any]:
    topology, flow = planned.topology, planned.packing.flow
    edges = []
    for edge in from_root(tree):
        ends = (edge.child, edge.parent) if flow in _UPWARDS else (edge.parent, edge.child)
        src, dst = (topology.devices[node] for node in ends)
        edges.append([src, dst, kind_of(topology, edge)])
    return {
        "root": topology.devices[tree.root],
        "rate_gb_per_s": planned.gb_per_s(rate),
        "rate_exact": str(planned.exact(rate)),
        "depth": depth_of(tree),
        "edges": edges,
    }


def _resources(planned: Planned) -> dict[str, dict[str, float]]:
    loads = resource_loads(planned.topology, planned.packing)
    return {
        resource.name: {
            "capacity_gb_per_s": planned.gb_per_s(resource.capacity),
            "used_gb_per_s": planned.gb_per_s(loads.get(resource.name, Fraction(0))),
        }
        for resource in planned.topology.resources
    }


def _ring(planned: Planned) -> dict[str, Any]:
    peer, devices = planned.peer, planned.topology.devices
    rate = peer.rate / _MB_PER_GB
    mine = planned.exact(planned.packing.rate) * planned.unit_gb_per_s
    return {
        "rate_gb_per_s": float(rate),
        "rings": len(peer.rings),
        "kind": peer.kind.value,
        "is_exact": peer.is_exact,
        "orders": [[devices[rank] for rank in ring.order] for ring in peer.rings],
        "ratio": float(mine / rate) if rate else None,
    }


def _time(row: Prediction) -> dict[str, Any]:
    return {
        "bytes": row.size_bytes,
        "trees": row.trees.value,
        "seconds": row.time_ns / 1e9,
        "algbw_gb_per_s": float(row.algbw_gb_per_s),
        "ring_seconds": None if row.ring_ns is None else row.ring_ns / 1e9,
    }
