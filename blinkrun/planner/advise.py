"""Which GPUs to take: all allocations out of the free ones, the fastest first.

Allocations that look alike are planned once. Those that only swap GPUs which can be exchanged,
as behind a switch, are not even looked at (see `orbits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from blinkrun.errors import UnreachableRankError, UsageError
from blinkrun.planner.compare import compare
from blinkrun.planner.explain import why
from blinkrun.planner.network import network_of
from blinkrun.planner.orbits import Orbit, blocks_of, orbits
from blinkrun.planner.packing import Flow
from blinkrun.planner.symmetry import shape_of
from blinkrun.topology.fingerprint import fingerprint
from blinkrun.topology.graph import Resource, Topology, induce
from blinkrun.types import Rank

MAX_LISTED = 1000  # allocations of one group that are listed
MAX_ORBITS = 20_000  # allocations that are looked at one by one
Allocation = tuple[int, ...]  # devices, ascending


@dataclass(frozen=True, slots=True)
class Group:
    """Allocations that are all alike.

    Attributes
    ----------
    example : tuple of int
        The first of them, by device.
    allocations : tuple of tuple of int
        All of them, sorted; the first `MAX_LISTED` if there are more.
    count : int
        How many there are.
    rate : Fraction
        What the collective gets with the best packing, in the topology's unit; 0 where the links
        do not join the GPUs.
    ring_rate : Fraction
        What a ring library gets; 0 without a ring.
    why : str
        What bounds the rate, in words.
    """

    example: Allocation
    allocations: tuple[Allocation, ...]
    count: int
    rate: Fraction
    ring_rate: Fraction
    why: str

    @property
    def ratio(self) -> Fraction | None:
        """How many times as fast as the ring library; None without a ring."""
        return self.rate / self.ring_rate if self.ring_rate else None


def advise(  # noqa: PLR0913 - what `compare` takes, and what to choose from
    topology: Topology,
    free: Sequence[int],
    count: int,
    flow: Flow = Flow.BOTH,
    root: int | None = None,
    *,
    lane: int | None = None,
) -> tuple[Group, ...]:
    """Return all allocations of `count` of the free GPUs, alike ones together, the fastest first.

    Parameters
    ----------
    topology : Topology
        The whole machine, with all links that may be used.
    free : sequence of int
        Devices to choose from.
    count : int
        How many are wanted, at least 2.
    flow : Flow, default allreduce
        What the rate is of.
    root : int, optional
        A free device that must be among those chosen, and is the root of broadcast or reduce.
        Default: each allocation has its best root.
    lane : int, optional
        As for `ring_peer`.

    Returns
    -------
    tuple of Group
        By rate, then by what a ring library gets, then by their examples. What links do not join
        is last.

    Raises
    ------
    UsageError
        If a free device is unknown or named twice, if `count` is out of range, if `root` is not
        free or the collective has none, or if too many allocations differ.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> best, *_, worst = advise(machine("dgx-1v"), [0, 1, 2, 4, 7], 3)
    >>> best.example, best.count, best.rate, best.ratio
    ((0, 1, 2), 1, Fraction(2, 1), Fraction(4, 3))
    >>> worst.example, worst.why
    ((1, 2, 4), 'no links lead from GPU 1 to GPU 4')
    """
    _check(topology, free, count, flow, root)
    here = induce(topology, sorted(free))
    alone = None if root is None else here.devices.index(root)
    groups: dict[str, Group] = {}
    for orbit in _orbits(here, count, alone):
        part = induce(here, [here.devices[rank] for rank in next(orbit.members())])
        rank = None if root is None else part.devices.index(root)
        key = fingerprint(part if rank is None else _marked(part, rank))
        group = groups.get(key) or _judged(part, flow, rank, lane)
        listed = sorted((*group.allocations, *_listed(here, orbit)))
        groups[key] = replace(
            group,
            example=listed[0],
            allocations=tuple(listed[:MAX_LISTED]),
            count=group.count + orbit.count,
        )
    return tuple(
        sorted(groups.values(), key=lambda group: (-group.rate, -group.ring_rate, group.example))
    )


def _check(
    topology: Topology, free: Sequence[int], count: int, flow: Flow, root: int | None
) -> None:
    """Raise UsageError for what cannot be advised on."""
    unknown = [device for device in free if device not in topology.devices]
    twice = [device for at, device in enumerate(free) if device in free[:at]]
    has = f"it has {' '.join(map(str, topology.devices))}"
    if unknown:
        raise UsageError(f"{topology.name} has no GPU {unknown[0]}; {has}")
    if twice:
        raise UsageError(f"GPU {twice[0]} is named twice among the free ones")
    if not 2 <= count <= len(free):
        raise UsageError(f"{count} of {len(free)} free GPUs: need 2 to {len(free)}")
    if root is not None and not flow.is_rooted:
        raise UsageError(f"{flow} has no root")
    if root not in (None, *free):
        raise UsageError(f"root {root} is not among the free GPUs {' '.join(map(str, free))}")


def _judged(part: Topology, flow: Flow, root: Rank | None, lane: int | None) -> Group:
    """Return the group of an allocation, still without members."""
    try:
        found = compare(part, flow, root, lane=lane)
    except UnreachableRankError as err:
        apart = f"no links lead from GPU {part.devices[err.root]} to GPU {part.devices[err.rank]}"
        return Group((), (), 0, Fraction(0), Fraction(0), apart)
    words = why(part, found.certificate, found.packing)
    return Group((), (), 0, found.rate, found.ring_rate, words)


def _marked(topology: Topology, root: Rank) -> Topology:
    """Return the topology with something that only the root has, and that limits nothing."""
    mark = Resource("root", sum(resource.capacity for resource in topology.resources) + 1)
    links = tuple(
        replace(link, resources=(*link.resources, mark.name)) if link.src == root else link
        for link in topology.links
    )
    return replace(topology, links=links, resources=(*topology.resources, mark))


def _orbits(topology: Topology, count: int, alone: Rank | None) -> list[Orbit]:
    """Return the ways to choose, as far as they may differ."""
    blocks = blocks_of(shape_of(network_of(topology, Flow.DOWN)), alone)
    found = list(islice(orbits(blocks, count, alone), MAX_ORBITS + 1))
    if len(found) > MAX_ORBITS:
        raise UsageError(
            f"{count} of {topology.size} free GPUs can be chosen in more than {MAX_ORBITS} ways "
            "that differ; name fewer free GPUs"
        )
    return found


def _listed(topology: Topology, orbit: Orbit) -> list[Allocation]:
    """Return the first allocations of an orbit."""
    return [
        tuple(topology.devices[rank] for rank in ranks)
        for ranks in islice(orbit.members(), MAX_LISTED)
    ]
