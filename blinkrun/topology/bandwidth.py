"""What links achieve per direction, in whole MB/s (10^6 bytes), and their latencies, with sources.

They only need to be right relative to one another: a plan depends on ratios. What a collective
achieves is measured, never computed from here. A machine that was measured has a file of its own
figures (``--bandwidths FILE``), which `read_bandwidths` reads and `write_bandwidths` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction

from blinkrun.errors import ReportError, UsageError

_BLINK = "Blink (Wang et al., MLSys 2020), section 2 and figures 14 to 16"
_NCCL = "NCCL, src/graph/topo.h (2026)"
_RCCL = "RCCL, src/graph/topo.h (2025)"
_HW_LATENCY = "NCCL, src/graph/tuning.cc (2020), hwLat of trees, protocol LL"

# Achieved per lane, 18 to 20 GB/s for NVLink 1 (P100), 22 to 25 GB/s for NVLink 2 (V100).
NVLINK1_LANE_MB_PER_S = 19_000
NVLINK2_LANE_MB_PER_S = 23_000

# Gen3 x16 achieves 8 to 12 GB/s of its 15.75 (same paper).
PCIE3_X16_MB_PER_S = 10_000

# Between the sockets of a DGX-1, device to device: QPI of the Broadwell Xeon, about 6 GB/s.
QPI_MB_PER_S = 6_000

# One core that reads and writes memory beyond its caches: 10 to 15 GB/s on current servers.
CORE_MB_PER_S = 12_000

# Between two CPU sockets, memory traffic: two to three UPI or xGMI links of about 20 GB/s raw,
# of which two thirds are payload.
SOCKET_MB_PER_S = 30_000

_UNITS = {
    "MB/s": {"GB/s": Fraction(1000), "MB/s": Fraction(1)},
    "ns": {"us": Fraction(1000), "ns": Fraction(1)},
}
_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{0,15})?(e[-+]?\d{1,3})?", re.IGNORECASE | re.ASCII)
_MOST = 10**9


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: `value` in whole MB/s, or in ns if the name starts with ``latency_``."""

    name: str
    value: int
    source: str

    def __post_init__(self) -> None:
        if type(self.value) is not int or self.value < 1:
            raise UsageError(f"{self.name} is {self.value}, need a whole number >= 1")

    @property
    def unit(self) -> str:
        """``ns`` or ``MB/s``."""
        return "ns" if self.name.startswith("latency_") else "MB/s"


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """A table of figures, looked up by name.

    Examples
    --------
    >>> DEFAULT["nvlink2_lane"], DEFAULT["latency_pcie"]
    (23000, 1000)
    """

    figures: tuple[Figure, ...]
    _values: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {figure.name: figure.value for figure in self.figures}
        if len(values) != len(self.figures):
            raise UsageError("a table of bandwidths has a name twice")
        object.__setattr__(self, "_values", values)

    def __getitem__(self, name: str) -> int:
        """Return the figure of that name; KeyError if there is none."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def updated(self, values: Mapping[str, int], source: str) -> Bandwidths:
        """Return the table with other values for some names, which it must know.

        >>> DEFAULT.updated({"qpi": 7000}, "measured")["qpi"]
        7000
        """
        for name in values:
            if name not in self._values:
                raise UsageError(f"no bandwidth is called '{name}'{_near(name, self)}")
        return Bandwidths(
            tuple(
                Figure(old.name, values[old.name], source) if old.name in values else old
                for old in self.figures
            )
        )


DEFAULT = Bandwidths(
    (
        Figure("nvlink1_lane", NVLINK1_LANE_MB_PER_S, f"{_BLINK}: 18 to 20 GB/s (P100)"),
        Figure("nvlink2_lane", NVLINK2_LANE_MB_PER_S, f"{_BLINK}: 22 to 25 GB/s (V100)"),
        Figure(
            "nvlink3_lane",
            22_500,
            "estimate for A100: nine tenths of 25 GB/s raw, as NVLink 2 achieves",
        ),
        Figure("nvlink3_ga102_lane", 12_000, f"{_NCCL}: SM86, of 14.06 raw (A6000, RTX 3090)"),
        Figure("nvlink4_lane", 20_900, "H100: 376 GB/s over 18 lanes, NVIDIA/nccl issue 1264"),
        Figure("nvlink5_lane", 40_100, f"{_NCCL}: SM100 (B200)"),
        Figure("xgmi1_lane", 24_000, f"{_RCCL}: VEGA (MI50, MI60, MI100)"),
        Figure("xgmi2_lane", 36_000, f"{_RCCL}: MI200"),
        Figure("xgmi3_lane", 48_000, f"{_RCCL}: GFX94X, GFX95X (MI300, MI350)"),
        Figure("pcie1_x16", 2_500, "a quarter of gen3's line rate"),
        Figure("pcie2_x16", 5_000, "half of gen3's line rate"),
        Figure("pcie3_x16", PCIE3_X16_MB_PER_S, f"{_BLINK}: 8 to 12 of 15.75 GB/s"),
        Figure("pcie4_x16", 22_000, "RTX 4090 to host and back: 22 GB/s, NVIDIA/nccl issue 814"),
        Figure("pcie5_x16", 50_000, "p2pBandwidthLatencyTest on RTX PRO 6000: 50 to 56 GB/s"),
        Figure("pcie6_x16", 100_000, "twice gen5's line rate"),
        Figure("qpi", QPI_MB_PER_S, f"{_NCCL}: BDW_QPI (Xeon before Skylake)"),
        Figure("upi", 10_000, f"{_NCCL}: SKL_QPI (Skylake to Ice Lake)"),
        Figure("upi2", 22_000, f"{_NCCL}: SRP_QPI (Sapphire Rapids)"),
        Figure("upi3", 40_000, f"{_NCCL}: ERP_QPI (Emerald Rapids and later)"),
        Figure("epyc_socket", 16_000, f"{_NCCL}: AMD_ZEN12 (Naples, Rome)"),
        Figure("epyc3_socket", 24_000, f"{_NCCL}: AMD_ZEN34 (Milan, Genoa)"),
        Figure("epyc5_socket", 32_000, f"{_NCCL}: AMD_ZEN5 (Turin)"),
        Figure("power9_socket", 32_000, f"{_NCCL}: P9 (X-Bus)"),
        Figure("arm_socket", 6_000, f"{_NCCL}: ARM"),
        Figure("zhaoxin_socket", 6_000, f"{_NCCL}: ZPI"),
        Figure(
            "host_memory",
            80_000,
            "estimate of what a NUMA node stages: 8 channels of DDR4-3200, 204.8 GB/s raw, of which"
            " four fifths are achieved, half for writing and half for reading",
        ),
        Figure("latency_nvlink", 520, f"{_HW_LATENCY}: NVLink"),
        Figure("latency_nvswitch", 520, f"{_HW_LATENCY}: NVLink"),
        Figure("latency_xgmi", 800, "RCCL, src/graph/tuning.cc, hwLat of trees, protocol LL"),
        Figure("latency_pcie", 1_000, f"{_HW_LATENCY}: PCI"),
        Figure("latency_pcie_staged", 2_000, "latency_pcie twice: up and down"),
        Figure("latency_shm", 200, "estimate: a flag and a line of data from core to core"),
        Figure("latency_network", 5_000, f"{_HW_LATENCY}: network"),
    )
)


def read_bandwidths(text: str, source: str) -> Bandwidths:
    """Return the default table with what a file says of this machine.

    Parameters
    ----------
    text : str
        Lines ``nvlink2_lane = 22.5 GB/s`` or ``latency_nvlink = 1.5 us``; ``#`` starts a comment.
        Units are GB/s and MB/s (10^9 and 10^6 bytes), us and ns.
    source : str
        The file's name, for messages.

    Raises
    ------
    ReportError
        At the first line that is not like this, names nothing known or something twice, or has
        no positive value.

    Examples
    --------
    >>> read_bandwidths("qpi = 7.5 GB/s  # measured", "mine.txt")["qpi"]
    7500
    """
    values: dict[str, int] = {}
    at: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        name, equals, rest = (part.strip() for part in line.partition("="))
        if not equals:
            raise ReportError(source, number, f"'{line}' is no 'name = value unit'")
        if name not in DEFAULT:
            raise ReportError(source, number, f"no bandwidth is called '{name}'{_near(name)}")
        if name in at:
            raise ReportError(source, number, f"{name} is given twice, first in line {at[name]}")
        at[name] = number
        values[name] = _value(name, rest, (source, number))
    return DEFAULT.updated(values, source)


def write_bandwidths(bandwidths: Bandwidths) -> str:
    """Return the file that `read_bandwidths` reads back: a line per figure, its source behind it.

    >>> print(write_bandwidths(DEFAULT).splitlines()[0])
    nvlink1_lane = 19000 MB/s  # Blink (Wang et al., MLSys 2020), ...
    """
    return "".join(
        f"{figure.name} = {figure.value} {figure.unit}  # {figure.source}\n"
        for figure in bandwidths.figures
    )


def _value(name: str, text: str, place: tuple[str, int]) -> int:
    units = _UNITS["ns" if name.startswith("latency_") else "MB/s"]
    number, _, unit = (part.strip() for part in text.partition(" "))
    # a short number: Fraction would write out 1e999999999
    if unit not in units or not _NUMBER.fullmatch(number):
        known = " or ".join(units)
        raise ReportError(*place, f"{name} is '{text}', expected a number and {known}")
    value = round(Fraction(number) * units[unit])
    if value < 1:
        raise ReportError(*place, f"{name} is '{text}', must be at least 1 {list(units)[-1]}")
    if value > _MOST:
        raise ReportError(*place, f"{name} is '{text}', must be at most {_MOST} {list(units)[-1]}")
    return value


def _near(name: str, table: Bandwidths | None = None) -> str:
    names = tuple(DEFAULT if table is None else table)
    near = get_close_matches(name, names, n=3)
    return f"; near are {', '.join(near)}" if near else f"; there are {', '.join(names)}"
