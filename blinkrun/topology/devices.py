"""The links between the GPUs that the ranks of a host use, as those can really be used.

A report says what is wired; the runtime says which rank's device reaches which other's memory
(`reach`). Where it does not, whatever is wired, data goes by way of the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, permutations

from blinkrun.errors import TopologyError, UsageError
from blinkrun.topology.bandwidth import DEFAULT, Bandwidths
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce, select_links
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import MB_PER_S, LinkSet, topology_of
from blinkrun.topology.sysfs_pci import bus_id

_PORT = "pcie4_x16"  # of a device of which nothing is known: plans depend on ratios alone

Reach = Sequence[Sequence[bool]]


class DeviceLinks(StrEnum):
    """Which links between devices to use."""

    AUTO = "auto"  # the fabric alone where it joins all ranks, else all
    FABRIC = "fabric"  # NVLink, NVSwitch
    PCIE = "pcie"
    ALL = "all"  # and beside the fabric PCIe, by way of host memory


@dataclass(frozen=True, slots=True)
class Place:
    """The device of a rank: its PCI bus id, and the UUID that tells parts of one GPU apart."""

    bus_id: str
    uuid: str = ""

    @property
    def identity(self) -> str:
        """Equal for ranks on one device."""
        return self.uuid or self.bus

    @property
    def bus(self) -> str:
        """The bus id as machines write it."""
        return bus_id(self.bus_id) or self.bus_id


def device_topology(
    machine: Machine | None,
    places: Sequence[Place],
    reach: Reach,
    links: DeviceLinks = DeviceLinks.AUTO,
    bandwidths: Bandwidths = DEFAULT,
) -> Topology:
    """Return the links between the devices of ranks.

    Parameters
    ----------
    machine : Machine or None
        The GPUs of the host, as probed; None if nothing is known.
    places : sequence of Place
        The device of each rank. Several ranks may have the same.
    reach : sequence of sequence of bool
        ``reach[a][b]``: kernels on rank a's device can address memory of rank b's.
    links : DeviceLinks, default AUTO
    bandwidths : Bandwidths, default DEFAULT

    Returns
    -------
    Topology
        Capacities in MB/s; device r is the GPU of rank r as the machine numbers them. Where ranks
        share a GPU, or the machine does not tell of some, every rank has a port alike and device
        r is rank r.

    Raises
    ------
    UsageError
        If the fabric alone is asked for and does not join all ranks.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu, Wire
    >>> gpus = tuple(Gpu(f"GPU{at}", bus_id=f"0000:0{at}:00.0") for at in range(3))
    >>> three = Machine("three", "by hand", gpus, nvlink=(Wire(0, 2, 4),))
    >>> pair = [Place("0000:02:00.0"), Place("0000:00:00.0")]
    >>> whole = [[True, True], [True, True]]
    >>> found = device_topology(three, pair, whole)
    >>> found.devices, [link.kind.value for link in found.links]
    ((2, 0), ['nvlink', 'nvlink'])
    >>> cut = [[True, False], [False, True]]
    >>> [link.kind.value for link in device_topology(three, pair, cut).links]
    ['pcie-staged', 'pcie-staged']
    """
    _check(places, reach)
    gpus = _gpus(machine, places)
    if machine is None or gpus is None:
        return _alike(places, reach, bandwidths)
    both = {
        (low, high): reach[low][high] and reach[high][low]
        for low, high in combinations(range(len(places)), 2)
    }
    whole = _usable(machine, gpus, both, bandwidths)
    fabric = select_links(whole, [kind for kind in LinkKind if kind.is_fabric])
    if links is DeviceLinks.FABRIC or (links is DeviceLinks.AUTO and _joins_all(fabric)):
        if not _joins_all(fabric):
            named = " ".join(map(str, gpus))
            raise UsageError(
                f"{machine.name}: no NVLinks that can be used join all of GPUs {named}; use"
                " BLINKRUN_DEVICE_LINKS=auto"
            )
        return fabric
    if links is DeviceLinks.PCIE:
        return select_links(whole, [LinkKind.PCIE, LinkKind.STAGED])
    if links is DeviceLinks.AUTO:
        return _without_beside(whole)
    return whole


def _check(places: Sequence[Place], reach: Reach) -> None:
    size = len(places)
    if not size or len(reach) != size or any(len(row) != size for row in reach):
        raise TopologyError(f"{size} devices and a reach of {len(reach)} rows")


def _gpus(machine: Machine | None, places: Sequence[Place]) -> tuple[int, ...] | None:
    """Return the machine's GPU of every rank; None if one is not known or has several ranks."""
    if machine is None:
        return None
    at = {bus_id(gpu.bus_id) or gpu.bus_id: index for index, gpu in enumerate(machine.gpus)}
    at |= {gpu.uuid: index for index, gpu in enumerate(machine.gpus) if gpu.uuid}
    found = [at.get(place.bus, at.get(place.uuid, -1)) for place in places]
    return None if -1 in found or len(set(found)) < len(found) else tuple(found)


def _usable(
    machine: Machine,
    gpus: tuple[int, ...],
    both: dict[tuple[int, int], bool],
    bandwidths: Bandwidths,
) -> Topology:
    """Return all links between ranks on these GPUs, given which pairs reach each other."""
    # in place of what the driver states in general: what these processes can really do
    words = []
    for (one, other), can in both.items():
        low, high = sorted((gpus[one], gpus[other]))
        words.append((low, high, "OK" if can else "NS"))
    stated = replace(machine, p2p=tuple(words))
    try:
        here = induce(topology_of(stated, LinkSet.ALL, bandwidths), gpus)
    except UsageError:  # nothing says which GPUs are linked: all have PCIe
        here = induce(topology_of(replace(stated, nvlink=(), pcie=()), LinkSet.PCIE), gpus)
    kept = [
        link
        for link in here.links
        if link.kind is LinkKind.STAGED or both[min(link.src, link.dst), max(link.src, link.dst)]
    ]
    return _with_links(here, kept)


def _without_beside(topology: Topology) -> Topology:
    """Return the topology without links by way of host memory where there is another one."""
    direct = {(link.src, link.dst) for link in topology.links if link.kind is not LinkKind.STAGED}
    return _with_links(
        topology,
        [
            link
            for link in topology.links
            if link.kind is not LinkKind.STAGED or (link.src, link.dst) not in direct
        ],
    )


def _with_links(topology: Topology, links: Sequence[Link]) -> Topology:
    taken = {name for link in links for name in link.resources}
    resources = tuple(each for each in topology.resources if each.name in taken)
    return replace(topology, links=tuple(links), resources=resources)


def _joins_all(topology: Topology) -> bool:
    """Whether links lead from the first rank to all others and back."""
    for ahead in (True, False):
        seen, waiting = {0}, [0]
        while waiting:
            at = waiting.pop()
            for link in topology.links:
                start, end = (link.src, link.dst) if ahead else (link.dst, link.src)
                if start == at and end not in seen:
                    seen.add(end)
                    waiting.append(end)
        if len(seen) < topology.size:
            return False
    return True


def _alike(places: Sequence[Place], reach: Reach, bandwidths: Bandwidths) -> Topology:
    """Return a port for every rank each way, through which it has links with all others."""
    size = len(places)

    def kind(src: int, dst: int) -> LinkKind:
        if places[src].identity == places[dst].identity:
            return LinkKind.SHM
        return LinkKind.PCIE if reach[src][dst] and reach[dst][src] else LinkKind.STAGED

    links = tuple(
        Link(src, dst, (f"port {src} out", f"port {dst} in"), kind(src, dst))
        for src, dst in permutations(range(size), 2)
    )
    num_devices = len({place.identity for place in places})
    what = "GPU" if num_devices == 1 else "GPUs"
    return Topology(
        name=f"{size} ranks on {num_devices} {what}",
        devices=tuple(range(size)),
        links=links,
        resources=tuple(
            Resource(f"port {rank} {way}", bandwidths[_PORT])
            for rank in range(size)
            for way in ("out", "in")
        )
        if size > 1
        else (),
        unit=MB_PER_S,
    )
