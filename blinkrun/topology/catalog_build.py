"""How machines of the catalog are written down: a nest of switches, and lanes between GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, count

from blinkrun.topology.machine import Gpu, Machine, Nic, NicPath, PciKind, PciNode, PciPath, Wire

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


def build(name: str, gpu: Gpu, sockets: tuple[Socket, ...], bus: Bus, lanes: Lanes) -> Machine:
    """Return a machine whose GPUs are all like `gpu`, numbered as in `sockets` and `lanes`."""
    tree = tuple(_nodes(sockets, bus))
    num_gpus = sum(len(node.gpus) for node in tree)
    num_nics = sum(len(node.nics) for node in tree)
    home = _homes(tree)
    paths = {at: _above(tree, at) for at, node in enumerate(tree) if node.gpus or node.nics}
    of_gpu = {tree[at].gpus[0]: at for at in paths if tree[at].gpus}
    of_nic = {tree[at].nics[0]: at for at in paths if tree[at].nics}
    return Machine(
        name=name,
        source="catalog",
        gpus=tuple(replace(gpu, name=f"GPU{at}", numa=home[of_gpu[at]]) for at in range(num_gpus)),
        nics=tuple(Nic(f"NIC{at}", numa=home[of_nic[at]]) for at in range(num_nics)),
        nvlink=tuple(Wire(*pair, number) for pair, number in lanes.items()),
        pcie=tuple(
            PciPath(low, high, _level(paths[of_gpu[low]], paths[of_gpu[high]]))
            for low, high in combinations(range(num_gpus), 2)
            if tree[paths[of_gpu[low]][-1]].host == tree[paths[of_gpu[high]][-1]].host
        ),
        gpu_nic=tuple(
            NicPath(low, nic, _level(paths[of_gpu[low]], paths[of_nic[nic]]))
            for low in range(num_gpus)
            for nic in range(num_nics)
        ),
        tree=tree,
    )


def uniform(num_gpus: int, lanes: int) -> dict[tuple[int, int], int]:
    """Return the same count for all pairs: a full mesh, or what a switch shows."""
    return dict.fromkeys(combinations(range(num_gpus), 2), lanes)


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
    path = [tree[at].parent]
    while tree[path[-1]].parent >= 0:
        path.append(tree[path[-1]].parent)
    return tuple(path)


def _homes(tree: tuple[PciNode, ...]) -> dict[int, int | None]:
    return {at: tree[_above(tree, at)[-1]].numa for at, node in enumerate(tree) if node.parent >= 0}


def _level(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return the level between two devices, given what is above each, up to its CPU."""
    if one[-1] != other[-1]:
        return "SYS"
    met = next(node for node in one if node in other)
    if met == one[-1]:
        return "NODE"
    return "PIX" if met == one[0] == other[0] else "PXB"
