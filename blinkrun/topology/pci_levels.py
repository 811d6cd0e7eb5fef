"""PCIe levels from the exact tree, by NCCL's rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from blinkrun.topology.machine import NicPath, PciKind, PciNode, PciPath


def gpu_levels(tree: Sequence[PciNode]) -> tuple[PciPath, ...]:
    """Return the level of every pair of GPUs in a PCI tree.

    Parameters
    ----------
    tree : sequence of PciNode
        Parents before children.

    Returns
    -------
    tuple of PciPath
        Under one bridge ``PIX``, under several bridges of one tree ``PXB``, below one CPU ``PHB``,
        else ``SYS``; sorted.

    Examples
    --------
    >>> cpu = PciNode(PciKind.CPU, "cpu 0")
    >>> gpus = [PciNode(PciKind.GPU, f"0000:0{at}:00.0", parent=0, gpus=(at,)) for at in (0, 1)]
    >>> gpu_levels([cpu, *gpus])
    (PciPath(low=0, high=1, level='PHB', hops=None, weight=None),)
    """
    places = _places(tree, [node.gpus for node in tree])
    return tuple(
        PciPath(low, high, _level(tree, places[low], places[high]))
        for low, high in combinations(sorted(places), 2)
    )


def nic_levels(tree: Sequence[PciNode]) -> tuple[NicPath, ...]:
    """Return the level of every GPU and NIC in a PCI tree, sorted."""
    gpus = _places(tree, [node.gpus for node in tree])
    nics = _places(tree, [node.nics for node in tree])
    return tuple(
        NicPath(gpu, nic, _level(tree, gpus[gpu], nics[nic]))
        for gpu in sorted(gpus)
        for nic in sorted(nics)
    )


def _places(
    tree: Sequence[PciNode], devices: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Return, by device, the nodes from the one above it up to the root."""
    above: list[tuple[int, ...]] = []
    for node in tree:
        above.append(() if node.parent < 0 else (node.parent, *above[node.parent]))
    return {device: above[at] for at, here in enumerate(devices) for device in here}


def _level(tree: Sequence[PciNode], one: tuple[int, ...], other: tuple[int, ...]) -> str:
    meeting = next((at for at in one if at in other), None)
    if meeting is None:
        return "SYS"
    if tree[meeting].kind is PciKind.CPU:
        return "PHB"
    return "PIX" if one[0] == other[0] else "PXB"
