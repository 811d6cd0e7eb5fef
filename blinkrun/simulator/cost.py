"""What things cost besides the bytes on the links: the one file of such figures, with sources.

Links cost what the topology says (`topology.bandwidth`). Here is the rest: starting, steps, hops,
and what part of a link's rate the kernels of a library achieve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from blinkrun.errors import UsageError
from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.graph import LinkKind
from blinkrun.topology.model import link_latency_ns


@dataclass(frozen=True, slots=True)
class Cost:
    """What a library's kernels take, in whole nanoseconds; rates in MB/s (bytes per 1000 ns).

    Attributes
    ----------
    name : str
        Of the library, for people.
    launch_ns : int
        Once per call, before any channel starts: the kernel's launch, or how ranks enter.
    step_ns : int
        Of every reduce step, before its bytes move: a step of a kernel, a copy engine's call.
    latencies_ns : tuple of (LinkKind, int)
        After the last byte, until a step over such a link is through. Kinds left out: as
        `link_latency_ns` says.
    efficiency : Fraction
        Part of a link's achieved rate that these kernels get; more than 0, at most 1.
    memory_mb_per_s : int
        What a rank reads and writes of its own memory, all its channels together; every operand of
        a reduce on local memory counts. 0: as fast as needed.
    peer_switch_ns : int
        Before channels that address a peer over PCIe although a fabric joins the two: switching
        peer access from one to the other (Blink, section 4.3). Staged links need none.
    message_ns : int
        Of every message between hosts, once both ends have started it and before its bytes move.
    """

    name: str
    launch_ns: int = 0
    step_ns: int = 0
    latencies_ns: tuple[tuple[LinkKind, int], ...] = ()
    efficiency: Fraction = Fraction(1)
    memory_mb_per_s: int = 0
    peer_switch_ns: int = 0
    message_ns: int = 0

    def __post_init__(self) -> None:
        times = (self.launch_ns, self.step_ns, self.peer_switch_ns, self.message_ns)
        if min(*times, self.memory_mb_per_s) < 0 or any(ns < 0 for _, ns in self.latencies_ns):
            raise UsageError(f"cost of {self.name}: no time and no rate is negative")
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"cost of {self.name}: efficiency {self.efficiency} is not in (0, 1]")

    def latency_ns(self, kind: LinkKind) -> int:
        """Return the latency of a step over a link of that kind."""
        for known, latency in self.latencies_ns:
            if known is kind:
                return latency
        return link_latency_ns(kind, DEFAULT)

    def with_latencies(self, latencies_ns: Mapping[LinkKind, int]) -> Self:
        """Return the same with other latencies for some kinds."""
        kept = dict(self.latencies_ns) | dict(latencies_ns)
        return replace(self, latencies_ns=tuple(kept.items()))

    def over(self, scale: int) -> Self:
        """Return the same on a clock that runs `scale` times slower.

        Links that are `scale` times slower than their topology says take `scale` times as long,
        what is counted here does not: simulated at the topology's rates with this, a run takes
        exactly 1 / `scale` of its time.

        >>> EMULATED.over(1000).launch_ns * 1000 <= EMULATED.launch_ns
        True
        """
        if scale < 1:
            raise UsageError(f"cost of {self.name} over {scale}: need a whole number of at least 1")
        return replace(
            self,
            launch_ns=self.launch_ns // scale,
            step_ns=self.step_ns // scale,
            latencies_ns=tuple((kind, self.latency_ns(kind) // scale) for kind in LinkKind),
            memory_mb_per_s=self.memory_mb_per_s * scale,
            peer_switch_ns=self.peer_switch_ns // scale,
            message_ns=self.message_ns // scale,
        )


FREE = Cost("no cost but the links", latencies_ns=tuple((kind, 0) for kind in LinkKind))
"""What a schedule alone makes of the links: no launch, no step, no latency."""

OURS = Cost(
    "blinkrun",
    # Blink (MLSys 2020), figure 27: 22 to 24 us for 1 to 64 KB over one-hop trees; the hop is in it
    launch_ns=20_000,
    # a flag seen, a fence, a flag set; NCCL 2.x, src/graph/tuning.cc, baseLat and hwLat
    step_ns=1_000,
    # HBM2 of a V100, 900 GB/s, of which nine tenths are achieved
    memory_mb_per_s=800_000,
    # PCIe beside a fabric is staged through host memory: peer access is never switched. To time
    # programs of the paper's hybrid method, put `planner.hybrid.PEER_ACCESS_SWITCH_NS` here
    peer_switch_ns=0,
)
"""Kernels that run programs over GPUs."""

RINGS = Cost(
    "ring library",
    launch_ns=20_000,
    # Blink (MLSys 2020), figure 27: 72.9 us for 1 to 32 KB on a DGX-2, which are the launch and the
    # seven steps one after the other, up and down, of double binary trees over 16 GPUs; several
    # slices of a channel may be under way meanwhile (`schedule.peer`)
    step_ns=7_030,
    # 20.25 of 23 GB/s per NVLink 2 lane, 9 of 10.2 over PCIe: Blink (MLSys 2020), figures 14 to 16
    efficiency=Fraction(22, 25),
    memory_mb_per_s=800_000,
)
"""The kernels of NCCL 2.4, whose rings Blink compares with."""

SHARED_MEMORY = Cost(
    "blinkrun on shared memory",
    # entry and a step of an allreduce of 4 bytes, 2 ranks: 0.66 us in docs/benchmarks
    # (collectives_amd-epyc-2-core_202611), of which `latency_shm` is 0.2
    launch_ns=400,
    step_ns=60,
    # allreduce of 4 bytes, 2 ranks on each of 2 network namespaces of a machine of 2 cores: 42 us,
    # of which the two directions are two of these, over TCP and MPI's progress
    latencies_ns=((LinkKind.NETWORK, 18_000),),
    message_ns=2_000,
)
"""The processes of a host: no kernel is launched. A core's rate is in the topology."""

EMULATED = Cost(
    "emulation",
    # from the barrier to the first piece, and from the last one to the slowest rank: 4 KiB over 2,
    # 4 and 8 ranks on 2 cores of an AMD EPYC take 165 to 300 us longer than over their links. Steps
    # and hops take nothing: the emulated machine's time goes on while a rank has no core.
    launch_ns=200_000,
    latencies_ns=tuple((kind, 0) for kind in LinkKind),
)
"""The executor of this host when it paces links: real times, whatever the scale."""
