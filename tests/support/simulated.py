"""Small machines and programs with times that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Reduce,
)
from blinkrun.schedule.lower import lower_packing
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Collective

MB = 10**6


def machine_of(
    capacities: dict[str, int],
    links: Iterable[tuple[int, int, tuple[str, ...]] | tuple[int, int, tuple[str, ...], LinkKind]],
    name: str = "machine",
) -> Topology:
    """Resources in MB/s; links as (src, dst, resources[, kind]), NVLink by default."""
    made = [Link(*link[:3], link[3] if len(link) > 3 else LinkKind.NVLINK) for link in links]
    size = 1 + max(max(link.src, link.dst) for link in made)
    resources = tuple(Resource(*item) for item in capacities.items())
    return Topology(name, tuple(range(size)), tuple(made), resources, "MB/s")


def pair(capacity: int = 1000, kind: LinkKind = LinkKind.NVLINK) -> Topology:
    """Ranks 0 and 1, a wire in each direction."""
    links = [(0, 1, ("0->1",), kind), (1, 0, ("1->0",), kind)]
    return machine_of({"0->1": capacity, "1->0": capacity}, links, "pair")


def line(size: int, capacity: int = 1000) -> Topology:
    """Ranks 0, 1, …, each joined to the next by a wire in each direction."""
    ends = [(a, b) for low in range(size - 1) for a, b in ((low, low + 1), (low + 1, low))]
    wires = {f"{a}->{b}": capacity for a, b in ends}
    return machine_of(wires, [(a, b, (f"{a}->{b}",)) for a, b in ends], "line")


def chain_program(size: int, collective: Collective = Collective.BROADCAST) -> Program:
    """One tree, 0 -> 1 -> … -> size - 1."""
    tree = PlannedTree(0, tuple(range(-1, size - 1)), 0, 1)
    return lower_packing(PlannedPacking(1, (tree,), Fraction(1), Fraction(1), "MB/s"), collective)


def pulls(size: int, ways: Iterable[tuple[int, int, str]], shares: int = 0) -> Program:
    """Every (dst, src, kind) is a channel of dst that pulls its own share from src, once."""
    wanted = list(ways)
    channels: list[list[Channel]] = [[] for _ in range(size)]
    for at, (dst, src, kind) in enumerate(wanted):
        step = Reduce((Operand(dst, Buffer.OUTPUT),), (Operand(src, Buffer.INPUT),), via=("", kind))
        channels[dst].append(Channel(Part(at, at + 1), (step,)))
    ranks = tuple(RankProgram(channels=tuple(own)) for own in channels)
    return Program(
        Collective.ALLREDUCE, 0, Addressing.DIRECT, shares or len(wanted), ranks, name="pulls"
    )
