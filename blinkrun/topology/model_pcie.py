"""PCIe as links over shared resources: GPUs' own links, switches' uplinks, sockets, host memory.

A chain of bridges above one GPU is one resource, as wide as its narrowest link; so is a chain of
bridges with the same GPUs below. A host bridge forwards what its uplinks carry and needs none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, permutations

from blinkrun.topology.bandwidth import Bandwidths
from blinkrun.topology.fabric import Fabric
from blinkrun.topology.graph import Link, LinkKind, Resource
from blinkrun.topology.machine import Machine, PciNode
from blinkrun.topology.model_gpus import kind_of
from blinkrun.topology.model_usual import socket_figure, usual_era, usual_pcie
from blinkrun.topology.pcie_tree import path_up, pcie_tree

# GT/s of a lane by PCIe generation.
_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# Idle GPUs and virtual bridges report this speed; no GPU that is at work has it.
_IDLE_GT_PER_S = 2.5
# An idle link keeps its width; a virtual bridge reports one lane.
_LEAST_IDLE_WIDTH = 4
_FULL_WIDTH = 16

_Part = tuple[Link, tuple[Resource, ...]]


@dataclass(frozen=True, slots=True)
class _Cpu:
    """A CPU of the tree; `place` is the same for CPUs of one NUMA node of one host."""

    name: str
    place: str
    host: str
    vendor: str


@dataclass(frozen=True, slots=True)
class _Stem:
    """A GPU's way to its CPU: what it takes `up` and `down`, and which GPUs are below each."""

    cpu: _Cpu
    up: tuple[Resource, ...]
    down: tuple[Resource, ...]
    below: tuple[frozenset[int], ...]
    c2c_mb_per_s: int | None


def pcie_links(
    machine: Machine, fabric: Fabric, bandwidths: Bandwidths, *, beside_fabric: bool
) -> Iterator[_Part]:
    """Yield a PCIe link for every ordered pair of GPUs of a host, with the resources it takes.

    Parameters
    ----------
    machine : Machine
    fabric : Fabric
        Of that machine.
    bandwidths : Bandwidths
    beside_fabric : bool
        Whether the fabric's links are used as well: peer access then goes over them, and PCIe
        joins the same GPUs only by way of host memory.
    """
    stems = _stems(machine, fabric, bandwidths)
    joined = fabric.pairs if beside_fabric else frozenset()
    stated = {(low, high): word for low, high, word in machine.p2p}
    has_peer = [kind is None or kind.has_peer for kind in map(kind_of, machine.gpus)]
    between = partial(_between, era=usual_era(machine, fabric), bandwidths=bandwidths)
    for src, dst in permutations(range(machine.num_gpus), 2):
        start, end = stems[src], stems[dst]
        if start.cpu.host != end.cpu.host:
            continue
        pair = (min(src, dst), max(src, dst))
        is_peer = _is_peer(stated.get(pair, ""), has_peer[src] and has_peer[dst])
        crossing = () if start.cpu == end.cpu else (between(start.cpu, end.cpu),)
        if is_peer and pair not in joined:
            path = _peer_path(start, end, (src, dst), crossing)
            kind = LinkKind.PCIE
        else:
            path = _staged_path(start, end, (src, dst), crossing, bandwidths["host_memory"])
            kind = LinkKind.STAGED
        yield Link(src, dst, tuple(resource.name for resource in path), kind), path


def _is_peer(word: str, usual: bool) -> bool:
    """Whether a GPU reads the other's memory over PCIe: as ``topo -p2p`` says, else as usual."""
    return usual if word in ("", "U") else word == "OK"


def _peer_path(
    start: _Stem, end: _Stem, pair: tuple[int, int], crossing: tuple[Resource, ...]
) -> tuple[Resource, ...]:
    """Return what a transfer takes that turns round where the two GPUs' ways meet."""
    src, dst = pair
    up = (way for way, below in zip(start.up, start.below, strict=True) if dst not in below)
    down = [way for way, below in zip(end.down, end.below, strict=True) if src not in below]
    return (*up, *crossing, *reversed(down))


def _staged_path(
    start: _Stem,
    end: _Stem,
    pair: tuple[int, int],
    crossing: tuple[Resource, ...],
    memory_mb_per_s: int,
) -> tuple[Resource, ...]:
    """Return what a transfer takes that is written to memory beside its source and read there."""
    src, dst = pair
    up, down = start.up, end.down
    if start.c2c_mb_per_s:
        up = (Resource(f"c2c gpu {src} out", start.c2c_mb_per_s),)
    if end.c2c_mb_per_s:
        down = (Resource(f"c2c gpu {dst} in", end.c2c_mb_per_s),)
    memory = Resource(f"host memory {start.cpu.place}", memory_mb_per_s)
    return (*up, memory, *crossing, *reversed(down))


def _between(start: _Cpu, end: _Cpu, *, era: str, bandwidths: Bandwidths) -> Resource:
    """Return the interconnect of two CPUs in that direction, shared by all of their NUMA nodes."""
    vendor = start.vendor or end.vendor
    figure = socket_figure(vendor, era)
    what = figure.rstrip("23") if vendor == "intel" else "socket"
    ends = (start.place, end.place)
    if start.place == end.place:
        ends = (start.name, end.name)
    return Resource(f"{what} {ends[0]}->{ends[1]}", bandwidths[figure])


def _stems(machine: Machine, fabric: Fabric, bandwidths: Bandwidths) -> tuple[_Stem, ...]:
    """Return every GPU's way to its CPU."""
    tree = pcie_tree(machine)
    at = {gpu: index for index, node in enumerate(tree) for gpu in node.gpus}
    paths = [path_up(tree, at[gpu]) for gpu in range(machine.num_gpus)]
    below = _below(tree, paths)
    newest = _generations(machine, fabric, tree)
    cpus = _cpus(tree)
    names = _switches(tree, below)
    stems = []
    for gpu, path in enumerate(paths):
        alone = frozenset({gpu})
        rates = {alone: bandwidths[f"pcie{newest[gpu]}_x16"]}
        for index in path[:-1]:
            gpus = below[index]
            rate = _rate(tree[index], max(newest[other] for other in gpus), bandwidths)
            rates[gpus] = min(rate, rates.get(gpus, rate))
        ends = [
            (f"gpu {gpu}", "out", "in"),
            *((names[gpus], "up", "down") for gpus in rates if gpus != alone),
        ]
        widths = list(zip(ends, rates.values(), strict=True))
        stems.append(
            _Stem(
                cpu=cpus[path[-1]],
                up=tuple(Resource(f"pcie {what} {way}", rate) for (what, way, _), rate in widths),
                down=tuple(Resource(f"pcie {what} {way}", rate) for (what, _, way), rate in widths),
                below=tuple(rates),
                c2c_mb_per_s=machine.gpus[gpu].c2c_mb_per_s,
            )
        )
    return tuple(stems)


def _below(tree: Sequence[PciNode], paths: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Return the GPUs below every node of the tree."""
    below: list[set[int]] = [set() for _ in tree]
    for gpu, path in enumerate(paths):
        for index in path:
            below[index].add(gpu)
    return [frozenset(gpus) for gpus in below]


def _switches(
    tree: Sequence[PciNode], below: Sequence[frozenset[int]]
) -> dict[frozenset[int], str]:
    """Return names for what several GPUs have above them, below the CPU, in order of the tree."""
    shared = (
        gpus for node, gpus in zip(tree, below, strict=True) if node.parent >= 0 and len(gpus) > 1
    )
    return {gpus: f"switch {number}" for number, gpus in enumerate(dict.fromkeys(shared))}


def _generations(machine: Machine, fabric: Fabric, tree: Sequence[PciNode]) -> list[int]:
    """Return the PCIe generation of every GPU's own link: as stated if it can be so, else usual."""
    generations = [usual_pcie(machine, gpu, fabric) for gpu in range(machine.num_gpus)]
    for node in tree:
        stated = _stated_generation(node)
        for gpu in node.gpus if stated else ():
            is_known = kind_of(machine.gpus[gpu]) is not None
            generations[gpu] = min(stated, generations[gpu]) if is_known else stated
    return generations


def _stated_generation(node: PciNode) -> int:
    """Return the generation of a node's link to the one above; 0 where it is idle or not stated."""
    speed = node.gt_per_s or 0.0
    if speed <= _IDLE_GT_PER_S:
        return 0
    return min(_GT_PER_S, key=lambda generation: abs(_GT_PER_S[generation] - speed))


def _rate(node: PciNode, newest: int, bandwidths: Bandwidths) -> int:
    """Return what a node's link to the one above achieves, in MB/s.

    Where its speed is not stated it is of generation `newest`; where its width is not, or is that
    of a virtual bridge, it has 16 lanes.
    """
    stated = _stated_generation(node)
    generation = min(stated, newest) if node.gpus and stated else stated or newest
    width = node.width or 0
    if width < (1 if stated else _LEAST_IDLE_WIDTH):
        width = _FULL_WIDTH
    return max(bandwidths[f"pcie{generation}_x16"] * min(width, _FULL_WIDTH) // _FULL_WIDTH, 1)


def _cpus(tree: Sequence[PciNode]) -> dict[int, _Cpu]:
    """Return the CPUs by their index in the tree, named by NUMA node where all state theirs."""
    roots = {index: node for index, node in enumerate(tree) if node.parent < 0}
    hosts = list(dict.fromkeys(node.host for node in roots.values()))
    is_named = all(node.numa is not None and node.numa >= 0 for node in roots.values())
    places = {}
    for number, (index, node) in enumerate(roots.items()):
        place = str(node.numa if is_named else number)
        places[index] = f"h{hosts.index(node.host)}.{place}" if len(hosts) > 1 else place
    times = Counter(places.values())
    numbers = {place: count() for place in times}
    return {
        index: _Cpu(
            name=place if times[place] == 1 else f"{place}.{next(numbers[place])}",
            place=place,
            host=roots[index].host,
            vendor=roots[index].vendor,
        )
        for index, place in places.items()
    }
