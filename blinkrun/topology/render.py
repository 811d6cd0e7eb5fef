"""Machines as text: the matrix, the PCI tree, and which NICs are near."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from blinkrun.topology import pcie_tree
from blinkrun.topology.fabric import Fabric, FabricKind
from blinkrun.topology.machine import Machine, PciKind, PciNode

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}


def matrix(machine: Machine) -> str:
    """Return GPUs against GPUs and NICs, as ``nvidia-smi topo -m`` prints them, aligned.

    A cell is ``NVn`` (n NVLinks), ``XGMI`` (with the number of links where stated), the PCIe level,
    or ``?`` where nothing is stated.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu, Nic, NicPath, PciPath, Wire
    >>> three = Machine(
    ...     name="three",
    ...     source="hand",
    ...     gpus=(Gpu("GPU0", numa=0), Gpu("GPU1", numa=0), Gpu("GPU2", numa=1)),
    ...     nics=(Nic("mlx5_0"),),
    ...     nvlink=(Wire(0, 1, 2),),
    ...     pcie=(PciPath(0, 2, "SYS"), PciPath(1, 2, "SYS")),
    ...     gpu_nic=(NicPath(0, 0, "PIX"), NicPath(1, 0, "PIX"), NicPath(2, 0, "SYS")),
    ... )
    >>> print(matrix(three))
          GPU0  GPU1  GPU2  mlx5_0  NUMA
    GPU0  X     NV2   SYS   PIX     0
    GPU1  NV2   X     SYS   PIX     0
    GPU2  SYS   SYS   X     SYS     1
    """
    cells = _cells(machine)
    near = {(path.gpu, path.nic): path.level for path in machine.gpu_nic}
    columns = range(machine.num_gpus)
    places = _places(machine)
    head = ["", *(gpu_label(gpu) for gpu in columns), *(nic.name for nic in machine.nics)]
    rows = [[*head, *(name for name, _ in places)]]
    for gpu in columns:
        row = [gpu_label(gpu)]
        row += ["X" if gpu == other else cells.get((gpu, other), "?") for other in columns]
        row += [near.get((gpu, nic), "?") for nic in range(len(machine.nics))]
        rows.append([*row, *(values[gpu] for _, values in places)])
    return align(rows)


def gpu_label(gpu: int) -> str:
    """Return what a GPU is called here: by its number, which options take.

    >>> gpu_label(3)
    'GPU3'
    """
    return f"GPU{gpu}"


def names(machine: Machine) -> list[str]:
    """Return a line for each GPU or NIC that the report calls otherwise or says more of.

    Models are named where they differ; bus ids are left to the tree if that has them.
    """
    lines = []
    differ = len({gpu.model for gpu in machine.gpus}) > 1
    placed = {node.name for node in machine.tree}
    for number, gpu in enumerate(machine.gpus):
        said = [gpu.name, gpu.model if differ else "", gpu.bus_id, gpu.uuid]
        lines += _said_of(gpu_label(number), said, {gpu_label(number), *placed})
    for nic in machine.nics:
        rate = f"{nic.mbit_per_s / 1000:g} Gbit/s" if nic.mbit_per_s else ""
        lines += _said_of(nic.name, [nic.device, nic.bus_id, rate], {nic.name, *placed})
    return lines


def _said_of(label: str, words: Sequence[str], known: Collection[str]) -> list[str]:
    said = [word for word in dict.fromkeys(words) if word and word.lower() not in known]
    said = [word for word in said if word not in known]
    return [f"{label} is {', '.join(said)}"] if said else []


def statuses(machine: Machine) -> list[str]:
    """Return a line for each GPU whose NVLinks' status is stated.

    >>> from blinkrun.topology.machine import LinkStatus
    >>> statuses(Machine("m", "hand", (), status=(LinkStatus("GPU0", 11, 1, 25.781),)))
    ['GPU0: 11 of 12 NVLinks active, 25.781 GB/s each']
    """
    lines = []
    for status in machine.status:
        of = f" of {status.active + status.inactive}" if status.inactive is not None else ""
        rate = f", {status.gb_per_s:g} GB/s each" if status.gb_per_s is not None else ""
        cut = ", and more that is cut off" if status.is_cut else ""
        lines.append(f"{status.gpu}: {status.active}{of} NVLinks active{rate}{cut}")
    return lines


def nearest_nics(machine: Machine) -> list[str]:
    """Return a line for each group of GPUs that have the same NICs nearest.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu, Nic, NicPath
    >>> pair = Machine(
    ...     name="pair",
    ...     source="hand",
    ...     gpus=(Gpu("GPU0"), Gpu("GPU1")),
    ...     nics=(Nic("mlx5_0"), Nic("mlx5_1")),
    ...     gpu_nic=tuple(NicPath(gpu, nic, "PXB") for gpu in (0, 1) for nic in (0, 1)),
    ... )
    >>> nearest_nics(pair)
    ['GPU0 GPU1: mlx5_0 mlx5_1 (PXB)']
    """
    stated = {(path.gpu, path.nic): path.level for path in machine.gpu_nic}
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for gpu, nics in enumerate(pcie_tree.nearest_nics(machine)):
        if nics:
            level = stated.get((gpu, nics[0]), "")
            groups.setdefault((level, nics), []).append(gpu)
    return [
        f"{' '.join(map(gpu_label, gpus))}: "
        + " ".join(machine.nics[nic].name for nic in nics)
        + (f" ({level})" if level else "")
        for (level, nics), gpus in groups.items()
    ]


def fabric_text(fabric: Fabric, lane_mb_per_s: int) -> str:
    """Return what joins the GPUs beside PCIe, in a line.

    Examples
    --------
    >>> from blinkrun.topology.catalog import described
    >>> from blinkrun.topology.fabric import fabric_of
    >>> fabric_text(fabric_of(described("dgx-1v")), 23_000)
    'NVLink 2, 16 pairs of 1 or 2 lanes, 6 lanes a GPU, 23 GB/s a lane'
    >>> fabric_text(fabric_of(described("dgx-2")), 23_000)
    'NVLink 2 into NVSwitch, 6 lanes a GPU, 23 GB/s a lane'
    """
    if fabric.kind is FabricKind.NONE:
        return "none beside PCIe"
    family = "xGMI" if fabric.is_xgmi else "NVLink"
    number = re.sub(r"^[a-z]+|_.*", "", fabric.generation)
    words = [f"{family} {number}"]
    if fabric.islands:
        many = f"{len(fabric.islands)} groups of " if len(fabric.islands) > 1 else ""
        words[0] += f" into {many}NVSwitch"
    if fabric.wires:
        counts = [wire.lanes for wire in fabric.wires]
        words.append(f"{len(counts)} pair{_s(len(counts))} of {_span(counts)}")
    used = [lanes for lanes in fabric.lanes if lanes]
    words.append(f"{_span(used)} a GPU")
    words.append(f"{lane_mb_per_s / 1000:g} GB/s a lane")
    return ", ".join(words)


def _span(counts: Sequence[int]) -> str:
    """Return how many lanes: one number, two, or from … to …."""
    low, high = min(counts), max(counts)
    if low == high:
        return f"{low} lane{_s(low)}"
    return f"{low} {'or' if len(set(counts)) == 2 else 'to'} {high} lanes"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def tree_text(machine: Machine, nodes: Sequence[PciNode]) -> str:
    """Return the PCI tree `nodes` as indented lines, each link with its generation and width.

    Parameters
    ----------
    machine : Machine
        Whose GPUs and NICs the nodes name.
    nodes : sequence of PciNode
        Parents before children, as ``Machine.tree``.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu
    >>> pair = Machine(name="pair", source="hand", gpus=(Gpu("GPU0"), Gpu("GPU1")))
    >>> root = PciNode(PciKind.CPU, "cpu 0", numa=0, vendor="intel")
    >>> leaves = [PciNode(PciKind.GPU, f"0000:0{b}:00.0", 0, 8.0, 16, gpus=(b,)) for b in (0, 1)]
    >>> print(tree_text(pair, [root, *leaves]))
    cpu 0  intel, NUMA node 0
    ├─ GPU0  0000:00:00.0, gen3 x16
    └─ GPU1  0000:01:00.0, gen3 x16
    """
    below: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        below.setdefault(node.parent, []).append(at)
    lines: list[str] = []
    waiting = [(at, "", "", "") for at in reversed(below.get(-1, []))]
    while waiting:
        at, indent, fork, gap = waiting.pop()
        lines.append(indent + fork + _node_text(machine, nodes[at]))
        children = below.get(at, [])
        for place, child in reversed(list(enumerate(children))):
            is_last = place == len(children) - 1
            marks = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            waiting.append((child, indent + gap, *marks))
    return "\n".join(lines)


def link_text(node: PciNode) -> str:
    """Return generation and width of the link above `node`, as far as stated.

    >>> link_text(PciNode(PciKind.GPU, "0000:01:00.0", gt_per_s=16.0, width=8))
    'gen4 x8'
    """
    words = []
    if node.gt_per_s is not None:
        generation = _GENERATIONS.get(node.gt_per_s)
        words.append(f"gen{generation}" if generation else f"{node.gt_per_s:g} GT/s")
    if node.width is not None:
        words.append(f"x{node.width}")
    return " ".join(words)


def align(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows as lines with columns of equal width; `right` are columns set to the right.

    >>> print(align([["a", "size"], ["long", "7"]], right=[1]))
    a     size
    long     7
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cells(machine: Machine) -> dict[tuple[int, int], str]:
    """Return what the matrix shows of every pair, both ways round; a fabric goes before PCIe."""
    half = {(path.low, path.high): path.level for path in machine.pcie or ()}
    for link in machine.xgmi:
        half[link.low, link.high] = f"XGMI{link.lanes or ''}"
    for wire in machine.nvlink or ():
        half[wire.low, wire.high] = f"NV{wire.lanes}"
    return half | {(high, low): cell for (low, high), cell in half.items()}


def _places(machine: Machine) -> list[tuple[str, list[str]]]:
    """Return the columns of CPU and NUMA affinity, those that anything is stated in."""
    columns = [
        ("CPUs", [gpu.cpus for gpu in machine.gpus]),
        ("NUMA", ["" if gpu.numa is None else str(gpu.numa) for gpu in machine.gpus]),
    ]
    return [(name, values) for name, values in columns if any(values)]


def _node_text(machine: Machine, node: PciNode) -> str:
    what = [*map(gpu_label, node.gpus), *(machine.nics[nic].name for nic in node.nics)]
    said = []
    if node.kind is PciKind.CPU:
        what = what or [node.name]
        said += [node.vendor, "" if node.numa is None else f"NUMA node {node.numa}"]
        said.append(f"host {node.host}" if node.host else "")
    else:
        is_bus_id = ":" in node.name  # a rebuilt tree has names of its own
        if what:
            said.append(node.name if is_bus_id and node.name not in what else "")
        else:
            what = [f"{node.kind.value} {node.name}" if is_bus_id else node.name]
        said.append(link_text(node))
    return "  ".join([" ".join(what), ", ".join(word for word in said if word)]).rstrip()
