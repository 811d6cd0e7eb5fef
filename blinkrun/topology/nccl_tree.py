"""The PCI tree of an NCCL or RCCL topology file, as it stands there, checked element by element."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from blinkrun.topology.complaints import Complaints
from blinkrun.topology.machine import Nic, PciKind, PciNode
from blinkrun.topology.nccl_values import (
    bus_id_of,
    cpu_list,
    cpu_vendor,
    gpu_arch,
    is_bus_id,
    kind_of_class,
    pci_class,
    speed,
    width,
)
from blinkrun.topology.xml_text import Element

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FabricLink:
    """An ``nvlink`` or ``xgmi`` element of a GPU; `target_class` as six digits or empty."""

    tag: str
    target: str
    count: int
    target_class: str
    line: int


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A device that is a GPU or may be one.

    `node` is its place in the tree, `dev` the number that the file gives it, `links` None where
    the file has no ``gpu`` element to tell them.
    """

    node: int
    host: str
    bus_id: str
    line: int
    numa: int | None
    cpus: str
    dev: int | None = None
    arch: str = ""
    c2c_mb_per_s: int | None = None
    links: tuple[FabricLink, ...] | None = None


@dataclass(slots=True)
class Scan:
    """What a file holds, in the order in which it stands there.

    Attributes
    ----------
    complaints : Complaints
        Where to tell what is wrong.
    nodes : list of PciNode
        The tree, not yet with the GPUs that sit at its nodes.
    gpus : list of FoundGpu
        What is a GPU by its class or has a ``gpu`` element.
    unknown : list of FoundGpu
        Leaves that do not say what they are.
    nics : list of Nic
    at : dict
        Node by host and bus id.
    classes : dict
        PCI class by node, as six digits, where it is stated.
    """

    complaints: Complaints
    nodes: list[PciNode] = field(default_factory=list)
    gpus: list[FoundGpu] = field(default_factory=list)
    unknown: list[FoundGpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    at: dict[tuple[str, str], int] = field(default_factory=dict)
    classes: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Cpu:
    """The CPU that a device hangs on."""

    host: str
    numa: int | None
    cpus: str


def scan_system(system: Element, complaints: Complaints) -> Scan:
    """Return what a ``system`` element holds.

    Elements that the text breaks off in are left out with what is not whole in them.

    Raises
    ------
    ReportError
        If an element contradicts itself or another one, unless the read is partial.
    """
    scan = Scan(complaints)
    for child in system.children:
        if child.tag == "cpu":
            _scan_cpu(scan, child)
        elif child.tag in ("pci", "nic", "gpu"):
            complaints.add(
                child.line,
                f"{child.tag} stands outside of every cpu; expected it in the one it hangs on",
            )
    return scan


def _scan_cpu(scan: Scan, element: Element) -> None:
    attributes = element.attributes
    numa = _number(scan, element, "numaid")
    cpu = _Cpu(attributes.get("host_hash", ""), numa, cpu_list(attributes.get("affinity", "")))
    place = len(scan.nodes)
    count = sum(node.kind is PciKind.CPU for node in scan.nodes)
    name = f"cpu {count if numa is None else numa}"
    scan.nodes.append(
        PciNode(PciKind.CPU, name, numa=numa, vendor=cpu_vendor(attributes), host=cpu.host)
    )
    for child in element.children:
        if child.tag == "pci":
            _scan_pci(scan, child, place, cpu)
        elif child.tag == "nic" and child.is_whole:
            _scan_virtual_nic(scan, child, place, cpu)


def _scan_virtual_nic(scan: Scan, nic: Element, parent: int, cpu: _Cpu) -> None:
    """Add a NIC without a PCI device, as virtual machines have it."""
    ports = _ports(scan, nic, "", cpu)
    if ports:
        name = scan.nics[ports[0]].name
        scan.nodes.append(PciNode(PciKind.NIC, name, parent=parent, nics=ports))


def _scan_pci(scan: Scan, pci: Element, parent: int, cpu: _Cpu) -> None:
    """Add a device or bridge and what hangs on it."""
    bus_id = bus_id_of(pci.attributes.get("busid", ""))
    inner = [child for child in pci.children if child.tag == "pci"]
    if not (pci.is_whole or inner or pci.inside("gpu") or pci.inside("nic")):
        return
    if not is_bus_id(bus_id):
        problem = f"pci has busid '{pci.attributes.get('busid', '')}'"
        scan.complaints.add(pci.line, f"{problem}; expected one such as 0000:07:00.0")
        return
    if (cpu.host, bus_id) in scan.at:
        problem = f"pci {bus_id} stands here a second time; expected each device once"
        scan.complaints.add(pci.line, problem)
        return
    place = len(scan.nodes)
    scan.at[cpu.host, bus_id] = place
    kind = _kind(scan, pci, place)
    scan.nodes.append(
        PciNode(
            kind or PciKind.OTHER,
            bus_id,
            parent=parent,
            gt_per_s=speed(pci.attributes.get("link_speed", "")),
            width=width(pci.attributes.get("link_width", "")),
            nics=_nics(scan, pci, bus_id, cpu) if kind is PciKind.NIC else (),
        )
    )
    if kind in (PciKind.GPU, None):
        found = scan.unknown if kind is None else scan.gpus
        found.append(_found_gpu(scan, pci, place, cpu))
    for child in inner:
        _scan_pci(scan, child, place, cpu)


def _kind(scan: Scan, pci: Element, place: int) -> PciKind | None:
    """Return what a device is by what is in it, else by its class; None if neither tells."""
    stated = pci.attributes.get("class", "")
    digits = pci_class(stated)
    if digits is None:
        scan.complaints.add(pci.line, f"pci has class '{stated}'; expected one such as 0x030200")
    if digits:
        scan.classes[place] = digits
    if pci.inside("gpu"):
        return PciKind.GPU
    if pci.inside("nic"):
        return PciKind.NIC
    if digits:
        return kind_of_class(digits, pci.attributes.get("vendor", ""))
    return PciKind.BRIDGE if any(child.tag == "pci" for child in pci.children) else None


def _found_gpu(scan: Scan, pci: Element, place: int, cpu: _Cpu) -> FoundGpu:
    bus_id = bus_id_of(pci.attributes["busid"])
    elements = pci.inside("gpu")
    for extra in elements[1:]:
        problem = f"pci {bus_id} has a second gpu; expected one for each device"
        scan.complaints.add(extra.line, problem)
    if not elements:
        return FoundGpu(place, cpu.host, bus_id, pci.line, cpu.numa, cpu.cpus)
    gpu = elements[0]
    return FoundGpu(
        place,
        cpu.host,
        bus_id,
        gpu.line,
        cpu.numa,
        cpu.cpus,
        dev=_number(scan, gpu, "dev"),
        arch=gpu_arch(gpu.attributes),
        c2c_mb_per_s=_c2c(scan, gpu),
        links=tuple(_links(scan, gpu)),
    )


def _links(scan: Scan, gpu: Element) -> list[FabricLink]:
    """Return the NVLinks and xGMI links that are whole and make sense."""
    links = []
    for child in gpu.children:
        if child.tag not in ("nvlink", "xgmi"):
            continue
        count = _number(scan, child, "count")
        target = bus_id_of(child.attributes.get("target", ""))
        if not is_bus_id(target):
            problem = f"{child.tag} has target '{child.attributes.get('target', '')}'"
            scan.complaints.add(child.line, f"{problem}; expected the bus id of a device")
        elif count is None and "count" not in child.attributes:
            scan.complaints.add(child.line, f"{child.tag} to {target} has no count")
        elif count:
            digits = pci_class(child.attributes.get("tclass", "")) or ""
            links.append(FabricLink(child.tag, target, count, digits, child.line))
    return links


def _c2c(scan: Scan, gpu: Element) -> int | None:
    """Return MB/s of the link to the CPU in the same package, as NCCL computes it."""
    parts = [
        (_number(scan, c2c, "bw") or 0) * (_number(scan, c2c, "count") or 0)
        for c2c in gpu.inside("c2c")
    ]
    return sum(parts) or None


def _nics(scan: Scan, pci: Element, bus_id: str, cpu: _Cpu) -> tuple[int, ...]:
    """Add the ports of a NIC; one that names none is called by its bus id."""
    ports = tuple(port for nic in pci.inside("nic") for port in _ports(scan, nic, bus_id, cpu))
    if ports:
        return ports
    scan.nics.append(Nic(bus_id, bus_id=bus_id, numa=cpu.numa))
    return (len(scan.nics) - 1,)


def _ports(scan: Scan, nic: Element, bus_id: str, cpu: _Cpu) -> tuple[int, ...]:
    """Add what the ``net`` elements name, each name once: a port may stand there twice."""
    first = len(scan.nics)
    names: set[str] = set()
    for net in nic.inside("net"):
        name = net.attributes.get("name", "").strip()
        if name and name not in names:
            names.add(name)
            mbit_per_s = _number(scan, net, "speed") or None
            scan.nics.append(Nic(name, bus_id=bus_id, numa=cpu.numa, mbit_per_s=mbit_per_s))
    return tuple(range(first, len(scan.nics)))


def _number(scan: Scan, element: Element, name: str) -> int | None:
    """Return a whole number, None where it is not stated or -1: NCCL does not know it."""
    stated = element.attributes.get(name, "").strip()
    if stated in ("", "-1"):
        return None
    if _NUMBER.fullmatch(stated):
        return int(stated)
    problem = f"{element.tag} has {name} '{stated}'; expected a whole number >= 0"
    scan.complaints.add(element.line, problem)
    return None
