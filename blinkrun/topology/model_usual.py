"""What is usual where a report does not say: PCIe generation and the interconnect of sockets."""

from __future__ import annotations

from blinkrun.topology.fabric import Fabric, FabricKind
from blinkrun.topology.machine import Machine
from blinkrun.topology.model_gpus import kind_of

# PCIe generation and era by fabric; without one, a box of no great age.
_BY_FABRIC = {
    "nvlink1": (3, "pascal"),
    "nvlink2": (3, "volta"),
    "nvlink3": (4, "ampere"),
    "nvlink3_ga102": (4, "ampere"),
    "nvlink4": (5, "hopper"),
    "nvlink5": (5, "blackwell"),
    "xgmi1": (4, "vega"),
    "xgmi2": (4, "mi200"),
    "xgmi3": (5, "mi300"),
    "": (3, "turing"),
}

# Names of bandwidths: what CPUs had when such GPUs were built in.
_INTEL = {
    "pascal": "qpi",
    "volta": "qpi",
    "ada": "upi2",
    "hopper": "upi2",
    "mi300": "upi2",
    "blackwell": "upi3",
}
_AMD = {
    "ada": "epyc3_socket",
    "hopper": "epyc3_socket",
    "mi200": "epyc3_socket",
    "mi300": "epyc3_socket",
    "blackwell": "epyc5_socket",
}
_UNKNOWN = _INTEL | {
    "ampere": "epyc_socket",
    "vega": "epyc_socket",
    "mi200": "epyc3_socket",
    "mi300": "epyc3_socket",
}
_OTHERS = {"power": "power9_socket", "arm": "arm_socket", "zhaoxin": "zhaoxin_socket"}


def usual_pcie(machine: Machine, gpu: int, fabric: Fabric) -> int:
    """Return the PCIe generation of a GPU's own link where nothing states it."""
    kind = kind_of(machine.gpus[gpu])
    return kind.pcie if kind else _usual(machine, fabric)[0]


def usual_era(machine: Machine, fabric: Fabric) -> str:
    """Return when such a machine was built, by its GPUs: ``pascal`` … ``blackwell``.

    V100s behind switches came with newer CPUs than those in a cube mesh.
    """
    kinds = (kind_of(gpu) for gpu in machine.gpus)
    era = next((kind.era for kind in kinds if kind), "")
    if not era:
        era = _usual(machine, fabric)[1]
    return "turing" if era == "volta" and fabric.kind is FabricKind.SWITCH else era


def _usual(machine: Machine, fabric: Fabric) -> tuple[int, str]:
    """Return PCIe generation and era by the fabric, or else by the words that a tool used."""
    words = {path.level for path in machine.pcie or ()}
    if not fabric.generation and "SOC" in words:
        return 3, "pascal"  # nvidia-smi until 2017
    return _BY_FABRIC["xgmi2" if "PCIE" in words else fabric.generation]


def socket_figure(vendor: str, era: str) -> str:
    """Return the name of the bandwidth between two CPUs.

    >>> socket_figure("intel", "volta"), socket_figure("amd", "hopper"), socket_figure("", "ampere")
    ('qpi', 'epyc3_socket', 'epyc_socket')
    """
    if vendor in _OTHERS:
        return _OTHERS[vendor]
    if vendor == "amd":
        return _AMD.get(era, "epyc_socket")
    return (_INTEL if vendor == "intel" else _UNKNOWN).get(era, "upi")
