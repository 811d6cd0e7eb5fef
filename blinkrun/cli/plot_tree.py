"""The PCIe tree as it is drawn: only what joins GPUs and NICs, and the way between two GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blinkrun.topology.machine import Machine, PciKind, PciNode


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without what leads nowhere, and without bridges that have one thing below them.

    Attributes
    ----------
    nodes : tuple of PciNode
        All of them; the others name them by index.
    roots : tuple of int
        CPUs with a GPU below.
    below : mapping of int to tuple of int
        What hangs on a CPU or bridge.
    above : mapping of int to int
        The reverse of it.
    names : mapping of int to str
        What to write on a node that is no GPU.
    """

    nodes: tuple[PciNode, ...]
    roots: tuple[int, ...]
    below: Mapping[int, tuple[int, ...]]
    above: Mapping[int, int]
    names: Mapping[int, str]

    def height(self, at: int) -> int:
        """Return how many levels of links are below a node."""
        return max((1 + self.height(child) for child in self.below.get(at, ())), default=0)

    def num_leaves(self, at: int) -> int:
        """Return how many GPUs and NICs are below a node, itself if it is one."""
        return sum(map(self.num_leaves, self.below.get(at, ()))) or 1

    def hosts(self) -> list[tuple[int, ...]]:
        """Return the CPUs of each host."""
        found: dict[str, list[int]] = {}
        for root in self.roots:
            found.setdefault(self.nodes[root].host, []).append(root)
        return [tuple(roots) for roots in found.values()]

    def label(self, at: int) -> str:
        """Return what to write on a node."""
        return self.names.get(at, self.nodes[at].name)

    def path(self, src: int, dst: int, *, by_host: bool) -> tuple[list[int], tuple[int, ...]]:
        """Return the way from one GPU to another.

        Returns
        -------
        links : list of int
            The nodes whose link to the node above is taken.
        roots : tuple of int
            The CPUs between, where the way leads from one to another; else empty.
        """
        leaf = {gpu: at for at in self.above for gpu in self.nodes[at].gpus}
        up, down = self._line(leaf[src]), self._line(leaf[dst])
        if up[-1] != down[-1]:
            first, last = sorted(self.roots.index(line[-1]) for line in (up, down))
            return up[:-1] + down[:-1], self.roots[first : last + 1]
        if by_host:
            return up[:-1] + down[:-1], ()
        return [at for at in (*up, *down) if (at in up) is not (at in down)], ()

    def _line(self, at: int) -> list[int]:
        """Return a node and all above it."""
        line = [at]
        while line[-1] in self.above:
            line.append(self.above[line[-1]])
        return line


def shape_of(
    machine: Machine, nodes: Sequence[PciNode], *, with_nics: bool = True
) -> TreeShape | None:
    """Return what of the PCI tree `nodes` is drawn; None if no GPU hangs on it.

    Without NICs only what leads to GPUs is left.
    """
    kept = _kept(nodes, with_nics)
    roots = tuple(at for at in kept[-1] if any(nodes[node].gpus for node in _below(kept, at)))
    if not roots:
        return None
    drawn = [at for root in roots for at in _below(kept, root)]
    below = {at: tuple(kept[at]) for at in drawn if kept.get(at)}
    return TreeShape(
        nodes=tuple(nodes),
        roots=roots,
        below=below,
        above={child: at for at, children in below.items() for child in children},
        names={at: _name(machine, nodes[at]) for at in drawn},
    )


def _kept(nodes: Sequence[PciNode], with_nics: bool) -> dict[int, list[int]]:
    """Return what hangs on every node that is drawn; -1 has the CPUs."""
    children: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(at)
    below: dict[int, list[int]] = {}
    stands_for: dict[int, list[int]] = {}  # in the picture: a node itself, or what it has
    for at in reversed(range(len(nodes))):  # children come after their parents
        node = nodes[at]
        found = [part for child in children.get(at, ()) for part in stands_for[child]]
        is_leaf = node.kind is not PciKind.CPU and bool(node.gpus or (with_nics and node.nics))
        is_link = len(found) == 1 and not is_leaf and node.parent >= 0
        stands_for[at] = found if is_link else [at] if found or is_leaf else []
        below[at] = [] if is_link else found
    below[-1] = [part for root in children.get(-1, ()) for part in stands_for[root]]
    return below


def _below(kept: Mapping[int, list[int]], root: int) -> list[int]:
    """Return a node and all below it, from left to right."""
    found = []
    waiting = [root]
    while waiting:
        at = waiting.pop()
        found.append(at)
        waiting += reversed(kept.get(at, []))
    return found


def _name(machine: Machine, node: PciNode) -> str:
    if node.nics:
        return machine.nics[node.nics[0]].name
    if node.kind is not PciKind.CPU:
        return node.name.removeprefix("0000:")
    numa = "" if node.numa is None else f", NUMA node {node.numa}"
    return f"{node.host} {node.name}".strip() + (numa if f"{node.numa}" not in node.name else "")
