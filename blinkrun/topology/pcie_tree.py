"""The PCIe tree of a machine: the one that is stated, or one rebuilt from printed levels.

A matrix says of two devices whether they meet at a switch (PIX, PXB), at a CPU (PHB, NODE) or only
across CPUs (SYS). Such levels are an ultrametric: what meets a third device below some height
meets each other below it too. So devices that levels join are clustered from the tightest level up
(single linkage), which also fills in the pairs that a matrix leaves out because NVLink joins them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from blinkrun.topology.machine import Machine, PciKind, PciNode, PciPath

_PIX, _PXB, _PHB, _NODE, _SYS = range(5)
_HEIGHTS = {"PIX": _PIX, "PXB": _PXB, "PHB": _PHB, "NODE": _NODE, "SYS": _SYS, "SOC": _SYS}
# rocm-smi weighs a PCIe link 20 and one between sockets 12 to 32: device, CPU, device is 40.
_SAME_CPU_HOPS = 2
_SAME_CPU_WEIGHT = 40
# How IBM numbers the two CPUs of an AC922; nobody else leaves numbers out.
_POWER9_NUMAS = {0, 8}

# A device is a GPU by its index, or a NIC by its index behind those.
_Known = tuple[int, int, int]  # height, device, device


def pcie_tree(machine: Machine) -> tuple[PciNode, ...]:
    """Return the PCIe tree of `machine`, every GPU in it, parents before children.

    Returns
    -------
    tuple of PciNode
        `machine.tree` where there is one. Else CPUs (one per NUMA node or per group of devices
        that SYS parts from the rest), bridges for devices that meet below the CPU, and their GPUs
        and NICs. GPUs of which nothing is known hang on a CPU by NUMA affinity, else together.

    Notes
    -----
    Levels that contradict each other (PIX, PIX and SYS among three devices) are read as the
    closest that any chain of devices allows. PHB and NODE make the same tree: devices at one CPU.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu
    >>> gpus = tuple(Gpu(f"GPU{gpu}") for gpu in range(3))
    >>> paths = (PciPath(0, 1, "PIX"), PciPath(0, 2, "SYS"), PciPath(1, 2, "SYS"))
    >>> machine = Machine("three", "by hand", gpus, pcie=paths)
    >>> [(node.name, node.parent) for node in pcie_tree(machine)]
    [('cpu 0', -1), ('switch 0', 0), ('gpu0', 1), ('gpu1', 1), ('cpu 1', -1), ('gpu2', 4)]
    """
    return _completed(machine) if machine.tree else _rebuilt(machine)


def path_up(tree: Sequence[PciNode], at: int) -> tuple[int, ...]:
    """Return the nodes from `at` to its CPU, both included."""
    path = [at]
    while tree[path[-1]].parent >= 0:
        path.append(tree[path[-1]].parent)
    return tuple(path)


def nearest_nics(machine: Machine) -> tuple[tuple[int, ...], ...]:
    """Return for every GPU the NICs that are nearest to it, by index; empty if none is known.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu, Nic, NicPath
    >>> nics = (Nic("NIC0"), Nic("NIC1"))
    >>> paths = (NicPath(0, 0, "SYS"), NicPath(0, 1, "PIX"))
    >>> nearest_nics(Machine("one", "by hand", (Gpu("GPU0"),), nics, gpu_nic=paths))
    ((1,),)
    """
    heights: dict[tuple[int, int], int] = {
        (path.gpu, path.nic): _HEIGHTS[path.level]
        for path in machine.gpu_nic
        if path.level in _HEIGHTS
    }
    if not heights:
        heights = _heights_in(pcie_tree(machine))
    nearest = []
    for gpu in range(machine.num_gpus):
        known = {
            nic: heights[gpu, nic] for nic in range(len(machine.nics)) if (gpu, nic) in heights
        }
        best = min(known.values(), default=0)
        nearest.append(tuple(nic for nic, height in known.items() if height == best))
    return tuple(nearest)


def _heights_in(tree: Sequence[PciNode]) -> dict[tuple[int, int], int]:
    """Return the nodes from each GPU of a tree up to where it meets each NIC."""
    paths = {at: path_up(tree, at) for at, node in enumerate(tree) if node.gpus or node.nics}
    heights: dict[tuple[int, int], int] = {}
    for at, above in paths.items():
        for other, others in paths.items():
            met = [hop for hop, node in enumerate(above) if node in others]
            for gpu in tree[at].gpus:
                heights |= {(gpu, nic): met[0] if met else len(tree) for nic in tree[other].nics}
    return heights


def _completed(machine: Machine) -> tuple[PciNode, ...]:
    """Return the stated tree, with GPUs that it leaves out at the CPU of their NUMA node."""
    tree = list(machine.tree)
    placed = {gpu for node in tree for gpu in node.gpus}
    cpus = {node.numa: at for at, node in reversed(list(enumerate(tree))) if node.parent < 0}
    for gpu in range(machine.num_gpus):
        if gpu not in placed:
            at = cpus.get(machine.gpus[gpu].numa, min(cpus.values(), default=-1))
            tree.append(PciNode(PciKind.GPU, _name(machine, gpu), at, gpus=(gpu,)))
    return tuple(tree)


def _rebuilt(machine: Machine) -> tuple[PciNode, ...]:
    """Return the tree that the printed levels and the NUMA affinity speak for."""
    known = list(_known(machine))
    cpus = _by_cpu(machine, known)
    numas = [_only(_numas(machine, members)) for members in cpus]
    is_named = None not in numas and len(set(numas)) == len(numas)
    vendor = "power" if set(numas) == _POWER9_NUMAS else ""
    order = sorted(range(len(cpus)), key=lambda cpu: (numas[cpu] or 0, cpus[cpu][0]))
    tree: list[PciNode] = []
    switches = count()
    for place, cpu in enumerate(order if is_named else range(len(cpus))):
        members = frozenset(cpus[cpu])
        inside = [item for item in known if item[1] in members and item[2] in members]
        at = len(tree)
        name = f"cpu {numas[cpu] if is_named else place}"
        tree.append(PciNode(PciKind.CPU, name, numa=numas[cpu], vendor=vendor))
        for meeting in _clusters(cpus[cpu], inside, _PXB):
            _hang(machine, tree, switches, (at, _clusters(meeting, inside, _PIX)))
    return tuple(tree)


def _hang(
    machine: Machine,
    tree: list[PciNode],
    switches: Iterator[int],
    meeting: tuple[int, list[tuple[int, ...]]],
) -> None:
    """Add devices that meet below the CPU `at`: a switch, or one over several, or just a device."""
    at, leaves = meeting
    if len(leaves) > 1:
        tree.append(PciNode(PciKind.BRIDGE, f"switch {next(switches)}", at))
        at = len(tree) - 1
    for leaf in leaves:
        below = at
        # beside others, a device alone has a bridge of its own too: it is PXB to them, not PIX
        if len(leaf) > 1 or len(leaves) > 1:
            tree.append(PciNode(PciKind.BRIDGE, f"switch {next(switches)}", at))
            below = len(tree) - 1
        tree += (_device(machine, device, below) for device in leaf)


def _device(machine: Machine, device: int, parent: int) -> PciNode:
    if device < machine.num_gpus:
        return PciNode(PciKind.GPU, _name(machine, device), parent, gpus=(device,))
    nic = device - machine.num_gpus
    name = machine.nics[nic].bus_id or machine.nics[nic].name
    return PciNode(PciKind.NIC, name.lower(), parent, nics=(nic,))


def _name(machine: Machine, gpu: int) -> str:
    return (machine.gpus[gpu].bus_id or machine.gpus[gpu].name).lower()


def _known(machine: Machine) -> Iterator[_Known]:
    """Yield the stated heights between devices."""
    for path in machine.pcie or ():
        height = _HEIGHTS.get(path.level, _amd_height(path))
        if height is not None:
            yield height, path.low, path.high
    for beside in machine.gpu_nic:
        if beside.level in _HEIGHTS:
            yield _HEIGHTS[beside.level], beside.gpu, machine.num_gpus + beside.nic


def _amd_height(path: PciPath) -> int | None:
    """Return the height that hops, or else the weight, of rocm-smi's PCIE speak for."""
    if path.hops is not None:
        return _PHB if path.hops <= _SAME_CPU_HOPS else _SYS
    if path.weight is not None:
        return _PHB if path.weight <= _SAME_CPU_WEIGHT else _SYS
    return None


def _by_cpu(machine: Machine, known: Sequence[_Known]) -> list[tuple[int, ...]]:
    """Return the devices of every CPU.

    What no level joins or parts goes by NUMA affinity, or together where that is not known.
    """
    devices = range(machine.num_gpus + len(machine.nics))
    clusters = _clusters(devices, known, _NODE)
    home = {device: at for at, cluster in enumerate(clusters) for device in cluster}
    apart = {frozenset((home[a], home[b])) for height, a, b in known if height == _SYS}
    numas = [_numas(machine, cluster) for cluster in clusters]
    cpus: list[list[int]] = []
    for at in range(len(clusters)):
        fitting = [
            cpu
            for cpu in cpus
            if all(
                frozenset((at, other)) not in apart
                and (numas[at] == numas[other] or not (numas[at] and numas[other]))
                for other in cpu
            )
        ]
        # the CPU that is stated before one that is merely possible
        fitting.sort(key=lambda cpu: not any(numas[at] & numas[other] for other in cpu))
        if fitting:
            fitting[0].append(at)
        else:
            cpus.append([at])
    return [tuple(sorted(device for at in cpu for device in clusters[at])) for cpu in cpus]


def _numas(machine: Machine, devices: Iterable[int]) -> frozenset[int]:
    """Return the NUMA nodes that these devices are said to be near."""
    said = (*(gpu.numa for gpu in machine.gpus), *(nic.numa for nic in machine.nics))
    return frozenset(numa for numa in map(said.__getitem__, devices) if numa is not None)


def _only(numas: frozenset[int]) -> int | None:
    return next(iter(numas)) if len(numas) == 1 else None


def _clusters(
    devices: Iterable[int], known: Iterable[_Known], height: int
) -> list[tuple[int, ...]]:
    """Return the groups that levels up to `height` join, each sorted, by their lowest device."""
    above = {device: device for device in devices}

    def top(device: int) -> int:
        while above[device] != device:
            above[device] = above[above[device]]
            device = above[device]
        return device

    for level, one, other in known:
        if level <= height and one in above and other in above:
            low, high = sorted((top(one), top(other)))
            above[high] = low
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for device in sorted(above):
        groups[top(device)].append(device)
    return [tuple(groups[lowest]) for lowest in sorted(groups)]
