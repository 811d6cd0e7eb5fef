"""CPU hosts and what joins them, for plans over several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.topology.between import Network
from blinkrun.topology.cpu import Cpu, Host, cpu_topology
from blinkrun.topology.graph import Topology


def cpu_host(num_ranks: int, cores: int = 8, sockets: int = 1) -> Topology:
    """The links of `num_ranks` processes on so many cores."""
    cpus = tuple(
        Cpu(at, core=at, socket=at * sockets // cores, numa=at * sockets // cores)
        for at in range(cores)
    )
    return cpu_topology(Host(cpus), num_ranks)


def in_blocks(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of hosts of so many ranks each, one host after the other."""
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(
        tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)
    )


def plan_of_sizes(
    sizes: Sequence[int],
    mb_per_s: Fraction | int = 125,
    ranks: tuple[tuple[int, ...], ...] = (),
    cores: int = 8,
) -> HostsPlan:
    """The plan of hosts of so many ranks each, alike but for that."""
    return HostsPlan(
        tuple(cpu_host(size, cores) for size in sizes),
        ranks or in_blocks(sizes),
        (Network(mb_per_s),) * len(sizes),
    )
