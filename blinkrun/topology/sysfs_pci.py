"""From what the kernel says of each PCI device to the tree that joins GPUs and NICs.

The kernel's path of a device names every port on the way from the root complex. A switch shows in
it as two: its port upwards and the port down to the device, so every second one is a switch, as
NCCL reads it too (src/graph/xml.cc). Ports hidden by a container or a virtual machine leave a
flatter tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from blinkrun.topology.machine import PciKind, PciNode

_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[01]?[0-9a-f])"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Port:
    """A network port of a NIC: ``mlx5_0`` or ``eth0``; its speed where it is up."""

    name: str
    mbit_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device as the kernel describes it.

    Attributes
    ----------
    name : str
        Its bus id, as `bus_id` writes it.
    kind : PciKind
    root : str
        The root complex (``pci0000:00``); empty where hidden.
    above : tuple of str
        Bus ids of the ports between the root complex and the device, topmost first.
    numa : int or None
        Its NUMA node; None where the kernel does not know or say.
    cpus : str
        The processors near it, as ``0-19,40-59``.
    gt_per_s : float or None
        The fastest that its link can be: an idle GPU slows its link down, so the current speed
        says little.
    width, max_width : int or None
        Lanes of its link in use, which do not follow the load, and lanes that it has.
    vendor, device : int
        Numbers of maker and model.
    ports : tuple of Port
        Of a NIC.
    """

    name: str
    kind: PciKind
    root: str = ""
    above: tuple[str, ...] = ()
    numa: int | None = None
    cpus: str = ""
    gt_per_s: float | None = None
    width: int | None = None
    max_width: int | None = None
    vendor: int = 0
    device: int = 0
    ports: tuple[Port, ...] = ()

    @property
    def slot(self) -> str:
        """The bus id without the function: one card."""
        return self.name.rpartition(".")[0]


def bus_id(text: str) -> str | None:
    """Return a bus id in the kernel's spelling, or None if `text` is none.

    >>> [bus_id(text) for text in ("00000000:07:00.0", "0000:07:00.0", "07:00.0", "GPU-1", "7")]
    ['0000:07:00.0', '0000:07:00.0', '0000:07:00.0', None, None]
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device = (int(match[name] or "0", 16) for name in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match['function'] or 0}"


def pci_tree(
    gpus: Sequence[PciDevice],
    nics: Sequence[PciDevice | None],
    bridges: Mapping[str, PciDevice],
    vendor: str = "",
) -> tuple[PciNode, ...]:
    """Return what joins GPUs and NICs, parents before children: NUMA nodes, switches, cards.

    Parameters
    ----------
    gpus, nics : sequence of PciDevice
        In the order of their numbers; a NIC with several ports stands there once for each, None
        is one that the kernel does not show.
    bridges : mapping of str to PciDevice
        The ports that the kernel tells of, by bus id.
    vendor : str
        Of the CPUs, as `PciNode` has it.
    """
    return _Builder(gpus, nics, bridges, vendor).build()


def narrow_links(devices: Iterable[PciDevice]) -> tuple[str, ...]:
    """Return a line for every GPU whose link has fewer lanes than it could, by bus id."""
    return tuple(
        f"GPU {device.name}: its PCIe link runs at x{device.width} of x{device.max_width}"
        for device in devices
        if device.width is not None and device.width < (device.max_width or 0)
    )


def _switches(devices: Sequence[PciDevice]) -> frozenset[str]:
    """Return the ports that stand for something that is shared.

    Every second port from the root is a switch's port upwards. Any other at which ways part is
    kept as well: there the pattern does not hold, as with bridges of virtual machines.
    """
    below: dict[str, set[str]] = {}
    kept: set[str] = set()
    for device in devices:
        way = (*device.above, device.slot)
        for name, child in pairwise(way):
            below.setdefault(name, set()).add(child)
        kept |= set(device.above[1::2])
    return frozenset(kept | {name for name, children in below.items() if len(children) > 1})


class _Builder:
    """Adds nodes, each after what it hangs on."""

    def __init__(
        self,
        gpus: Sequence[PciDevice],
        nics: Sequence[PciDevice | None],
        bridges: Mapping[str, PciDevice],
        vendor: str,
    ) -> None:
        self._gpus = gpus
        self._nics = nics
        self._bridges = bridges
        self._vendor = vendor
        self._devices = sorted({*gpus, *filter(None, nics)}, key=lambda device: device.name)
        self._switches = _switches(self._devices)
        self._nodes: list[PciNode] = []
        self._at: dict[str, int] = {}

    def build(self) -> tuple[PciNode, ...]:
        cards: dict[str, list[PciDevice]] = {}
        for device in self._devices:
            own = device.name if device.kind is PciKind.GPU else device.slot
            cards.setdefault(own, []).append(device)
        numa = {self._numa(functions[0]) for functions in cards.values()}
        for node in sorted(numa, key=lambda number: -1 if number is None else number):
            self._add_cpu(node, is_only=len(numa) == 1)
        for functions in cards.values():
            self._add_card(functions)
        return tuple(self._nodes)

    def _numa(self, device: PciDevice) -> int | None:
        """Return the NUMA node of a device: its own, a port's above it, or its neighbours'."""
        known = [other.numa for other in self._devices if other.root == device.root]
        known += [self._bridges[name].numa for name in device.above if name in self._bridges]
        known.append(device.numa)
        return next((numa for numa in reversed(known) if numa is not None), None)

    def _add_cpu(self, numa: int | None, *, is_only: bool) -> None:
        # a host that does not tell NUMA nodes has one; -1 is the kernel's word for unknown
        number = numa if numa is not None else 0 if is_only else -1
        self._at[_cpu(numa)] = len(self._nodes)
        self._nodes.append(PciNode(PciKind.CPU, f"cpu {number}", numa=numa, vendor=self._vendor))

    def _add_card(self, functions: Sequence[PciDevice]) -> None:
        """Add a GPU, or a NIC with all its functions, below its switches."""
        first = functions[0]
        parent, ends = self._hang(first)
        gpus = tuple(at for at, gpu in enumerate(self._gpus) if gpu in functions)
        nics = tuple(at for at, nic in enumerate(self._nics) if nic in functions)
        kind = PciKind.GPU if gpus else PciKind.NIC
        speed, width = _slowest([*ends, first])
        self._nodes.append(PciNode(kind, first.name, parent, speed, width, gpus=gpus, nics=nics))

    def _hang(self, device: PciDevice) -> tuple[int, list[PciDevice]]:
        """Add the switches above a device; return its parent and the far ends of its link."""
        parent = self._at[_cpu(self._numa(device))]
        ends: list[PciDevice] = []  # ports since the parent: each the other end of the next link
        for name in device.above:
            ends += [self._bridges[name]] if name in self._bridges else []
            if name not in self._switches:
                continue
            if name not in self._at:
                self._at[name] = len(self._nodes)
                self._nodes.append(PciNode(PciKind.BRIDGE, name, parent, *_slowest(ends)))
            parent = self._at[name]
            ends = []
        return parent, ends


def _cpu(numa: int | None) -> str:
    return f"numa {numa}"


def _slowest(ends: Sequence[PciDevice]) -> tuple[float | None, int | None]:
    """Return the speed and the lanes of a link: those of its slower end."""
    speeds = [end.gt_per_s for end in ends if end.gt_per_s is not None]
    widths = [end.width for end in ends if end.width is not None]
    return min(speeds, default=None), min(widths, default=None)
