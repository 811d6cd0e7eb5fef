"""How long allreduces take in training: simulated for a few sizes, for rings and for trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinkrun.errors import InternalError
from blinkrun.paper.hosts import HOSTS, two_hosts
from blinkrun.paper.links import allocation, fabric_alone, lane_of
from blinkrun.paper.pool import mapped
from blinkrun.planner.multihost import plan_hosts
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingKind, ring_peer
from blinkrun.schedule.choice import Choice
from blinkrun.schedule.lower import lower_packing
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.select.predict import best_run, ring_run
from blinkrun.simulator.cost import OURS
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.overlap import MIB, TimeTable, monotone
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import program_hosts
from blinkrun.types import Collective

SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
"""From the least bucket up; in between times are linear, and VGG16's largest has the last rate."""

ANCHORS = (2 * MIB, 16 * MIB)
"""Sizes for which trees, channels and chunks are looked for; others take the better of these."""

RING_SIZES = (*SIZES, 512 * MIB)
"""A ring's chunks grow with the size up to there; trees would gain less than a hundredth."""

MACHINE = "dgx-1v"


@dataclass(frozen=True, slots=True)
class Tables:
    """Times of allreduce on some GPUs.

    Attributes
    ----------
    ring : TimeTable
        Of the ring library.
    blink, nvlink : TimeTable
        Of trees, over all links and over NVLink alone.
    ring_kind : RingKind
    num_rings : int
    """

    ring: TimeTable
    blink: TimeTable
    nvlink: TimeTable
    ring_kind: RingKind
    num_rings: int


@dataclass(frozen=True, slots=True)
class HostTables:
    """Times of allreduce over several hosts.

    Attributes
    ----------
    ring, blink : TimeTable
        Of the ring library, and of trees in three phases.
    num_gpus : int
        On all hosts together.
    """

    ring: TimeTable
    blink: TimeTable
    num_gpus: int


def one_host_tables(sets: Sequence[tuple[int, ...]]) -> list[Tables]:
    """Return the times on each of some sets of GPUs of a DGX-1V, simulated on all cores."""
    return mapped(_one_host, sets)


def two_host_tables(network_gbps: int = 40) -> HostTables:
    """Return the times on the paper's two hosts, simulated."""
    joined = two_hosts(network_gbps)
    hosts = [allocation(MACHINE, gpus) for gpus in HOSTS]
    trees = (Candidate("three phases", plan_hosts(hosts, joined, Flow.BOTH)),)
    anchors = (*ANCHORS, SIZES[-1])  # a narrow network wants larger chunks for larger data
    return HostTables(_ring_times(joined), _tree_times(joined, trees, anchors), joined.size)


def _one_host(gpus: tuple[int, ...]) -> Tables:
    topology = allocation(MACHINE, gpus)
    nvlink = fabric_alone(topology)
    peer = ring_peer(topology, Flow.BOTH, lane=lane_of(MACHINE))
    return Tables(
        ring=_ring_times(topology),
        blink=_tree_times(topology, candidates_for(topology, Collective.ALLREDUCE), ANCHORS),
        nvlink=_tree_times(nvlink, candidates_for(nvlink, Collective.ALLREDUCE), ANCHORS[-1:]),
        ring_kind=peer.kind,
        num_rings=len(peer.rings),
    )


def _tree_times(
    topology: Topology, trees: Sequence[Candidate], anchors: Sequence[int]
) -> TimeTable:
    """Return the times of the trees, channels and chunks that are best for one of the anchors."""
    choices = [
        best_run(topology, Collective.ALLREDUCE, size_bytes=size, candidates=trees)[0]
        for size in anchors
    ]
    return monotone(
        (size, min(_choice_ns(topology, choice, size) for choice in choices)) for size in SIZES
    )


def _choice_ns(topology: Topology, choice: Choice, size_bytes: int) -> int:
    program = lower_packing(
        choice.packing,
        Collective.ALLREDUCE,
        channels_per_tree=choice.channels_per_tree,
        hosts=program_hosts(topology),
    )
    return simulate(
        program, topology, size_bytes=size_bytes, chunk_bytes=choice.chunk_bytes, cost=OURS
    ).time_ns


def _ring_times(topology: Topology) -> TimeTable:
    return monotone((size, _ring_ns(topology, size)) for size in RING_SIZES)


def _ring_ns(topology: Topology, size_bytes: int) -> int:
    found = ring_run(topology, Collective.ALLREDUCE, size_bytes=size_bytes, lane=lane_of(MACHINE))
    if found is None:
        raise InternalError(f"{topology.name}: no ring joins {topology.size} GPUs")
    return found[1].time_ns
