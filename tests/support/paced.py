"""Machines to emulate in tests: small, slow, and with rates that make the times easy to tell."""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Rank

MB = 1_000_000  # bytes; a link of 1 MB/s takes a microsecond for each byte


def wires(size: int, ways: Sequence[tuple[Rank, Rank]], mb_per_s: int = 20) -> Topology:
    """A link of its own resource from rank to rank for each of `ways`."""
    names = {way: f"{way[0]}->{way[1]}" for way in ways}
    return Topology(
        name="wires",
        devices=tuple(range(size)),
        links=tuple(Link(*way, (name,), LinkKind.NVLINK) for way, name in names.items()),
        resources=tuple(Resource(name, mb_per_s) for name in names.values()),
        unit="MB/s",
    )


def both_ways(ways: Sequence[tuple[Rank, Rank]]) -> list[tuple[Rank, Rank]]:
    return [*ways, *((dst, src) for src, dst in ways)]


def chain_of(size: int, mb_per_s: int = 20) -> Topology:
    """Each rank is wired to the next, both ways."""
    return wires(size, both_ways([(rank, rank + 1) for rank in range(size - 1)]), mb_per_s)


def mesh_of(size: int, mb_per_s: int = 20) -> Topology:
    """Each rank is wired to every other."""
    return wires(size, [(a, b) for a in range(size) for b in range(size) if a != b], mb_per_s)


def hub_of(size: int, mb_per_s: int = 20) -> Topology:
    """Rank 0 sends to all others through one resource; they send back through their own."""
    others = range(1, size)
    return Topology(
        name="hub",
        devices=tuple(range(size)),
        links=(
            *(Link(0, other, ("out",), LinkKind.PCIE) for other in others),
            *(Link(other, 0, (f"in {other}",), LinkKind.PCIE) for other in others),
        ),
        resources=(
            Resource("out", mb_per_s),
            *(Resource(f"in {other}", mb_per_s) for other in others),
        ),
        unit="MB/s",
    )
