"""From what a report states of a machine to links over shared resources.

NVLink and xGMI are wires (`fabric`) or ports of switches; PCIe is a tree of shared uplinks
(`pcie_tree`, `model_pcie`); what each achieves is in one table (`bandwidth`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import permutations

from blinkrun.errors import UsageError
from blinkrun.topology.bandwidth import DEFAULT, Bandwidths
from blinkrun.topology.fabric import Fabric, FabricKind, fabric_of, lane_mb_per_s
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.topology.machine import Machine
from blinkrun.topology.model_pcie import pcie_links
from blinkrun.topology.pcie_tree import nearest_nics, pcie_tree

__all__ = [
    "LANE",
    "MB_PER_S",
    "Fabric",
    "FabricKind",
    "LinkSet",
    "fabric_of",
    "lane_mb_per_s",
    "link_latency_ns",
    "nearest_nics",
    "pcie_tree",
    "topology_of",
]

LANE = "lane"
MB_PER_S = "MB/s"

_Part = tuple[Link, tuple[Resource, ...]]


class LinkSet(StrEnum):
    """Which links of a machine to use."""

    NVLINK = "nvlink"  # NVLink, NVSwitch, xGMI: what joins GPUs beside PCIe
    PCIE = "pcie"
    ALL = "all"


def topology_of(
    machine: Machine, links: LinkSet = LinkSet.ALL, bandwidths: Bandwidths = DEFAULT
) -> Topology:
    """Return the links and shared resources of `machine`; device i is GPU i.

    Parameters
    ----------
    machine : Machine
        As a reader, the probe or the catalog gives it.
    links : LinkSet, default ALL
        NVLINK: the fabric alone, capacities in whole lanes. PCIE: PCIe alone, in MB/s. ALL: both,
        in MB/s; GPUs that the fabric joins reach each other over PCIe by way of host memory then.
    bandwidths : Bandwidths, default DEFAULT
        What a lane, a PCIe link, a socket interconnect achieve.

    Returns
    -------
    Topology
        Wires are resources ``nvlink 0->3``, switch ports ``port 0 out`` and ``port 3 in``, PCIe
        ``pcie gpu 0 out``, ``pcie switch 0 up``, ``qpi 0->1``, ``host memory 0``. GPUs of
        different hosts have no PCIe link.

    Raises
    ------
    UsageError
        If the report names no GPU or does not tell which GPUs are linked, or the fabric alone is
        asked for where there is none.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu, Wire
    >>> pair = Machine("pair", "by hand", (Gpu("GPU0"), Gpu("GPU1")), nvlink=(Wire(0, 1, 4),))
    >>> [resource.name for resource in topology_of(pair, LinkSet.NVLINK).resources]
    ['nvlink 0->1', 'nvlink 1->0']
    >>> [link.resources for link in topology_of(pair, LinkSet.PCIE).links][0]
    ('pcie gpu 0 out', 'pcie gpu 1 in')
    """
    chosen = LinkSet(links)
    _check_stated(machine, chosen)
    fabric = fabric_of(machine)
    parts: list[_Part] = []
    if chosen is LinkSet.NVLINK:
        if fabric.kind is FabricKind.NONE:
            raise UsageError(f"{machine.name} has no NVLink; use --links pcie")
        parts += _fabric_links(fabric, 1)
    else:
        if chosen is LinkSet.ALL:
            parts += _fabric_links(fabric, lane_mb_per_s(machine, bandwidths, fabric))
        parts += pcie_links(machine, fabric, bandwidths, beside_fabric=chosen is LinkSet.ALL)
    return Topology(
        name=machine.name,
        devices=tuple(range(machine.num_gpus)),
        links=tuple(link for link, _ in parts),
        resources=tuple({part.name: part for _, path in parts for part in path}.values()),
        unit=LANE if chosen is LinkSet.NVLINK else MB_PER_S,
    )


def link_latency_ns(kind: LinkKind, bandwidths: Bandwidths = DEFAULT) -> int:
    """Return how long a small message takes over a link of that kind, in ns.

    >>> link_latency_ns(LinkKind.NVLINK), link_latency_ns(LinkKind.STAGED)
    (520, 2000)
    """
    return bandwidths[f"latency_{kind.value.replace('-', '_')}"]


def _check_stated(machine: Machine, links: LinkSet) -> None:
    """Raise UsageError if the report does not tell what is linked to what."""
    if not machine.gpus:
        raise UsageError(f"{machine.name}: the report names no GPU")
    has_fabric = machine.nvlink is not None or bool(machine.xgmi or machine.switches)
    has_pcie = machine.pcie is not None or bool(machine.tree)
    if has_fabric or (has_pcie and links is not LinkSet.NVLINK):
        return
    raise UsageError(
        f"{machine.name}: the report ({machine.source}) does not say which GPUs are linked;"
        " the one of `nvidia-smi topo -m` does"
    )


def _fabric_links(fabric: Fabric, lane_capacity: int) -> Iterator[_Part]:
    """Yield a link per direction of every wire, and any to any behind switches."""
    what = LinkKind.XGMI if fabric.is_xgmi else LinkKind.NVLINK
    for wire in fabric.wires:
        for src, dst in permutations((wire.low, wire.high)):
            lanes = Resource(f"{what.value} {src}->{dst}", wire.lanes * lane_capacity)
            yield Link(src, dst, (lanes.name,), what), (lanes,)
    narrow = {(wire.low, wire.high): wire.lanes for wire in fabric.narrow}
    for island in fabric.islands:
        leaving, coming = (
            {
                gpu: Resource(f"port {gpu} {way}", fabric.ports[gpu] * lane_capacity)
                for gpu in island
            }
            for way in ("out", "in")
        )
        for src, dst in permutations(island, 2):
            path: tuple[Resource, ...] = (leaving[src], coming[dst])
            if narrow and (lanes_between := narrow.get((min(src, dst), max(src, dst)))):
                path += (Resource(f"nvlink {src}->{dst}", lanes_between * lane_capacity),)
            yield Link(src, dst, tuple([part.name for part in path]), LinkKind.NVSWITCH), path
