"""The catalog: wiring, PCIe trees and CPUs of machines that people train on.

Sources. DGX-1, DGX-2: Blink (Wang et al., MLSys 2020, arXiv 1910.04940), figures 1 and 4; NVIDIA's
DGX-1 and DGX-2 system architecture papers. DGX A100, H100, B200: NVIDIA's user guides, chapter
"topology".
"""

from __future__ import annotations

from collections.abc import Callable

from blinkrun.topology.catalog_build import GEN3, GEN4, GEN5, Socket, build, uniform
from blinkrun.topology.machine import Gpu, Machine

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
_P100 = Gpu("", model="Tesla P100-SXM2-16GB", arch="60")
_V100 = Gpu("", model="Tesla V100-SXM2-16GB", arch="70")
_A100 = Gpu("", model="NVIDIA A100-SXM4-40GB", arch="80")


def _dgx1(name: str, gpu: Gpu, lanes: dict[tuple[int, int], int]) -> Machine:
    """Two GPUs and a NIC at a switch, two switches a socket (Broadwell)."""
    sockets = (
        Socket(((0, 1, ~0), (2, 3, ~1)), 0, "intel"),
        Socket(((4, 5, ~2), (6, 7, ~3)), 1, "intel"),
    )
    return build(name, gpu, sockets, GEN3, lanes)


def _dgx1p() -> Machine:
    return _dgx1("dgx-1p", _P100, dict.fromkeys(_DGX1_LANES, 1))


def _dgx1v() -> Machine:
    return _dgx1("dgx-1v", _V100, _DGX1_LANES)


def _dgx2() -> Machine:
    """Switches over switches: two GPUs and a NIC at a leaf, two leaves an uplink, two a socket."""
    leaves = [(2 * leaf, 2 * leaf + 1, ~leaf) for leaf in range(8)]
    sockets = tuple(
        Socket(((leaves[at], leaves[at + 1]), (leaves[at + 2], leaves[at + 3])), numa, "intel")
        for numa, at in enumerate((0, 4))
    )
    gpu = Gpu("", model="Tesla V100-SXM3-32GB", arch="70")
    return build("dgx-2", gpu, sockets, GEN3, uniform(16, 6))


def _dgx_a100() -> Machine:
    """Two GPUs and two NICs at a switch, a switch per NUMA node of two Rome CPUs (four each)."""
    sockets = tuple(
        Socket(((2 * at, 2 * at + 1, ~(2 * at), ~(2 * at + 1)),), numa, "amd")
        for at, numa in enumerate((3, 1, 7, 5))
    )
    return build("dgx-a100", _A100, sockets, GEN4, uniform(8, 12))


def _one_switch_a_gpu(name: str, gpu: Gpu, vendor: str) -> Machine:
    """A GPU and a NIC at a switch, four switches a socket."""
    sockets = tuple(
        Socket(tuple((at, ~at) for at in range(4 * numa, 4 * numa + 4)), numa, vendor)
        for numa in range(2)
    )
    return build(name, gpu, sockets, GEN5, uniform(8, 18))


def _dgx_h100() -> Machine:
    return _one_switch_a_gpu("dgx-h100", Gpu("", "NVIDIA H100 80GB HBM3", arch="90"), "intel")


MACHINES: dict[str, Callable[[], Machine]] = {
    "dgx-1p": _dgx1p,
    "dgx-1v": _dgx1v,
    "dgx-2": _dgx2,
    "dgx-a100": _dgx_a100,
    "dgx-h100": _dgx_h100,
}
ALIASES = {"p3.16xlarge": "dgx-1v", "hgx-h100": "dgx-h100", "hgx-a100": "dgx-a100"}
