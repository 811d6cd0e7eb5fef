"""Topology: directed links between devices, each taking shares of named resources.

A link names everything that its traffic occupies: its own wires, a switch port, a PCIe uplink, the
interconnect of two sockets, the core that does the copying. Two links that name the same resource
share its capacity. This one model covers point-to-point meshes, switches, PCIe trees and shared
memory, so nothing above it distinguishes machines by type.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from blinkrun.errors import TopologyError
from blinkrun.types import Rank

if TYPE_CHECKING:
    import networkx as nx


class LinkKind(StrEnum):
    """What a link is made of."""

    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    XGMI = "xgmi"
    PCIE = "pcie"  # one device reads or writes the other's memory
    STAGED = "pcie-staged"  # by way of host memory: beside an NVLink, or without peer access
    SHM = "shm"
    NETWORK = "network"  # from host to host, through a NIC on either side

    @property
    def is_fabric(self) -> bool:
        """Whether it joins GPUs beside PCIe."""
        return self in (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """Something that links share; `capacity` is in the topology's unit, a positive whole number."""

    name: str
    capacity: int

    def __post_init__(self) -> None:
        if not self.name:
            raise TopologyError("a resource needs a name")
        if type(self.capacity) is not int or self.capacity < 1:
            raise TopologyError(
                f"resource {self.name} has capacity {self.capacity}, need a whole number >= 1"
            )


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A directed link from rank `src` to rank `dst` that takes each of `resources` once."""

    src: Rank
    dst: Rank
    resources: tuple[str, ...]
    kind: LinkKind

    def __post_init__(self) -> None:
        if self.src < 0 or self.dst < 0:
            raise TopologyError(f"link {self.src}->{self.dst} names a negative rank")
        if self.src == self.dst:
            raise TopologyError(f"link {self.src}->{self.dst} is a self-loop")
        if not self.resources:
            raise TopologyError(f"link {self.src}->{self.dst} takes no resource: it has no limit")
        if len(set(self.resources)) != len(self.resources):
            raise TopologyError(f"link {self.src}->{self.dst} names a resource twice")


@dataclass(frozen=True, slots=True)
class Topology:
    """What is wired to what.

    Attributes
    ----------
    name : str
        Of the machine, for people.
    devices : tuple of int
        What each rank is called on the machine (rank r is device ``devices[r]``), for people.
    links : tuple of Link
        Between ranks ``0 … size - 1``; kept sorted. Parallel links of a pair are allowed as long
        as they differ in kind or resources.
    resources : tuple of Resource
        Kept sorted by name.
    unit : str
        What capacities count, such as ``lane`` or ``MB/s``.
    num_relays : int, default 0
        That many of the last `devices` are no ranks: they take no part in a collective, but data
        may run through them. Links name them as ``size``, ``size + 1``, ….

    Raises
    ------
    TopologyError
        If a link names an unknown rank or resource, or something is given twice.

    Examples
    --------
    >>> pair = Topology(
    ...     name="pair",
    ...     devices=(0, 1),
    ...     links=(Link(1, 0, ("b",), LinkKind.NVLINK), Link(0, 1, ("a",), LinkKind.NVLINK)),
    ...     resources=(Resource("a", 1), Resource("b", 2)),
    ...     unit="lane",
    ... )
    >>> pair.size, [link.src for link in pair.links]
    (2, [0, 1])
    """

    name: str
    devices: tuple[int, ...]
    links: tuple[Link, ...]
    resources: tuple[Resource, ...]
    unit: str
    num_relays: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", tuple(sorted(self.links)))
        object.__setattr__(self, "resources", tuple(sorted(self.resources)))
        if not self.devices:
            raise TopologyError(f"topology {self.name} has no devices")
        if not 0 <= self.num_relays < len(self.devices):
            raise TopologyError(
                f"topology {self.name} has {self.num_relays} relays of {len(self.devices)} devices"
            )
        _check_distinct(self.name, "device", self.devices)
        _check_distinct(self.name, "resource", [resource.name for resource in self.resources])
        _check_distinct(self.name, "link", self.links)
        known = {resource.name for resource in self.resources}
        for link in self.links:
            if max(link.src, link.dst) >= self.num_nodes:
                raise TopologyError(
                    f"link {link.src}->{link.dst}: there are {self.num_nodes} ranks"
                )
            for name in link.resources:
                if name not in known:
                    raise TopologyError(f"link {link.src}->{link.dst} takes unknown '{name}'")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices) - self.num_relays

    @property
    def num_nodes(self) -> int:
        """Number of ranks and relays."""
        return len(self.devices)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON, in hex: equal for equal topologies, on any machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return canonical JSON text: equal topologies give equal text."""
        relays = {"relays": self.num_relays} if self.num_relays else {}
        return json.dumps(
            {
                "name": self.name,
                "unit": self.unit,
                "devices": list(self.devices),
                **relays,
                "resources": {resource.name: resource.capacity for resource in self.resources},
                "links": [
                    [link.src, link.dst, link.kind.value, list(link.resources)]
                    for link in self.links
                ],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Return the topology that `to_json` wrote.

        Raises
        ------
        TopologyError
            If `text` is no topology, or one that contradicts itself.
        """
        try:
            data: Mapping[str, Any] = json.loads(text)
            return cls(
                name=data["name"],
                devices=tuple(data["devices"]),
                links=tuple(
                    Link(src, dst, tuple(resources), LinkKind(kind))
                    for src, dst, kind, resources in data["links"]
                ),
                resources=tuple(Resource(*item) for item in data["resources"].items()),
                unit=data["unit"],
                num_relays=data.get("relays", 0),
            )
        except TopologyError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise TopologyError(f"text is no topology: {type(err).__name__}: {err}") from err


def induce(topology: Topology, devices: Iterable[int], relays: Iterable[int] = ()) -> Topology:
    """Return the part of `topology` that joins `devices`, as ranks 0, 1, … in the given order.

    Parameters
    ----------
    topology : Topology
        The whole machine.
    devices : iterable of int
        Names as in ``topology.devices``; the result's `devices` are these.
    relays : iterable of int, optional
        More devices of the machine, idle ones, that data may run through.

    Returns
    -------
    Topology
        Links between the chosen devices, and the resources that those links take. A resource
        keeps its full capacity: the other devices are taken to be silent.

    Raises
    ------
    TopologyError
        If a device is unknown, named twice, or none is given.
    """
    idle = tuple(relays)
    chosen = (*devices, *idle)
    for device in chosen:
        if device not in topology.devices:
            raise TopologyError(f"{topology.name} has no device {device}, only {topology.devices}")
    rank_of = {topology.devices.index(device): rank for rank, device in enumerate(chosen)}
    links = tuple(
        Link(rank_of[link.src], rank_of[link.dst], link.resources, link.kind)
        for link in topology.links
        if link.src in rank_of and link.dst in rank_of
    )
    taken = _taken(topology, links)
    return Topology(topology.name, chosen, links, taken, topology.unit, len(idle))


def select_links(topology: Topology, kinds: Iterable[LinkKind]) -> Topology:
    """Return `topology` with only the links of these kinds and the resources that they take."""
    wanted = frozenset(kinds)
    links = tuple(link for link in topology.links if link.kind in wanted)
    taken = _taken(topology, links)
    return Topology(
        topology.name, topology.devices, links, taken, topology.unit, topology.num_relays
    )


def to_networkx(topology: Topology) -> nx.MultiDiGraph[int]:
    """Return the links as a graph of networkx, to look at or to run other algorithms on.

    Nodes are ranks, with their ``device``. An edge per link has its ``kind``, its ``resources``
    and its ``capacity``: the least of those resources, in the topology's unit.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> graph = to_networkx(machine("dgx-1v"))
    >>> graph.number_of_nodes(), graph[0][3][0]["capacity"]
    (8, 2)
    """
    import networkx as nx  # noqa: PLC0415 - a quarter of a second that planning does not need

    capacity = {resource.name: resource.capacity for resource in topology.resources}
    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph(name=topology.name, unit=topology.unit)
    graph.add_nodes_from((rank, {"device": name}) for rank, name in enumerate(topology.devices))
    for link in topology.links:
        graph.add_edge(
            link.src,
            link.dst,
            kind=link.kind.value,
            resources=link.resources,
            capacity=min(capacity[name] for name in link.resources),
        )
    return graph


def _taken(topology: Topology, links: Iterable[Link]) -> tuple[Resource, ...]:
    names = {name for link in links for name in link.resources}
    return tuple(resource for resource in topology.resources if resource.name in names)


def _check_distinct(topology: str, what: str, items: Iterable[object]) -> None:
    seen: set[object] = set()
    for item in items:
        if item in seen:
            raise TopologyError(f"topology {topology} has {what} {item} twice")
        seen.add(item)
