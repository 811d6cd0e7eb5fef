"""What figure 17 shows of its rows: columns, pictures, what they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import geometric_mean

from blinkrun.paper.figure import (
    MARK,
    OURS,
    PAPER_OURS,
    RING,
    Column,
    Goal,
    Panel,
    Row,
    Series,
    Shape,
    rounded,
)
from blinkrun.paper.training_compute import COMPUTE, compute_of
from blinkrun.paper.training_steps import Trained

COLUMNS = (
    Column("case", "GPUs, model"),
    Column("ring_iteration_ms", "iteration, rings (ms)"),
    Column("blink_iteration_ms", "iteration, blink (ms)"),
    Column("iteration_saved_pct", "saved (%)"),
    Column("paper_iteration_saved_pct", "paper (%)"),
    Column("ring_comm_ms", "allreduces, rings (ms)"),
    Column("blink_comm_ms", "allreduces, blink (ms)"),
    Column("comm_saved_pct", "saved (%)"),
    Column("nvlink_comm_saved_pct", "saved, NVLink (%)"),
    Column("paper_comm_saved_pct", "paper (%)"),
    Column("paper_bars_comm_saved_pct", "paper's figure 16 (%)"),
    Column("ring_share_pct", "rings' share (%)"),
    Column("paper_share_pct", "figure 5 (%)"),
    Column("hidden_iteration_saved_pct", "saved if hidden (%)"),
)


def _saved_panel(what: str, title: str) -> Panel:
    series = (
        Series(f"{what}_saved_pct", "blink, simulated", OURS),
        Series(f"paper_{what}_saved_pct", "paper: Blink", PAPER_OURS),
    )
    return Panel(Shape.BARS, "case", series, x_label="", y_label="saved, %", title=title)


PANELS = (
    _saved_panel("iteration", "Time of an iteration saved over rings"),
    _saved_panel("comm", "Communication time saved over rings"),
    Panel(
        Shape.BARS,
        "case",
        (
            Series("ring_share_pct", "rings, simulated", RING),
            Series("paper_share_low_pct", "figure 5: NCCL, from and to", MARK, is_mark=True),
            Series("paper_share_high_pct", "", MARK, is_mark=True),
        ),
        x_label="",
        y_label="share, %",
        title="Part of an iteration that rings communicate",
    ),
)


def row_of(one: Trained) -> Row:
    """Return a row's JSON values."""
    low, high = one.paper_share_pct
    ring_hidden, blink_hidden = one.hidden
    hidden_pct = 100 - Fraction(100 * blink_hidden.iteration_ns, ring_hidden.iteration_ns)
    return {
        "case": f"{one.configuration} {one.model.title}",
        "gpus": list(one.gpus),
        "model": one.model.name,
        "batch_per_gpu": compute_of(one.model).batch,
        "compute_ms": _ms(one.ring.compute_ns),
        "buckets": len(one.ring.exchanges),
        "ring_kind": f"{one.tables.num_rings} {one.tables.ring_kind.value}",
        "blink_iteration_ms": _ms(one.blink.iteration_ns),
        "ring_iteration_ms": _ms(one.ring.iteration_ns),
        "blink_comm_ms": _ms(one.blink.communication_ns),
        "ring_comm_ms": _ms(one.ring.communication_ns),
        "iteration_saved_pct": _pct(one.iteration_saved_pct),
        "paper_iteration_saved_pct": _pct(one.paper_iteration_pct),
        "comm_saved_pct": _pct(one.comm_saved_pct),
        "nvlink_comm_saved_pct": _pct(one.nvlink_comm_saved_pct),
        "paper_comm_saved_pct": _pct(one.paper_comm_pct),
        "paper_bars_comm_saved_pct": _pct(one.bars_comm_saved_pct),
        "ring_share_pct": _pct(one.share_pct),
        "paper_share_low_pct": _pct(low),
        "paper_share_high_pct": _pct(high),
        "paper_share_pct": _between(low, high),
        "share_fits": one.share_fits,
        "hidden_iteration_saved_pct": _pct(hidden_pct),
        "hidden_ring_exposed_ms": _ms(ring_hidden.exposed_ns),
        "hidden_blink_exposed_ms": _ms(blink_hidden.exposed_ns),
    }


def summary_of(rows: Sequence[Trained]) -> dict[str, float | int]:
    """Return what all rows amount to."""
    ratios = [Fraction(one.ring.iteration_ns, one.blink.iteration_ns) for one in rows]
    hidden = [
        Fraction(ring.iteration_ns, blink.iteration_ns)
        for ring, blink in (one.hidden for one in rows)
    ]
    return {
        "geomean_ratio": rounded(geometric_mean(ratios)),
        "max_ratio": rounded(max(ratios)),
        "max_iteration_saved_pct": rounded(max(one.iteration_saved_pct for one in rows)),
        "geomean_iteration_saved_pct": mean_saved_pct(one.iteration_saved_pct for one in rows),
        "max_comm_saved_pct": rounded(max(one.comm_saved_pct for one in rows)),
        "geomean_comm_saved_pct": mean_saved_pct(one.comm_saved_pct for one in rows),
        "paper_geomean_iteration_saved_pct": mean_saved_pct(
            one.paper_iteration_pct for one in rows
        ),
        "paper_geomean_comm_saved_pct": mean_saved_pct(one.paper_comm_pct for one in rows),
        "hidden_max_iteration_saved_pct": rounded(max(100 - 100 / ratio for ratio in hidden)),
        "hidden_geomean_iteration_saved_pct": mean_saved_pct(100 - 100 / ratio for ratio in hidden),
        "shares": len(rows),
        "shares_that_fit": sum(one.share_fits for one in rows),
        "shares_that_fit_if_hidden": sum(_fits_hidden(one) for one in rows),
    }


def goals_of(summary: Mapping[str, float | int]) -> tuple[Goal, ...]:
    """Return what was wanted."""
    return (
        Goal(
            "iteration time saved, largest (%)",
            40,
            summary["max_iteration_saved_pct"],
            "up to 40 %, geo-mean 6.3 %",
        ),
        Goal(
            "communication time saved, largest (%)",
            87,
            summary["max_comm_saved_pct"],
            "up to 87 %, geo-mean 31 %",
        ),
        Goal(
            "rings' shares of an iteration that fit figure 5, more than half",
            summary["shares"] // 2 + 1,
            summary["shares_that_fit"],
        ),
    )


def says_of(summary: Mapping[str, float | int]) -> tuple[str, ...]:
    """Return sentences for below the picture."""
    return (
        f"Iterations: up to {summary['max_iteration_saved_pct']:.1f} % saved, "
        f"{summary['geomean_iteration_saved_pct']:.1f} % in the geometric mean of what is left; "
        f"the paper's legible bars have {summary['paper_geomean_iteration_saved_pct']:.1f} %. "
        f"Allreduces: up to {summary['max_comm_saved_pct']:.1f} %, mean "
        f"{summary['geomean_comm_saved_pct']:.1f} % (the paper's bars: "
        f"{summary['paper_geomean_comm_saved_pct']:.1f} %).",
        f"The rings' share of an iteration lies in figure 5's range, give or take a fifth, in "
        f"{summary['shares_that_fit']} of {summary['shares']} rows. If allreduces were hidden "
        f"behind the backward pass, what is left of them in sight would do so in "
        f"{summary['shares_that_fit_if_hidden']}: that is why the rows above do not hide them.",
        f"With buckets that start as soon as they are full, as a job of today would run them, "
        f"most of the communication is hidden with either library: trees then save up to "
        f"{summary['hidden_max_iteration_saved_pct']:.1f} % of an iteration, mean "
        f"{summary['hidden_geomean_iteration_saved_pct']:.1f} % (last column).",
    )


HOW = (
    "A step computes as long as a V100 does, then its gradients are reduced in buckets of 25 MiB "
    "(the first of 1 MiB; a gradient is never divided), one allreduce after the "
    "other; each takes what the simulator says for its size. One setting for all rows: mixed "
    "precision, gradients in float32, "
    + ", ".join(f"{one.batch} images per GPU for {one.model}" for one in COMPUTE)
    + ". The paper's batches are not in our data; these were chosen so that rings take the part of "
    "an iteration that figure 5 says, and figure 17 followed. Times of a step without "
    "communication: "
    + "; ".join(f"{one.model} {one.step_ns / 1e6:.1f} ms ({one.source})" for one in COMPUTE)
    + ". Backward passes are two thirds of a step. *Paper's figure 16*: what its own allreduce "
    "bars for GPUs wired like these would save of the communication."
)


def mean_saved_pct(saved: Iterable[Fraction | None]) -> float:
    """Return what is saved if every row leaves the geometric mean of what they leave.

    >>> mean_saved_pct([Fraction(50), None]), mean_saved_pct([Fraction(75), Fraction(0)])
    (50.0, 50.0)
    """
    return rounded(100 - 100 * geometric_mean(1 - one / 100 for one in saved if one is not None))


def _fits_hidden(one: Trained) -> bool:
    ring, _ = one.hidden
    return one.fits(Fraction(100 * ring.exposed_ns, ring.iteration_ns))


def _between(low: Fraction, high: Fraction) -> str:
    return f"{float(low):g}" if low == high else f"{float(low):g} to {float(high):g}"


def _ms(time_ns: int) -> float:
    return rounded(Fraction(time_ns, 10**6))


def _pct(value: Fraction | None) -> float | None:
    return None if value is None else rounded(value, 3) + 0.0  # no -0.0
