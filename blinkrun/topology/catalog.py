"""Known machines: DGX-1 with P100 or V100, DGX-2.

Wiring and lane counts are those of Blink (Wang et al., MLSys 2020, arXiv 1910.04940), figures 1
and 4, and of NVIDIA's DGX-1 and DGX-2 system architecture papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import permutations

from blinkrun.errors import UsageError
from blinkrun.topology import bandwidth
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology

LANE = "lane"
MB_PER_S = "MB/s"

# NVLink lanes of a DGX-1V; a DGX-1P has the same pairs with one lane each.
_DGX1_LANES = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
_DGX2_GPUS = 16
_DGX2_LANES = 6


class LinkSet(StrEnum):
    """Which links of a machine to use."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    ALL = "all"


def machines() -> tuple[str, ...]:
    """Return the names that `machine` knows.

    >>> machines()
    ('dgx-1p', 'dgx-1v', 'dgx-2')
    """
    return tuple(_MACHINES)


def machine(name: str, links: LinkSet = LinkSet.NVLINK) -> Topology:
    """Return the topology of a known machine.

    Parameters
    ----------
    name : str
        One of `machines()`.
    links : LinkSet, default NVLINK
        With NVLINK alone capacities count lanes; with PCIE or ALL they are MB/s, so that links of
        different kinds can be compared.

    Returns
    -------
    Topology
        All GPUs of the machine; `induce` cuts out those of a job.

    Raises
    ------
    UsageError
        If the machine is unknown or has no such links here.

    Examples
    --------
    >>> dgx1 = machine("dgx-1v")
    >>> dgx1.size, len(dgx1.links), dgx1.unit
    (8, 32, 'lane')
    """
    if name not in _MACHINES:
        raise UsageError(f"no machine '{name}' in the catalog; it has {', '.join(_MACHINES)}")
    return _MACHINES[name](LinkSet(links))


def _dgx1p(links: LinkSet) -> Topology:
    lanes = dict.fromkeys(_DGX1_LANES, 1)
    return _dgx1("dgx-1p", lanes, bandwidth.NVLINK1_LANE_MB_PER_S, links)


def _dgx1v(links: LinkSet) -> Topology:
    return _dgx1("dgx-1v", _DGX1_LANES, bandwidth.NVLINK2_LANE_MB_PER_S, links)


def _dgx1(
    name: str, lanes: dict[tuple[int, int], int], lane_mb_per_s: int, links: LinkSet
) -> Topology:
    """Join the cube mesh and the PCIe tree, as far as wanted."""
    parts: list[tuple[Link, tuple[Resource, ...]]] = []
    if links is not LinkSet.PCIE:
        parts += _mesh(lanes, 1 if links is LinkSet.NVLINK else lane_mb_per_s)
    if links is not LinkSet.NVLINK:
        parts += _dgx1_pcie()
    return Topology(
        name=name,
        devices=tuple(range(8)),
        links=tuple(link for link, _ in parts),
        resources=tuple({resource for _, resources in parts for resource in resources}),
        unit=LANE if links is LinkSet.NVLINK else MB_PER_S,
    )


def _mesh(
    lanes: dict[tuple[int, int], int], lane_capacity: int
) -> Iterator[tuple[Link, tuple[Resource, ...]]]:
    """Yield point-to-point links: each direction of a pair is a resource of its own."""
    for (low, high), count in lanes.items():
        for src, dst in ((low, high), (high, low)):
            wires = Resource(f"nvlink {src}->{dst}", count * lane_capacity)
            yield Link(src, dst, (wires.name,), LinkKind.NVLINK), (wires,)


def _dgx1_pcie() -> Iterator[tuple[Link, tuple[Resource, ...]]]:
    """Yield a PCIe link for every ordered pair of GPUs.

    Two GPUs share a switch, each switch has one x16 uplink to the host bridge of its socket, two
    switches a socket; QPI joins the sockets. A host bridge forwards what its uplinks carry, so it
    needs no resource of its own.
    """
    x16 = bandwidth.PCIE3_X16_MB_PER_S
    for src, dst in permutations(range(8), 2):
        path = [Resource(f"pcie gpu {src} out", x16), Resource(f"pcie gpu {dst} in", x16)]
        if src // 2 != dst // 2:
            path.append(Resource(f"pcie switch {src // 2} up", x16))
            path.append(Resource(f"pcie switch {dst // 2} down", x16))
        if src // 4 != dst // 4:
            path.append(Resource(f"qpi {src // 4}->{dst // 4}", bandwidth.QPI_MB_PER_S))
        yield Link(src, dst, tuple(resource.name for resource in path), LinkKind.PCIE), tuple(path)


def _dgx2(links: LinkSet) -> Topology:
    """Return 16 GPUs behind NVSwitch: a port per GPU and direction, any to any."""
    if links is LinkSet.PCIE:
        raise UsageError("the catalog has no PCIe links of dgx-2; use nvlink")
    in_lanes = links is LinkSet.NVLINK
    capacity = _DGX2_LANES * (1 if in_lanes else bandwidth.NVLINK2_LANE_MB_PER_S)
    gpus = range(_DGX2_GPUS)
    return Topology(
        name="dgx-2",
        devices=tuple(gpus),
        links=tuple(
            Link(src, dst, (f"port {src} out", f"port {dst} in"), LinkKind.NVSWITCH)
            for src, dst in permutations(gpus, 2)
        ),
        resources=tuple(
            Resource(f"port {gpu} {way}", capacity) for gpu in gpus for way in ("out", "in")
        ),
        unit=LANE if in_lanes else MB_PER_S,
    )


_MACHINES: dict[str, Callable[[LinkSet], Topology]] = {
    "dgx-1p": _dgx1p,
    "dgx-1v": _dgx1v,
    "dgx-2": _dgx2,
}
