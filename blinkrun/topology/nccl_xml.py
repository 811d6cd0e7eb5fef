"""Reads NCCL and RCCL topology XML: what ``NCCL_TOPO_DUMP_FILE`` writes, ``NCCL_TOPO_FILE`` reads.

The format is that of NCCL 2.5 and later (src/graph/xml.cc and topo.cc): ``system`` > ``cpu`` >
nested ``pci`` > ``gpu`` with its links, or ``nic`` > ``net``. Files that vendors ship for virtual
machines have the ``pci`` elements alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from blinkrun.errors import ReportError
from blinkrun.topology.complaints import Complaints
from blinkrun.topology.machine import Gpu, Machine, PciKind, PciNode
from blinkrun.topology.nccl_links import fabric_of
from blinkrun.topology.nccl_tree import FoundGpu, Scan, scan_system
from blinkrun.topology.pci_levels import gpu_levels, nic_levels
from blinkrun.topology.xml_text import documents, read_elements

_MOST_GPUS = 1024  # the largest NVLink domain has 576


def read_nccl_xml(text: str, source: str, *, partial: bool = False) -> Machine:
    """Return the machine that a topology file describes.

    Parameters
    ----------
    text : str
        The file, also inside a log. Of several files in it the first is read.
    source : str
        The file's name, for messages.
    partial : bool, default False
        Take the elements that are whole and make sense where others are not.

    Returns
    -------
    Machine
        With its exact PCI tree. GPUs are in the order of their ``dev`` on each host and called
        ``GPU<dev>``; those without one follow in document order, called by their bus ids.

    Raises
    ------
    ReportError
        If the text is no such file, is not well-formed, or contradicts itself.

    Examples
    --------
    >>> machine = read_nccl_xml('''<system version="1"><cpu numaid="0">
    ...   <pci busid="0000:07:00.0" class="0x030200"><gpu dev="0" sm="70"/></pci>
    ...   <pci busid="0000:0a:00.0" class="0x030200"><gpu dev="1" sm="70"/></pci>
    ... </cpu></system>''', "dump.xml")
    >>> [gpu.name for gpu in machine.gpus], machine.pcie
    (['GPU0', 'GPU1'], (PciPath(low=0, high=1, level='PHB', hops=None, weight=None),))
    """
    found = documents(text)
    if not found:
        raise ReportError(source, 0, "no topology XML; expected a <system> element")
    complaints = Complaints(source, partial)
    system, broken = read_elements(found[0])
    if broken:
        problem = f"the XML breaks here ({broken.problem}); expected whole elements up to </system>"
        complaints.add(broken.line, problem)
    scan = scan_system(system, complaints)
    return _machine(scan, system.line)


def _machine(scan: Scan, line: int) -> Machine:
    is_identified = bool(scan.gpus)
    gpus, names = _in_order(scan.gpus or scan.unknown)
    source = scan.complaints.source
    if not gpus:
        problem = "no GPU in the XML; expected pci elements of class 0x03… or with a gpu inside"
        raise ReportError(source, line, problem)
    if len(gpus) > _MOST_GPUS:
        raise ReportError(source, line, f"{len(gpus)} GPUs; expected at most {_MOST_GPUS}")
    fabric = fabric_of(scan, gpus, names)
    tree = _tree(scan, gpus)
    return Machine(
        name=source,
        source="RCCL topology XML" if _is_rccl(gpus) else "NCCL topology XML",
        gpus=tuple(_gpu(gpu, name) for gpu, name in zip(gpus, names, strict=True)),
        nics=tuple(scan.nics),
        nvlink=fabric.nvlink,
        xgmi=fabric.xgmi,
        pcie=gpu_levels(tree),
        gpu_nic=nic_levels(tree),
        switches=fabric.switches,
        tree=tree,
        self_links=fabric.self_links,
        is_identified=is_identified,
        notes=(*scan.complaints.notes, *fabric.notes, *_remarks(scan, is_identified)),
    )


def _in_order(gpus: Sequence[FoundGpu]) -> tuple[list[FoundGpu], list[str]]:
    """Return the GPUs by host and number, and their names."""
    hosts = list(dict.fromkeys(gpu.host for gpu in gpus))
    numbers = Counter((gpu.host, gpu.dev) for gpu in gpus if gpu.dev is not None)
    if not numbers or max(numbers.values()) > 1:  # not one numbering: they stay where they stand
        ordered = list(gpus)
    else:
        ordered = sorted(gpus, key=lambda gpu: (hosts.index(gpu.host), *_by_number(gpu)))
    shared = Counter(gpu.dev for gpu in gpus)
    is_own = all(shared[gpu.dev] == 1 for gpu in gpus if gpu.dev is not None)
    names = [
        gpu.bus_id if gpu.dev is None else f"GPU{gpu.dev if is_own else at}"
        for at, gpu in enumerate(ordered)
    ]
    return ordered, names


def _by_number(gpu: FoundGpu) -> tuple[bool, int]:
    return gpu.dev is None, gpu.dev or 0


def _gpu(gpu: FoundGpu, name: str) -> Gpu:
    return Gpu(
        name,
        bus_id=gpu.bus_id,
        arch=gpu.arch,
        numa=gpu.numa,
        cpus=gpu.cpus,
        lanes=_num_nvlinks(gpu),
        c2c_mb_per_s=gpu.c2c_mb_per_s,
    )


def _num_nvlinks(gpu: FoundGpu) -> int | None:
    """Return how many NVLinks the file says are active, None if it has no word of any."""
    counts = [link.count for link in gpu.links or () if link.tag == "nvlink"]
    return sum(counts) if counts else None


def _is_rccl(gpus: Sequence[FoundGpu]) -> bool:
    return any(gpu.arch.startswith("gfx") for gpu in gpus) or any(
        link.tag == "xgmi" for gpu in gpus for link in gpu.links or ()
    )


def _tree(scan: Scan, gpus: Sequence[FoundGpu]) -> tuple[PciNode, ...]:
    """Return the tree with the GPUs at their nodes, and hosts named only if there are several."""
    nodes = list(scan.nodes)
    for at, gpu in enumerate(gpus):
        nodes[gpu.node] = replace(nodes[gpu.node], kind=PciKind.GPU, gpus=(at,))
    if len({node.host for node in nodes if node.kind is PciKind.CPU}) == 1:
        nodes = [replace(node, host="") for node in nodes]
    return tuple(nodes)


def _remarks(scan: Scan, is_identified: bool) -> list[str]:
    if not scan.unknown:
        return []
    if not is_identified:
        return [
            f"no pci element says its class: the {len(scan.unknown)} devices are taken for GPUs"
        ]
    devices = ", ".join(found.bus_id for found in scan.unknown)
    return [f"devices that do not say their class, left out: {devices}"]
