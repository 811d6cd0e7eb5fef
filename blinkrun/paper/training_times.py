"""How long allreduces take in training: simulated for a few sizes, for rings and for trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.paper.hosts import HOSTS, two_hosts
from blinkrun.paper.links import allocation, fabric_alone, lane_of
from blinkrun.paper.pool import mapped
from blinkrun.planner.make import in_shares
from blinkrun.planner.multihost import plan_hosts
from blinkrun.planner.packing import Flow
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.rings import RingKind, ring_peer
from blinkrun.planner.solve import pack
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.peer import ring_programs
from blinkrun.simulator.cost import OURS, RINGS
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.overlap import MIB, TimeTable, monotone
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import through_one_gpu
from blinkrun.types import Collective

SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
"""From the least bucket up; in between, and beyond for VGG16's largest, times are linear."""

RING_SIZES = (*SIZES, 512 * MIB)
"""Rings get their chunks by size up to there, so beyond 128 MiB their times are not linear yet."""

MACHINE = "dgx-1v"
_CHUNKS = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
_CHANNELS = (1, 4)


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
    packing = plan_hosts(hosts, joined, Flow.BOTH)
    return HostTables(_ring_times(joined), _tree_times(joined, packing), joined.size)


def _one_host(gpus: tuple[int, ...]) -> Tables:
    topology = allocation(MACHINE, gpus)
    peer = ring_peer(topology, Flow.BOTH, lane=lane_of(MACHINE))
    return Tables(
        ring=_ring_times(topology),
        blink=_packed_times(topology),
        nvlink=_packed_times(fabric_alone(topology)),
        ring_kind=peer.kind,
        num_rings=len(peer.rings),
    )


def _packed_times(topology: Topology) -> TimeTable:
    packing = in_shares(topology, *pack(topology, Flow.BOTH, loss=Fraction(0)))
    return _tree_times(topology, packing)


def _tree_times(topology: Topology, packing: PlannedPacking) -> TimeTable:
    """Return the best of some chunks and channels for each size."""
    programs = [
        lower_packing(packing, Collective.ALLREDUCE, channels_per_tree=channels)
        for channels in _CHANNELS
    ]
    return monotone(
        (
            size,
            min(
                simulate(program, topology, size_bytes=size, chunk_bytes=chunk, cost=OURS).time_ns
                for program in programs
                for chunk in _CHUNKS
            ),
        )
        for size in SIZES
    )


def _ring_times(topology: Topology) -> TimeTable:
    programs = ring_programs(topology, Collective.ALLREDUCE, lane=lane_of(MACHINE))
    links = through_one_gpu(topology)
    return monotone(
        (
            size,
            min(
                simulate(
                    peer.program,
                    links,
                    size_bytes=size,
                    chunk_bytes=peer.chunk_bytes_of(size),
                    cost=RINGS,
                ).time_ns
                for peer in programs
            ),
        )
        for size in RING_SIZES
    )
