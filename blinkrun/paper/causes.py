"""Why our rows differ from the paper's: every row that is far off is counted under one cause.

The rules are of the data alone: which links a run took, what the wiring closes, what the paper's
bar amounts to per lane of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blinkrun.paper.cases import Outcome
from blinkrun.paper.links import PCIE3_X16_MB_PER_S
from blinkrun.planner.rings import RingKind
from blinkrun.simulator.cost import RINGS
from blinkrun.types import Collective

FAR = 0.15
_PCIE_GB_PER_S = PCIE3_X16_MB_PER_S / 1000
_REDUCING_GB_PER_S = (16.0, 20.5)  # per lane of the bound: the paper's allreduce trees


@dataclass(frozen=True, slots=True)
class Compared:
    """A simulated row and what the paper shows for it.

    Attributes
    ----------
    outcome : Outcome
    paper_blink, paper_nccl : float
        In GB/s.
    bound_lanes : float
        What no trees exceed over NVLink alone, in lanes.
    """

    outcome: Outcome
    paper_blink: float
    paper_nccl: float
    bound_lanes: float

    @property
    def blink(self) -> float:
        """Ours over all links, GB/s."""
        return float(self.outcome.everything.gb_per_s)

    @property
    def nvlink(self) -> float:
        """Ours over NVLink alone, GB/s."""
        return float(self.outcome.nvlink.gb_per_s)

    @property
    def ring(self) -> float:
        """The simulated rings, GB/s."""
        return float(self.outcome.rings.gb_per_s)

    @property
    def gpus(self) -> str:
        """The allocation in words."""
        return ",".join(map(str, self.outcome.case.gpus))


def causes(rows: Sequence[Compared]) -> tuple[str, ...]:
    """Return a sentence for every cause that explains a row, with the rows that it explains."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for cause in (*_of_blink(row), *_of_rings(row)):
            found.setdefault(cause, []).append(row.gpus)
    every = [row.gpus for row in rows]
    return tuple(f"{cause} ({_named(gpus, every)})" for cause, gpus in found.items())


def _named(gpus: Sequence[str], every: Sequence[str]) -> str:
    """Return which of all rows these are, in as few words as can be.

    >>> _named(["0,1", "2,3"], ["0,1", "2,3", "4,5"])
    '2 of 3 rows: all but 4,5'
    """
    head = f"{len(gpus)} of {len(every)} rows"
    others = [one for one in every if one not in gpus]
    if not others:
        return f"all {len(every)} rows"
    if len(others) < len(gpus):
        return f"{head}: all but {'; '.join(others)}"
    return f"{head}: {'; '.join(gpus)}"


def _is_far(value: float, paper: float) -> bool:
    return abs(value / paper - 1) > FAR


def _of_blink(row: Compared) -> Iterator[str]:
    """Yield why our bar is not the paper's."""
    if not _is_far(row.blink, row.paper_blink):
        return
    per_lane = row.paper_blink / row.bound_lanes
    low, high = _REDUCING_GB_PER_S
    if not _is_far(row.nvlink, row.paper_blink):
        yield (
            "Blink: PCIe carries a part beside NVLink, which the paper's figure leaves out; over "
            "NVLink alone ours is within 15 % of the paper's bar"
        )
    elif row.blink < row.paper_blink:
        yield f"Blink: below the paper's bar, which is {per_lane:.1f} GB/s per lane of the bound"
    elif per_lane < low:
        yield (
            "Blink: the paper's bar is less than 16 GB/s per lane of what trees over NVLink can "
            "carry: its packing falls short of the bound, the exact one does not"
        )
    elif per_lane <= high and row.outcome.case.collective is Collective.ALLREDUCE:
        yield (
            "Blink: the paper's kernels achieve 16 to 20 GB/s per lane where they reduce as well, "
            "ours are taken to achieve the link's rate, and PCIe carries a part beside NVLink"
        )
    else:
        yield (
            "Blink: the paper's kernels stay further below the link's rate with several trees than "
            "with one, and PCIe carries a part beside NVLink here"
        )


def _of_rings(row: Compared) -> Iterator[str]:
    """Yield why the simulated rings are not the paper's NCCL."""
    if not _is_far(row.ring, row.paper_nccl):
        return
    over_pcie = row.outcome.rings.kind is RingKind.PCIE
    above = row.paper_nccl > row.ring
    lanes = row.outcome.nvlink.bound_gb_per_s
    if over_pcie and above and row.ring > _PCIE_GB_PER_S:
        yield (
            "NCCL: no NVLink ring, but a chain of NVLinks, along which the simulated ring "
            "broadcasts over a lane; the paper's bar is a little above what a lane gives its rings "
            "elsewhere"
        )
    elif over_pcie and above:
        yield (
            "NCCL: the paper's bar is more than PCIe carries, though the wiring closes no NVLink "
            "ring over these GPUs"
        )
    elif over_pcie:
        yield (
            "NCCL: the paper's PCIe ring got less here than the same kind of ring on other GPUs; "
            "the simulated one gets the same everywhere"
        )
    elif above and not _is_far(row.paper_nccl, float(lanes * RINGS.efficiency)):
        yield (
            "NCCL: the paper's bar is what all lanes out of the root carry at the efficiency of "
            "rings, so its NCCL broadcast along chains that close no ring; the simulated one does "
            "so only where there is no ring at all"
        )
    elif above:
        yield (
            "NCCL: the paper's bar is above what its lanes carry at the efficiency of the rings "
            "in the other rows"
        )
    else:
        yield (
            "NCCL: the paper's bar is below what as many rings carry in the other rows; the "
            "simulated library loses nothing to the number of rings"
        )
