"""What is known of GPU models: fabric lanes, generations, peer access over PCIe.

Recognised by the model's name, else by architecture. Lanes and generations are from NVIDIA's
architecture papers (P100, V100, Turing, A100, GA102, H100, Blackwell) and AMD's CDNA 1 to 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from blinkrun.topology.machine import Gpu


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What a model of GPU has.

    Attributes
    ----------
    lanes : int
        NVLink or xGMI links of a GPU; 0 if it has none.
    fabric : str
        Their generation: ``nvlink1`` … ``nvlink5``, ``nvlink3_ga102``, ``xgmi1`` … ``xgmi3``.
    pcie : int
        PCIe generation of its own link.
    era : str
        Of the servers that it is built into, the key of their usual socket interconnect.
    has_peer : bool
        Whether it lets others read and write its memory over PCIe.
    """

    lanes: int
    fabric: str
    pcie: int
    era: str
    has_peer: bool = True


_P100 = GpuKind(4, "nvlink1", 3, "pascal")
_V100 = GpuKind(6, "nvlink2", 3, "volta")
_TURING = GpuKind(2, "nvlink2", 3, "turing")
_A100 = GpuKind(12, "nvlink3", 4, "ampere")
_GA102 = GpuKind(4, "nvlink3_ga102", 4, "ampere")
_ADA = GpuKind(0, "", 4, "ada")
_H100 = GpuKind(18, "nvlink4", 5, "hopper")
_B200 = GpuKind(18, "nvlink5", 5, "blackwell")

# First match wins: H20 must not be found in H200, nor A30 in A3000. Of GeForce since Turing, peer
# access goes over NVLink or not at all: `simpleP2P` refuses it on PCIe, NCCL goes through memory.
_MODELS: tuple[tuple[str, GpuKind], ...] = (
    (r"\bG?B[123]00\b|\bGB[123]00", _B200),
    (r"H800\b", GpuKind(8, "nvlink4", 5, "hopper")),
    (r"\bG?H[12]00\b|\bH20\b|\bGH[12]00", _H100),
    (r"A800\b", GpuKind(8, "nvlink3", 4, "ampere")),
    (r"\bA100\b", _A100),
    (r"\bA30\b", GpuKind(4, "nvlink3", 4, "ampere")),
    (r"RTX 3090", GpuKind(4, "nvlink3_ga102", 4, "ampere", has_peer=False)),
    (r"\bA(40|4500|5000|5500|6000)\b", _GA102),
    (r"\bA(2|10G?|16|2000|4000)\b", GpuKind(0, "", 4, "ampere")),
    (r"\bADA\b|\bL(4|40S?|20)\b", _ADA),
    (r"RTX PRO", GpuKind(0, "", 5, "blackwell")),
    (r"(GEFORCE|RTX) 50[5-9]\d", GpuKind(0, "", 5, "blackwell", has_peer=False)),
    (r"(GEFORCE|RTX) 40[5-9]\d", GpuKind(0, "", 4, "ada", has_peer=False)),
    (r"GEFORCE RTX 30\d\d", GpuKind(0, "", 4, "ampere", has_peer=False)),
    (r"RTX 20[78]0 (SUPER|TI)|RTX 2080\b", GpuKind(2, "nvlink2", 3, "turing", has_peer=False)),
    (r"GEFORCE RTX 20\d\d", GpuKind(0, "", 3, "turing", has_peer=False)),
    (r"QUADRO RTX [34]000", GpuKind(0, "", 3, "turing")),
    (r"TITAN RTX|RTX [56]000\b|RTX 8000\b", _TURING),
    (r"\bT4\b", GpuKind(0, "", 3, "turing")),
    (r"GV100\b", GpuKind(4, "nvlink2", 3, "volta")),
    (r"V100|PG50\d", _V100),
    (r"\bG?P100\b", _P100),
    (r"\b(K80|K40|M60|M40|P40|P4)\b|TITAN X|GTX", GpuKind(0, "", 3, "pascal")),
    (r"MI3[0-9][0-9][AX]?\b|AQUA VANJARAM", GpuKind(7, "xgmi3", 5, "mi300")),
    (r"MI210\b", GpuKind(3, "xgmi2", 4, "mi200")),
    (r"MI250X?\b", GpuKind(8, "xgmi2", 4, "mi200")),
    (r"MI100\b|ARCTURUS", GpuKind(3, "xgmi1", 4, "vega")),
    (r"MI[56]0\b|VEGA ?20", GpuKind(2, "xgmi1", 4, "vega")),
)
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _MODELS)

_ARCHITECTURES: dict[str, GpuKind] = {
    "35": GpuKind(0, "", 3, "pascal"),
    "37": GpuKind(0, "", 3, "pascal"),
    "52": GpuKind(0, "", 3, "pascal"),
    "60": _P100,
    "61": GpuKind(0, "", 3, "pascal"),
    "70": _V100,
    "75": _TURING,
    "80": _A100,
    "86": _GA102,
    "89": _ADA,
    "90": _H100,
    "100": _B200,
    "103": _B200,
    "120": GpuKind(0, "", 5, "blackwell"),
    "gfx906": GpuKind(2, "xgmi1", 4, "vega"),
    # a prototype box of eight has six links a GPU; the product has three
    "gfx908": GpuKind(6, "xgmi1", 4, "vega"),
    "gfx90a": GpuKind(8, "xgmi2", 4, "mi200"),
    "gfx940": GpuKind(7, "xgmi3", 5, "mi300"),
    "gfx941": GpuKind(7, "xgmi3", 5, "mi300"),
    "gfx942": GpuKind(7, "xgmi3", 5, "mi300"),
    "gfx950": GpuKind(7, "xgmi3", 5, "mi300"),
}

# Raw GB/s of a lane, per direction, as ``nvidia-smi nvlink -s`` prints it.
RAW_LANE_GB_PER_S: dict[str, float] = {
    "nvlink1": 20.0,
    "nvlink2": 25.781,
    "nvlink3": 25.0,
    "nvlink3_ga102": 14.062,
    "nvlink4": 26.562,
    "nvlink5": 53.125,
}


def kind_of(gpu: Gpu) -> GpuKind | None:
    """Return what is known of a GPU's model, None if neither name nor architecture tells.

    >>> kind_of(Gpu("GPU0", model="NVIDIA A100-SXM4-80GB")).lanes
    12
    >>> kind_of(Gpu("GPU0", arch="90")).fabric
    'nvlink4'
    """
    name = re.sub(r"[-_]+", " ", gpu.model.upper())
    for pattern, kind in _PATTERNS:
        if pattern.search(name):
            return kind
    return _ARCHITECTURES.get(gpu.arch.lower().removeprefix("sm_").replace(".", ""))


def generation_of_lane(gb_per_s: float) -> str:
    """Return the NVLink generation whose raw lane speed is nearest.

    >>> generation_of_lane(25.0), generation_of_lane(14.062), generation_of_lane(50)
    ('nvlink3', 'nvlink3_ga102', 'nvlink5')
    """
    return min(RAW_LANE_GB_PER_S, key=lambda name: abs(RAW_LANE_GB_PER_S[name] - gb_per_s))
