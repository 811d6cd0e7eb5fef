"""How machines of the catalog are written down: a nest of switches, and lanes between GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, count

from blinkrun.topology.machine import (
    Gpu,
    Machine,
    Nic,
    NicPath,
    PciKind,
    PciNode,
    PciPath,
    Wire,
    Xgmi,
)

# A GPU by its number, NIC n as ~n, or a switch over several such.
Nest = int | tuple["Nest", ...]
Lanes = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Socket:
    """A NUMA node of the CPUs and what hangs on it."""

    below: tuple[Nest, ...]
    numa: int
    vendor: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class Bus:
    """Speed and width of every PCIe link of a machine."""

    gt_per_s: float
    width: int = 16


GEN3 = Bus(8.0)
GEN4 = Bus(16.0)
GEN5 = Bus(32.0)


@dataclass(frozen=True, slots=True)
class Sketch:
    """A machine whose GPUs are all like `gpu`.

    `lanes` are NVLink's, or xGMI's of AMD GPUs, by pairs of GPUs; a number is that for all pairs.
    """

    gpu: Gpu
    sockets: tuple[Socket, ...]
    bus: Bus
    lanes: Lanes | int


def build(name: str, sketch: Sketch) -> Machine:
    """Return what a report of such a machine would state."""
    tree = tuple(_nodes(sketch.sockets, sketch.bus))
    above = {at: _above(tree, at) for at in range(len(tree))}
    gpus = sorted((node.gpus[0], at) for at, node in enumerate(tree) if node.gpus)
    nics = sorted((node.nics[0], at) for at, node in enumerate(tree) if node.nics)
    home = [tree[above[at][-1]] for at in range(len(tree))]
    lanes = _lanes(sketch.lanes, len(gpus))
    is_amd = sketch.gpu.arch.startswith("gfx")
    return Machine(
        name=name,
        source="the catalog",
        gpus=tuple(replace(sketch.gpu, name=f"GPU{gpu}", numa=home[at].numa) for gpu, at in gpus),
        nics=tuple(Nic(f"NIC{nic}", numa=home[at].numa) for nic, at in nics),
        nvlink=() if is_amd else tuple(Wire(*pair, number) for pair, number in lanes.items()),
        xgmi=tuple(Xgmi(*pair, number) for pair, number in lanes.items()) if is_amd else (),
        pcie=tuple(
            PciPath(low, high, _level(above[one], above[other]))
            for (low, one), (high, other) in combinations(gpus, 2)
            if home[one].host == home[other].host
        ),
        gpu_nic=tuple(
            NicPath(gpu, nic, _level(above[one], above[other]))
            for gpu, one in gpus
            for nic, other in nics
        ),
        tree=tree,
    )


def _lanes(lanes: Lanes | int, num_gpus: int) -> Lanes:
    if isinstance(lanes, int):
        return dict.fromkeys(combinations(range(num_gpus), 2), lanes) if lanes else {}
    return lanes


def _nodes(sockets: tuple[Socket, ...], bus: Bus) -> Iterator[PciNode]:
    """Yield the tree's nodes, parents first."""
    numbers, switches = count(), count()

    def below(nest: Nest, parent: int) -> Iterator[PciNode]:
        link = (parent, bus.gt_per_s, bus.width)
        at = next(numbers)
        if isinstance(nest, tuple):
            yield PciNode(PciKind.BRIDGE, f"switch {next(switches)}", *link)
            for inner in nest:
                yield from below(inner, at)
        elif nest >= 0:
            yield PciNode(PciKind.GPU, f"gpu {nest}", *link, gpus=(nest,))
        else:
            yield PciNode(PciKind.NIC, f"nic {~nest}", *link, nics=(~nest,))

    for socket in sockets:
        at = next(numbers)
        name = f"cpu {socket.numa}"
        yield PciNode(PciKind.CPU, name, numa=socket.numa, vendor=socket.vendor, host=socket.host)
        for nest in socket.below:
            yield from below(nest, at)


def _above(tree: tuple[PciNode, ...], at: int) -> tuple[int, ...]:
    """Return what is above a node up to its CPU; of a CPU itself."""
    path = [at if tree[at].parent < 0 else tree[at].parent]
    while tree[path[-1]].parent >= 0:
        path.append(tree[path[-1]].parent)
    return tuple(path)


def _level(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return the level between two devices, given what is above each, up to its CPU."""
    if one[-1] != other[-1]:
        return "SYS"
    met = next(node for node in one if node in other)
    if met == one[-1]:
        return "NODE"
    return "PIX" if met == one[0] == other[0] else "PXB"
