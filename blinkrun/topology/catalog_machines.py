"""The catalog: wiring, PCIe trees and CPUs of machines that people train on.

Sources
-------
DGX-1, DGX-2: Blink (Wang et al., MLSys 2020, arXiv 1910.04940), figures 1 and 4; NVIDIA's DGX-1 and
DGX-2 system architecture papers. DGX A100, H100, H200, B200, meshes of four A100 or H100: NVIDIA's
user guides and data sheets of DGX and HGX. GB200 NVL72: NVIDIA's product page (18 trays of two
Grace CPUs and four GPUs). MI250X: OLCF's Frontier user guide (four links inside a package, one or
two between), pairs as in RCCL's rome_model_58; which pairs have two is chosen so that every die has
one such. MI300X: AMD's CDNA 3 white paper (2023). p3, p4d, p5, g5: AWS's instance pages. C4140,
AC922, cards with bridges: ``nvidia-smi topo -m`` as their owners published it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from blinkrun.topology.catalog_build import GEN3, GEN4, GEN5, Nest, Sketch, Socket
from blinkrun.topology.machine import Gpu

# NVLink lanes of a DGX-1V; a DGX-1P has the same pairs with one lane each.
_DGX1_LANES = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
# Between the dies of a package four links, from each to two other packages two and one.
_MI250X_LANES = {
    (0, 1): 4,
    (0, 2): 1,
    (0, 6): 2,
    (1, 3): 2,
    (1, 5): 1,
    (2, 3): 4,
    (2, 4): 2,
    (3, 7): 1,
    (4, 5): 4,
    (4, 6): 1,
    (5, 7): 2,
    (6, 7): 4,
}

_P100 = Gpu("", "Tesla P100-SXM2-16GB", arch="60")
_V100 = Gpu("", "Tesla V100-SXM2-16GB", arch="70")
_V100_SXM3 = Gpu("", "Tesla V100-SXM3-32GB", arch="70")
_A100 = Gpu("", "NVIDIA A100-SXM4-40GB", arch="80")
_A100_PCIE = Gpu("", "NVIDIA A100 80GB PCIe", arch="80")
_H100 = Gpu("", "NVIDIA H100 80GB HBM3", arch="90")
_H100_PCIE = Gpu("", "NVIDIA H100 PCIe", arch="90")
_H200 = Gpu("", "NVIDIA H200", arch="90")
_B200 = Gpu("", "NVIDIA B200", arch="100")
# 900 GB/s both ways between a Grace and its two GPUs
_GB200 = Gpu("", "NVIDIA GB200", arch="100", c2c_mb_per_s=225_000)
# three lanes of NVLink to the CPU, raw 25 GB/s each
_V100_POWER = replace(_V100, c2c_mb_per_s=69_000)
_V100_SUMMIT = replace(_V100, c2c_mb_per_s=46_000)
_MI100 = Gpu("", "AMD Instinct MI100", arch="gfx908")
_MI210 = Gpu("", "AMD Instinct MI210", arch="gfx90a")
_MI250X = Gpu("", "AMD Instinct MI250X", arch="gfx90a", c2c_mb_per_s=36_000)
_MI300X = Gpu("", "AMD Instinct MI300X", arch="gfx942")
_A6000 = Gpu("", "NVIDIA RTX A6000", arch="86")
_A10G = Gpu("", "NVIDIA A10G", arch="86")
_L40S = Gpu("", "NVIDIA L40S", arch="89")
_T4 = Gpu("", "Tesla T4", arch="75")
_K80 = Gpu("", "Tesla K80", arch="37")
_RTX3090 = Gpu("", "NVIDIA GeForce RTX 3090", arch="86")
_RTX4090 = Gpu("", "NVIDIA GeForce RTX 4090", arch="89")
_RTX5090 = Gpu("", "NVIDIA GeForce RTX 5090", arch="120")
_TITAN_RTX = Gpu("", "NVIDIA TITAN RTX", arch="75")


def _two(vendor: str, *below: tuple[Nest, ...]) -> tuple[Socket, ...]:
    """Two sockets, a NUMA node each."""
    return tuple(Socket(nests, numa, vendor) for numa, nests in enumerate(below))


def _pairs(num_gpus: int, lanes: int) -> dict[tuple[int, int], int]:
    """Bridges between neighbours."""
    return {(gpu, gpu + 1): lanes for gpu in range(0, num_gpus, 2)}


def _groups(size: int, groups: int, lanes: int) -> dict[tuple[int, int], int]:
    """Full meshes side by side."""
    return {
        (low + start, high + start): lanes
        for start in range(0, size * groups, size)
        for low, high in combinations(range(size), 2)
    }


def _first_four(lanes: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    return {pair: count for pair, count in lanes.items() if max(pair) < 4}


# Two GPUs and a NIC at a switch, two switches a socket (Broadwell).
_DGX1_TREE = _two("intel", ((0, 1, ~0), (2, 3, ~1)), ((4, 5, ~2), (6, 7, ~3)))

_LEAVES = tuple((2 * leaf, 2 * leaf + 1, ~leaf) for leaf in range(8))
# Two GPUs and a NIC at a switch, two such at an uplink, two uplinks a socket.
_DGX2_TREE = _two("intel", (_LEAVES[0:2], _LEAVES[2:4]), (_LEAVES[4:6], _LEAVES[6:8]))

# Two GPUs and two NICs at a switch, each at a NUMA node of its own, four of those a socket.
_DGX_A100_TREE = tuple(
    Socket(((2 * at, 2 * at + 1, ~(2 * at), ~(2 * at + 1)),), numa, "amd")
    for at, numa in enumerate((3, 1, 7, 5))
)


def _switch_each(vendor: str) -> tuple[Socket, ...]:
    """A GPU and a NIC at a switch, four switches a socket."""
    four = [tuple((gpu, ~gpu) for gpu in range(start, start + 4)) for start in (0, 4)]
    return _two(vendor, *four)


def _flat(vendor: str, num_gpus: int) -> tuple[Socket, ...]:
    """Every GPU at a CPU, half of them at each of two."""
    half = num_gpus // 2
    return _two(vendor, tuple(range(half)), tuple(range(half, num_gpus)))


def _numa_each(vendor: str, *numas: int) -> tuple[Socket, ...]:
    """A GPU per NUMA node."""
    return tuple(Socket((gpu,), numa, vendor) for gpu, numa in enumerate(numas))


def _power9(each: int) -> tuple[Socket, ...]:
    """GPUs and a NIC at each of two CPUs, which IBM numbers 0 and 8."""
    return tuple(
        Socket((*range(at * each, (at + 1) * each), ~at), 8 * at, "power") for at in range(2)
    )


# A package of two dies per NUMA node.
_MI250X_TREE = tuple(
    Socket((2 * at, 2 * at + 1, ~at), numa, "amd") for at, numa in enumerate((3, 1, 0, 2))
)


def _nvl72_tree() -> tuple[Socket, ...]:
    """18 hosts of two CPUs with two GPUs each."""
    return tuple(
        Socket((4 * host + 2 * numa, 4 * host + 2 * numa + 1), numa, "arm", f"tray {host}")
        for host in range(18)
        for numa in range(2)
    )


# 0 lanes: no fabric. The same count for all pairs is a full mesh, or what a switch shows.
MACHINES: dict[str, Sketch] = {
    "dgx-1p": Sketch(_P100, _DGX1_TREE, GEN3, dict.fromkeys(_DGX1_LANES, 1)),
    "dgx-1v": Sketch(_V100, _DGX1_TREE, GEN3, _DGX1_LANES),
    "dgx-2": Sketch(_V100_SXM3, _DGX2_TREE, GEN3, 6),
    "dgx-a100": Sketch(_A100, _DGX_A100_TREE, GEN4, 12),
    "dgx-h100": Sketch(_H100, _switch_each("intel"), GEN5, 18),
    "dgx-h200": Sketch(_H200, _switch_each("intel"), GEN5, 18),
    "dgx-b200": Sketch(_B200, _switch_each("intel"), GEN5, 18),
    "gb200-nvl72": Sketch(_GB200, _nvl72_tree(), GEN5, 18),
    "p3.8xlarge": Sketch(
        _V100, (Socket((0, 1, 2, 3), 0, "intel"),), GEN3, _first_four(_DGX1_LANES)
    ),
    "p4d.24xlarge": Sketch(
        _A100, _two("intel", ((0, 1, ~0), (2, 3, ~1)), ((4, 5, ~2), (6, 7, ~3))), GEN4, 12
    ),
    "p5.48xlarge": Sketch(_H100, _switch_each("amd"), GEN5, 18),
    "g5.48xlarge": Sketch(_A10G, _flat("amd", 8), GEN4, 0),
    "c4140-4": Sketch(_V100, (Socket(((0, 1, 2, 3), ~0), 0, "intel"),), GEN3, 2),
    "a100-4-mesh": Sketch(_A100, _numa_each("amd", 3, 2, 1, 0), GEN4, 4),
    "h100-4-mesh": Sketch(_H100, _flat("intel", 4), GEN5, 6),
    "ac922-4": Sketch(_V100_POWER, _power9(2), GEN3, _pairs(4, 3)),
    "ac922-6": Sketch(_V100_SUMMIT, _power9(3), GEN3, _groups(3, 2, 2)),
    "mi100-8": Sketch(_MI100, _flat("amd", 8), GEN4, _groups(4, 2, 1)),
    "mi210-4": Sketch(_MI210, _flat("amd", 4), GEN4, 1),
    "mi250x-8": Sketch(_MI250X, _MI250X_TREE, GEN4, _MI250X_LANES),
    "mi300x-8": Sketch(_MI300X, _switch_each("amd"), GEN5, 1),
    "a100-pcie-8": Sketch(_A100_PCIE, _flat("amd", 8), GEN4, _pairs(8, 12)),
    "h100-pcie-8": Sketch(_H100_PCIE, _flat("intel", 8), GEN5, _pairs(8, 12)),
    "a6000-8": Sketch(_A6000, _flat("amd", 8), GEN4, _pairs(8, 4)),
    "rtx3090-4": Sketch(_RTX3090, (Socket((0, 1, 2, 3), 0, "amd"),), GEN4, _pairs(4, 4)),
    "rtx4090-8": Sketch(_RTX4090, _flat("amd", 8), GEN4, 0),
    "rtx5090-2": Sketch(_RTX5090, (Socket((0, 1), 0, "amd"),), GEN5, 0),
    "titan-rtx-2": Sketch(_TITAN_RTX, (Socket((0, 1), 0, "intel"),), GEN3, 2),
    "pcie-8": Sketch(_L40S, _two("intel", ((0, 1), (2, 3), ~0), ((4, 5), (6, 7), ~1)), GEN4, 0),
    "pcie-8-two-switches": Sketch(
        _L40S, (Socket(((0, 1, 2, 3), (4, 5, 6, 7)), 0, "intel"),), GEN4, 0
    ),
    "t4-4": Sketch(_T4, _flat("intel", 4), GEN3, 0),
    "k80-4": Sketch(_K80, (Socket(((0, 1), (2, 3)), 0, "intel"),), GEN3, 0),
}
ALIASES: dict[str, str] = {
    "p3.16xlarge": "dgx-1v",
    "p3dn.24xlarge": "dgx-1v",
    "dgx1p": "dgx-1p",
    "dgx1v": "dgx-1v",
    "dgx2": "dgx-2",
    "dgx-gb200": "gb200-nvl72",
    "nvl72": "gb200-nvl72",
    "hgx-a100": "dgx-a100",
    "hgx-h100": "dgx-h100",
    "hgx-h200": "dgx-h200",
    "hgx-b200": "dgx-b200",
    "hgx-a100-4": "a100-4-mesh",
    "hgx-h100-4": "h100-4-mesh",
    "polaris": "a100-4-mesh",
    "summit": "ac922-6",
    "frontier": "mi250x-8",
    "lumi-g": "mi250x-8",
}
