r"""The paper's hybrid: NVLink trees and PCIe trees packed apart, the data split between them.

Beside NVLink, PCIe works only after peer access between the GPUs has been switched over, which
takes a while; so NVLink starts first, and both should end together [1]_:

.. math:: T_{NVL} = T_{dpa} + T_{PCIe}, \quad
   D_{PCIe} = \frac{D \, B_{PCIe} - T_{dpa} \, B_{PCIe} \, B_{NVL}}{B_{PCIe} + B_{NVL}}

The exact planner needs none of this: it packs trees over both kinds of links at once, and goes
through host memory instead of switching.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   hybrid communication and figure 26.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkrun.errors import PlanError

# Fitted to figure 26: broadcasts of 500 MB on 3 to 8 GPUs of a DGX-1V with and without PCIe, PCIe
# at 9 GB/s, give 3.2 to 4.2 ms, 4.0 in the middle.
PEER_ACCESS_SWITCH_NS = 4_000_000


@dataclass(frozen=True, slots=True)
class HybridSplit:
    """How much of the data each kind of link carries, in bytes, and when the last byte is there.

    `time_ns` is the transfer alone, without the latency of hops.
    """

    nvlink_bytes: int
    pcie_bytes: int
    time_ns: int


def hybrid_split(
    size_bytes: int,
    *,
    nvlink_rate: Fraction,
    pcie_rate: Fraction,
    switch_ns: int = PEER_ACCESS_SWITCH_NS,
) -> HybridSplit:
    """Return the split at which NVLink and PCIe end together, in whole bytes.

    Small data goes over NVLink alone: PCIe would not have started before it is done.

    Parameters
    ----------
    size_bytes : int
        All of the data.
    nvlink_rate, pcie_rate : Fraction
        What each set of trees carries alone, in MB/s; 0 where there is none, not both.
    switch_ns : int, default `PEER_ACCESS_SWITCH_NS`
        What switching peer access takes.

    Raises
    ------
    PlanError
        If a number is negative, or both rates are 0.

    Examples
    --------
    >>> hybrid_split(500_000_000, nvlink_rate=Fraction(66_600), pcie_rate=Fraction(9_000))
    HybridSplit(nvlink_bytes=472190477, pcie_bytes=27809523, time_ns=7089948)
    >>> hybrid_split(1_000_000, nvlink_rate=Fraction(66_600), pcie_rate=Fraction(9_000)).pcie_bytes
    0
    """
    is_negative = min(size_bytes, switch_ns) < 0 or min(nvlink_rate, pcie_rate) < 0
    if is_negative or not nvlink_rate + pcie_rate:
        raise PlanError(
            f"no split of {size_bytes} bytes over {nvlink_rate} and {pcie_rate} MB/s "
            f"after {switch_ns} ns"
        )
    if not nvlink_rate:
        return HybridSplit(0, size_bytes, _time_ns(size_bytes, pcie_rate))
    # bytes that NVLink moves while PCIe waits; MB/s are bytes per 1000 ns
    head_start = nvlink_rate * switch_ns / 1000
    share = (size_bytes - head_start) * pcie_rate / (nvlink_rate + pcie_rate)
    pcie_bytes = max(0, int(share))
    nvlink_bytes = size_bytes - pcie_bytes
    time_ns = _time_ns(nvlink_bytes, nvlink_rate)
    if pcie_bytes:
        time_ns = max(time_ns, switch_ns + _time_ns(pcie_bytes, pcie_rate))
    return HybridSplit(nvlink_bytes, pcie_bytes, time_ns)


def _time_ns(size_bytes: int, rate: Fraction) -> int:
    """Return the time at `rate` MB/s, rounded up."""
    return -int(-(size_bytes * 1000) // rate)
