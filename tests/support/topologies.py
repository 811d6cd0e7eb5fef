"""Topologies for property tests, and slow but obvious answers to compare with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations

import networkx as nx
import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog

from blinkrun.planner.network import network_of
from blinkrun.topology.cpu import Cpu, Host, cpu_topology
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology, induce


def mesh_of(size, lanes, name="mesh"):
    """A point-to-point machine from {(src, dst): lanes}."""
    return Topology(
        name=name,
        devices=tuple(range(size)),
        links=tuple(Link(*pair, (f"wire {pair}",), LinkKind.NVLINK) for pair in lanes),
        resources=tuple(Resource(f"wire {pair}", count) for pair, count in lanes.items()),
        unit="lane",
    )


@st.composite
def meshes(draw, min_size=2, max_size=6, max_lanes=3, even=False):
    """Random connected machines, each direction of a pair with its own lanes (or equal ones)."""
    size = draw(st.integers(min_size, max_size))
    pairs = {(draw(st.integers(0, rank - 1)), rank) for rank in range(1, size)}
    pairs |= draw(st.sets(st.sampled_from(list(combinations(range(size), 2)))))
    count = st.integers(1, max_lanes)
    lanes = {}
    for low, high in sorted(pairs):
        lanes[low, high] = draw(count)
        lanes[high, low] = lanes[low, high] if even else draw(count)
    return mesh_of(size, lanes)


@st.composite
def switches(draw, min_size=2, max_size=6):
    """Machines with a port per device and direction, any to any; equal ports or not."""
    size = draw(st.integers(min_size, max_size))
    equal = draw(st.none() | st.integers(1, 9))
    ports = {
        f"port {rank} {way}": equal or draw(st.integers(1, 9))
        for rank in range(size)
        for way in ("out", "in")
    }
    return Topology(
        name="switch",
        devices=tuple(range(size)),
        links=tuple(
            Link(src, dst, (f"port {src} out", f"port {dst} in"), LinkKind.NVSWITCH)
            for src, dst in permutations(range(size), 2)
        ),
        resources=tuple(Resource(*port) for port in ports.items()),
        unit="lane",
    )


@st.composite
def pcie_trees(draw, min_size=2, max_size=6):
    """Devices under a random tree of switches; a link takes every hop on its way."""
    size = draw(st.integers(min_size, max_size))
    inner = draw(st.integers(1, 3))
    # nodes 0 … inner - 1 are switches; node inner + r is device r
    above = {node: draw(st.integers(0, node - 1)) for node in range(1, inner)}
    above |= {inner + rank: draw(st.integers(0, inner - 1)) for rank in range(size)}
    links = []
    taken = set()
    for src, dst in permutations(range(size), 2):
        up, down = _climb(above, inner + src), _climb(above, inner + dst)
        shared = set(up) & set(down)
        path = [f"up {node}" for node in up if node not in shared]
        path += [f"down {node}" for node in down if node not in shared]
        links.append(Link(src, dst, tuple(path), LinkKind.PCIE))
        taken |= set(path)
    return Topology(
        name="pcie tree",
        devices=tuple(range(size)),
        links=tuple(links),
        resources=tuple(Resource(name, draw(st.integers(1, 5))) for name in sorted(taken)),
        unit="GB/s",
    )


def _climb(above, node):
    """The nodes from `node` up to below the top; each stands for the wire above it."""
    path = []
    while node in above:
        path.append(node)
        node = above[node]
    return path


def host_of(sockets, cores):
    """A CPU host with so many sockets of so many cores."""
    return Host(
        tuple(
            Cpu(socket * cores + core, core=core, socket=socket, numa=socket)
            for socket in range(sockets)
            for core in range(cores)
        )
    )


@st.composite
def cpu_hosts(draw, min_size=2, max_size=6):
    """Ranks on the cores of one or two sockets."""
    host = host_of(draw(st.integers(1, 2)), draw(st.integers(1, 4)))
    return cpu_topology(host, draw(st.integers(min_size, max_size)))


@st.composite
def doubled(draw, machines):
    """A machine with a second, parallel link beside some of the first ones."""
    base = draw(machines)
    pairs = sorted({(link.src, link.dst) for link in base.links})
    extra = draw(st.sets(st.sampled_from(pairs)))
    return Topology(
        name=f"{base.name}, doubled",
        devices=base.devices,
        links=base.links + tuple(Link(*pair, ("bus",), LinkKind.PCIE) for pair in sorted(extra)),
        resources=(*base.resources, Resource("bus", draw(st.integers(1, 5)))),
        unit=base.unit,
    )


@st.composite
def mixed(draw, max_size=5):
    """A mesh that need not join all devices, and a PCIe tree that does, staged beside wires."""
    tree = draw(pcie_trees(max_size=max_size))
    pairs = list(combinations(range(tree.size), 2))
    wired = draw(st.sets(st.sampled_from(pairs)))
    lanes = {}
    for low, high in sorted(wired):
        lanes[low, high] = draw(st.integers(1, 6))
        lanes[high, low] = draw(st.just(lanes[low, high]) | st.integers(1, 6))
    mesh = mesh_of(tree.size, lanes)
    staged = tuple(
        replace(link, kind=LinkKind.STAGED) if (link.src, link.dst) in lanes else link
        for link in tree.links
    )
    return replace(
        mesh, name="mixed", links=mesh.links + staged, resources=mesh.resources + tree.resources
    )


@st.composite
def relayed(draw, max_size=5, max_relays=2):
    """A machine of which the last devices are relays, and only they may join some ranks."""
    whole = draw(
        meshes(min_size=3, max_size=max_size)
        | pcie_trees(min_size=3, max_size=max_size)
        | doubled(meshes(min_size=3, max_size=max_size))
    )
    relays = draw(st.integers(1, min(max_relays, whole.size - 2)))
    devices = draw(st.permutations(range(whole.size)))
    return induce(whole, devices[:-relays], devices[-relays:])


def machines(max_size=6):
    """Any of the above."""
    plain = st.one_of(
        meshes(max_size=max_size),
        switches(max_size=max_size),
        pcie_trees(max_size=max_size),
        cpu_hosts(max_size=max_size),
    )
    return plain | doubled(meshes(max_size=max_size)) | mixed(max_size=max_size)


def partitions(items):
    """All partitions of a list into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for parts in partitions(rest):
        yield [[first], *parts]
        for at, part in enumerate(parts):
            yield [*parts[:at], [first, *part], *parts[at + 1 :]]


def partition_bound(topology):
    """The allreduce bound of a point-to-point machine, by trying every partition.

    An edge is worth the lesser of its two directions (Tutte 1961, Nash-Williams 1961).
    """
    lanes = _lanes(topology)
    worth = {(a, b): min(lanes[a, b], lanes[b, a]) for a, b in lanes if a < b and (b, a) in lanes}
    return min(
        Fraction(
            sum(
                count
                for (a, b), count in worth.items()
                if not any(a in part and b in part for part in parts)
            ),
            len(parts) - 1,
        )
        for parts in partitions(list(range(topology.size)))
        if len(parts) > 1
    )


def least_cut(topology, root, to_root=False):
    """The broadcast (or reduce) bound of a point-to-point machine, by max flows of networkx."""
    graph = nx.DiGraph()
    for (src, dst), count in _lanes(topology).items():
        graph.add_edge(*((dst, src) if to_root else (src, dst)), capacity=count)
    return min(
        nx.maximum_flow_value(graph, root, rank) for rank in range(topology.size) if rank != root
    )


def _lanes(topology):
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    lanes = Counter()
    for link in topology.links:
        lanes[link.src, link.dst] += min(capacity[name] for name in link.resources)
    return lanes


def all_trees(network, root):
    """Every tree (from `root`, if given) as a tuple of arcs: all ranks, and relays between them."""
    relays = range(network.size, network.num_nodes)
    for count in range(network.num_relays + 1):
        for chosen in combinations(relays, count):
            yield from _trees_over(network, root, {*range(network.size), *chosen})


def _trees_over(network, root, nodes):
    within = [
        at for at, arc in enumerate(network.arcs) if arc.parent in nodes and arc.child in nodes
    ]
    for arcs in combinations(within, len(nodes) - 1):
        ends = Counter(end for a in arcs for end in (network.arcs[a].parent, network.arcs[a].child))
        if any(ends[node] < 2 for node in nodes if node >= network.size):
            continue  # a relay at an end
        if root is None:
            graph = nx.Graph([(network.arcs[a].parent, network.arcs[a].child) for a in arcs])
            if len(graph) == len(nodes) and nx.is_tree(graph):
                yield arcs
            continue
        parents = {network.arcs[a].child: network.arcs[a].parent for a in arcs}
        if len(parents) == len(nodes) - 1 and root not in parents and _leads(parents, root):
            yield arcs


def _leads(parents, root):
    """Whether every rank's parents lead to the root."""
    for rank in parents:
        at = rank
        for _ in range(len(parents) + 1):
            at = parents.get(at, root)
        if at != root:
            return False
    return True


def best_rate(topology, flow, root):
    """The best rate as a float: a linear program over all trees, listed one by one.

    Where all ranks are roots, a last variable is the rate of each of them.
    """
    network = network_of(topology, flow)
    roots = range(network.size) if flow.is_joint else [root]
    trees = [(own, tree) for own in roots for tree in all_trees(network, own)]
    matrix = np.zeros((len(network.capacities), len(trees) + 1))
    for column, (_, tree) in enumerate(trees):
        for arc in tree:
            for at, times in network.arcs[arc].use:
                matrix[at, column] += times
    if not flow.is_joint:
        found = linprog(-np.ones(len(trees)), A_ub=matrix[:, :-1], b_ub=network.capacities)
        return -found.fun
    equal = np.zeros((network.size, len(trees) + 1))
    equal[:, -1] = -1
    for column, (own, _) in enumerate(trees):
        equal[own, column] = 1
    gain = np.zeros(len(trees) + 1)
    gain[-1] = -network.size
    found = linprog(gain, A_ub=matrix, b_ub=network.capacities, A_eq=equal, b_eq=[0] * network.size)
    return -found.fun
