"""What links achieve on the paper's machines: one figure per kind of link, with sources.

Nothing is fitted row by row. A ring library gets `simulator.cost.RINGS.efficiency` of these.
"""

from __future__ import annotations

from collections.abc import Iterable

from blinkrun.topology.bandwidth import DEFAULT, Bandwidths
from blinkrun.topology.catalog import described
from blinkrun.topology.graph import LinkKind, Topology, induce, select_links
from blinkrun.topology.model import LinkSet, lane_mb_per_s, topology_of

_FIGURES = "Blink (Wang et al., MLSys 2020), figures"

# Trees of one lane broadcast 22 to 23 GB/s on V100s, in all rows of figure 14.
NVLINK2_LANE_MB_PER_S = 23_000
# NCCL's rings of two lanes broadcast 32.3 GB/s on P100s (figure 15); its rings on V100s get 0.88
# of a lane (figure 14: 43 of 46 is their best, 40.5 the eight-GPU allreduce), so a lane has 18.3.
NVLINK1_LANE_MB_PER_S = 18_300
# Gen3 x16 achieves 8 to 12 GB/s (section 2). NCCL's PCIe rings on a p3.16xlarge broadcast 9 GB/s in
# every row of figure 14, between sockets or not, which is 0.88 of 10.2.
PCIE3_X16_MB_PER_S = 10_200
# Between the sockets of a p3.16xlarge: not less than what that ring needs.
SOCKET_V_MB_PER_S = 10_200
# Between the sockets of a DGX-1P: NCCL's PCIe rings broadcast 5.0 to 5.4 GB/s (figure 15), which is
# 0.88 of 6.0; QPI of Broadwell Xeons is known for about 6.
SOCKET_P_MB_PER_S = 6_000

_NVLINK = {"nvlink1_lane": NVLINK1_LANE_MB_PER_S, "nvlink2_lane": NVLINK2_LANE_MB_PER_S}
_SHARED = DEFAULT.updated(_NVLINK, f"{_FIGURES} 14 and 15").updated(
    {"pcie3_x16": PCIE3_X16_MB_PER_S}, f"{_FIGURES} 14 and 16"
)
BANDWIDTHS: dict[str, Bandwidths] = {
    "dgx-1v": _SHARED.updated({"qpi": SOCKET_V_MB_PER_S}, f"{_FIGURES} 14 and 16"),
    "dgx-1p": _SHARED.updated({"qpi": SOCKET_P_MB_PER_S}, f"{_FIGURES} 15"),
    "dgx-2": _SHARED,
}
"""Tables by machine, as `topology_of` takes them."""


def allocation(machine: str, gpus: Iterable[int] | None = None) -> Topology:
    """Return all links between some GPUs of one of the paper's machines, in MB/s.

    Parameters
    ----------
    machine : str
        ``dgx-1v``, ``dgx-1p`` or ``dgx-2``.
    gpus : iterable of int, optional
        In the order of the ranks; all of the machine if not given.

    Examples
    --------
    >>> three = allocation("dgx-1v", [5, 6, 7])
    >>> three.size, sorted({link.kind.value for link in three.links})
    (3, ['nvlink', 'pcie-staged'])
    """
    whole = topology_of(described(machine), LinkSet.ALL, BANDWIDTHS[machine])
    return whole if gpus is None else induce(whole, gpus)


def fabric_alone(topology: Topology) -> Topology:
    """Return the same without PCIe.

    >>> {link.kind.value for link in fabric_alone(allocation("dgx-2")).links}
    {'nvswitch'}
    """
    return select_links(topology, [kind for kind in LinkKind if kind.is_fabric])


def lane_of(machine: str) -> int:
    """Return the width of one NVLink lane of a machine, in MB/s.

    >>> lane_of("dgx-1v"), lane_of("dgx-1p"), lane_of("dgx-2")
    (23000, 18300, 23000)
    """
    return lane_mb_per_s(described(machine), BANDWIDTHS[machine])
