"""Figures 14, 15 and 16: broadcast and allreduce of 500 MB on every allocation of a DGX-1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from blinkrun.paper import data
from blinkrun.paper.cases import Case, outcomes
from blinkrun.paper.causes import Compared, causes
from blinkrun.paper.figure import (
    MARK,
    OURS,
    PAPER_OURS,
    PAPER_RING,
    RING,
    Column,
    Figure,
    Goal,
    Panel,
    Row,
    Series,
    Shape,
    rounded,
)
from blinkrun.types import Collective

OF_BOUND = 0.95  # of the bound that every row must reach
OF_PAPER = 0.97  # of the paper's Blink bar
NEAR_PAPER = 0.20  # within which rings must be of the paper's NCCL bar


_HOW = (
    "Rates are bytes of the collective per second (algbw). *trees* is their number and depth over "
    "all links; *of bound* is the rate over all links in percent of what no program exceeds on "
    "them."
)
_ROOT = (
    " The paper names no root; it is one with the best bound, and among these the first whose "
    "trees come close to it."
)


@dataclass(frozen=True, slots=True)
class Bars:
    """A figure of bars by allocation, and what is wanted of it.

    Attributes
    ----------
    name, title, machine : str
    collective : Collective
    file : str
        Of the paper's bars.
    blink, nccl, lanes : str
        Its columns.
    ratio, most : float
        Least geometric mean and maximum of our rate over the rings'.
    at_paper : int
        Rows that must reach the paper's Blink bar.
    rings_near : int
        Rows whose rings must be near the paper's NCCL bar.
    claim : str
        What the paper says of its ratios.
    """

    name: str
    title: str
    machine: str
    collective: Collective
    file: str
    blink: str
    nccl: str
    lanes: str
    ratio: float
    most: float
    at_paper: int
    rings_near: int
    claim: tuple[str, str]

    def cases(self, size_bytes: int = data.GOAL_BYTES) -> list[Case]:
        """Return what is simulated, in the order of the paper's bars."""
        return [
            Case(self.machine, data.gpus_of(row["gpus"]), self.collective, size_bytes)
            for row in data.rows(self.file)
        ]


FIG14 = Bars(
    name="fig14",
    title="Broadcast of 500 MB on a DGX-1V",
    machine="dgx-1v",
    collective=Collective.BROADCAST,
    file="fig14_16_dgx1v",
    blink="broadcast_blink_gb_s",
    nccl="broadcast_nccl_gb_s",
    lanes="min_cut_lanes",
    ratio=2.0,
    most=6.0,
    at_paper=44,
    rings_near=40,
    claim=("2x", "up to 6x"),
)
FIG15 = Bars(
    name="fig15",
    title="Broadcast of 500 MB on a DGX-1P",
    machine="dgx-1p",
    collective=Collective.BROADCAST,
    file="fig15_dgx1p_broadcast",
    blink="blink_gb_s",
    nccl="nccl_gb_s",
    lanes="min_cut_lanes",
    ratio=1.6,
    most=3.0,
    at_paper=14,
    rings_near=11,
    claim=("1.6x", "up to 3x"),
)
FIG16 = Bars(
    name="fig16",
    title="Allreduce of 500 MB on a DGX-1V",
    machine="dgx-1v",
    collective=Collective.ALLREDUCE,
    file="fig14_16_dgx1v",
    blink="allreduce_blink_gb_s",
    nccl="allreduce_nccl_gb_s",
    lanes="partition_bound_lanes",
    ratio=2.0,
    most=8.0,
    at_paper=46,
    rings_near=40,
    claim=("2x", "up to 8x"),
)


def fig14() -> Figure:
    """Return broadcast on 46 allocations of a DGX-1V."""
    return bars(FIG14)


def fig15() -> Figure:
    """Return broadcast on 14 allocations of a DGX-1P."""
    return bars(FIG15)


def fig16() -> Figure:
    """Return allreduce on 46 allocations of a DGX-1V."""
    return bars(FIG16)


def bars(wanted: Bars) -> Figure:
    """Return a figure of bars, simulated on all cores."""
    compared = [
        Compared(
            found,
            paper_blink=float(row[wanted.blink]),
            paper_nccl=float(row[wanted.nccl]),
            bound_lanes=float(row[wanted.lanes]),
        )
        for found, row in zip(outcomes(wanted.cases()), data.rows(wanted.file), strict=True)
    ]
    return Figure(
        name=wanted.name,
        title=wanted.title,
        rows=tuple(_row(one) for one in compared),
        columns=COLUMNS,
        panels=(PANEL,),
        summary=_summary(compared),
        goals=_goals(wanted, _summary(compared)),
        says=_says(wanted, compared),
        causes=causes(compared),
        how=_HOW + (_ROOT if wanted.collective.is_rooted else ""),
    )


def _row(one: Compared) -> Row:
    found = one.outcome
    everything, nvlink, rings = found.everything, found.nvlink, found.rings
    packing = everything.choice.packing
    return {
        "gpus": list(found.case.gpus),
        "blink_gb_per_s": rounded(everything.gb_per_s),
        "blink_nvlink_gb_per_s": rounded(nvlink.gb_per_s),
        "ring_gb_per_s": rounded(rings.gb_per_s),
        "paper_blink_gb_per_s": one.paper_blink,
        "paper_nccl_gb_per_s": one.paper_nccl,
        "bound_gb_per_s": rounded(everything.bound_gb_per_s),
        "nvlink_bound_gb_per_s": rounded(nvlink.bound_gb_per_s),
        "ratio": rounded(everything.gb_per_s / rings.gb_per_s),
        "nvlink_ratio": rounded(nvlink.gb_per_s / rings.gb_per_s),
        "paper_ratio": rounded(one.paper_blink / one.paper_nccl),
        "of_bound_pct": rounded(100 * everything.gb_per_s / everything.bound_gb_per_s),
        "nvlink_of_bound_pct": rounded(100 * nvlink.gb_per_s / nvlink.bound_gb_per_s),
        "root": everything.root if found.case.collective.is_rooted else None,
        "trees": f"{len(packing.trees)} x {packing.depth}",
        "chosen": everything.choice.trees,
        "chunk_bytes": everything.choice.chunk_bytes,
        "channels_per_tree": everything.choice.channels_per_tree,
        "ring_kind": f"{rings.count} {rings.kind.value}",
        "time_ns": everything.run.time_ns,
        "ring_time_ns": rings.run.time_ns,
    }


COLUMNS = (
    Column("gpus", "GPUs"),
    Column("blink_gb_per_s", "blink"),
    Column("blink_nvlink_gb_per_s", "blink, NVLink"),
    Column("ring_gb_per_s", "ring"),
    Column("ratio", "blink / ring", 2),
    Column("paper_blink_gb_per_s", "paper: Blink"),
    Column("paper_nccl_gb_per_s", "paper: NCCL"),
    Column("paper_ratio", "paper: ratio", 2),
    Column("bound_gb_per_s", "bound"),
    Column("of_bound_pct", "of bound, %"),
    Column("trees", "trees"),
    Column("ring_kind", "rings"),
)
PANEL = Panel(
    Shape.BARS,
    "gpus",
    (
        Series("blink_gb_per_s", "blink", OURS),
        Series("blink_nvlink_gb_per_s", "blink, NVLink", "#4d8f4d"),
        Series("paper_blink_gb_per_s", "paper: Blink", PAPER_OURS),
        Series("ring_gb_per_s", "ring", RING),
        Series("paper_nccl_gb_per_s", "paper: NCCL", PAPER_RING),
        Series("bound_gb_per_s", "bound", MARK, is_mark=True),
    ),
    x_label="GPUs",
    y_label="GB/s",
)


def _summary(rows: Sequence[Compared]) -> Mapping[str, float | int]:
    """Return what all rows amount to."""
    ratios = [row.blink / row.ring for row in rows]
    of_bound = [row.blink / float(row.outcome.everything.bound_gb_per_s) for row in rows]
    return {
        "geomean_ratio": rounded(geometric_mean(ratios)),
        "max_ratio": rounded(max(ratios)),
        "nvlink_geomean_ratio": rounded(geometric_mean(row.nvlink / row.ring for row in rows)),
        "nvlink_max_ratio": rounded(max(row.nvlink / row.ring for row in rows)),
        "paper_geomean_ratio": rounded(
            geometric_mean(row.paper_blink / row.paper_nccl for row in rows)
        ),
        "least_of_bound": rounded(min(of_bound)),
        "rows_of_bound": sum(part >= OF_BOUND for part in of_bound),
        "rows_at_paper_blink": sum(row.blink >= OF_PAPER * row.paper_blink for row in rows),
        "nvlink_rows_at_paper_blink": sum(row.nvlink >= OF_PAPER * row.paper_blink for row in rows),
        "rows_ring_near_paper": sum(is_near(row) for row in rows),
    }


def is_near(row: Compared) -> bool:
    """Whether the simulated rings are near the paper's NCCL bar."""
    return abs(row.ring / row.paper_nccl - 1) <= NEAR_PAPER


def _goals(wanted: Bars, summary: Mapping[str, float | int]) -> tuple[Goal, ...]:
    count = len(data.rows(wanted.file))
    mean, most = wanted.claim
    return (
        Goal("rows at 95 % of the bound or more", count, summary["rows_of_bound"]),
        Goal(
            "rows at 97 % of the paper's Blink bar or more",
            wanted.at_paper,
            summary["rows_at_paper_blink"],
        ),
        Goal("blink over ring, geometric mean", wanted.ratio, summary["geomean_ratio"], mean),
        Goal("blink over ring, largest", wanted.most, summary["max_ratio"], most),
        Goal(
            "rows whose ring is within 20 % of the paper's NCCL bar",
            wanted.rings_near,
            summary["rows_ring_near_paper"],
        ),
    )


def _says(wanted: Bars, rows: Sequence[Compared]) -> tuple[str, ...]:
    summary = _summary(rows)
    far = [
        f"{row.gpus} ({row.ring:.1f} for {row.paper_nccl:.1f})" for row in rows if not is_near(row)
    ]
    beyond = f" The others: {'; '.join(far)}." if far else ""
    return (
        f"blink over ring: geometric mean {summary['geomean_ratio']:.2f}, largest "
        f"{summary['max_ratio']:.2f}; over NVLink alone {summary['nvlink_geomean_ratio']:.2f} and "
        f"{summary['nvlink_max_ratio']:.2f}; the paper's bars: "
        f"{summary['paper_geomean_ratio']:.2f}. Least of the bound: "
        f"{100 * summary['least_of_bound']:.1f} %.",
        f"Simulated rings are within 20 % of the paper's NCCL bar in "
        f"{summary['rows_ring_near_paper']} of {len(rows)} rows.{beyond}",
        f"Rows at 97 % of the paper's Blink bar or more: {summary['rows_at_paper_blink']}, over "
        f"NVLink alone {summary['nvlink_rows_at_paper_blink']}.",
    )
