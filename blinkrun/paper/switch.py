"""Figures 18 and 27: allreduce on the 16 GPUs of a DGX-2 by size, throughput and latency.

The paper's axis of throughput is taken to be busbw: its bars for large data reach 131 GB/s of the
138 that six lanes achieve, and latency times throughput gives the size only with busbw's factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import geometric_mean

from blinkrun.paper import data
from blinkrun.paper.cases import Case, Ours, Rings, ours, rings
from blinkrun.paper.figure import (
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
    Value,
    number,
    rounded,
)
from blinkrun.paper.links import allocation, fabric_alone
from blinkrun.paper.pool import mapped
from blinkrun.types import Collective

FILE = "fig18_27_dgx2_allreduce"
_FAR = 0.15
_READ = 0.15  # either way, of what the paper's axes tell
_THROUGHPUT, _LATENCY = 3.5, 3.3  # times as good as rings at the paper's best sizes


def fig18() -> Figure:
    """Return throughput by size."""
    rows = _rows()
    best = _best_sizes(rows, "paper_blink_gb_per_s", "paper_nccl_gb_per_s")
    most = max(number(row, "ratio") for row in best)
    return Figure(
        name="fig18",
        title="Allreduce on the 16 GPUs of a DGX-2, throughput",
        rows=rows,
        columns=(
            Column("size", "size"),
            Column("blink_gb_per_s", "blink, algbw", 3),
            Column("ring_gb_per_s", "ring, algbw", 3),
            Column("blink_busbw_gb_per_s", "blink, busbw", 3),
            Column("ring_busbw_gb_per_s", "ring, busbw", 3),
            Column("ratio", "blink / ring", 2),
            Column("paper_blink_gb_per_s", "paper: Blink", 3),
            Column("paper_nccl_gb_per_s", "paper: NCCL", 3),
            Column("paper_ratio", "paper: ratio", 2),
            Column("trees", "trees"),
            Column("ring_program", "rings"),
        ),
        panels=(
            _panel(
                ("blink_busbw_gb_per_s", "ring_busbw_gb_per_s"),
                ("paper_blink_gb_per_s", "paper_nccl_gb_per_s"),
                "busbw, GB/s",
            ),
        ),
        summary=_summary(rows),
        goals=(
            Goal(
                "throughput over rings at the paper's best sizes",
                _THROUGHPUT,
                most,
                "up to 3.5x",
            ),
            _never_slower(rows),
        ),
        says=(
            f"The paper's ratio is best, as far as its axes tell, at {_named(best)}; there ours is "
            f"{_ratios(best)}. Over all sizes: "
            f"{_summary(rows)['max_ratio']:.2f} at most, geometric mean "
            f"{_summary(rows)['geomean_ratio']:.2f}.",
        ),
        causes=_causes(rows, "busbw_gb_per_s", "gb_per_s"),
        how=(
            "algbw is bytes of the allreduce per second; busbw, that times 2 (n - 1) / n, is what "
            "the paper's axis is taken to show, so it is what is compared with it."
        ),
    )


def fig27() -> Figure:
    """Return latency by size."""
    rows = _rows()
    best = _best_sizes(rows, "paper_nccl_us", "paper_blink_us")
    most = max(number(row, "ratio") for row in best)
    return Figure(
        name="fig27",
        title="Allreduce on the 16 GPUs of a DGX-2, latency",
        rows=rows,
        columns=(
            Column("size", "size"),
            Column("blink_us", "blink, us"),
            Column("ring_us", "ring, us"),
            Column("ratio", "ring / blink", 2),
            Column("paper_blink_us", "paper: Blink, us"),
            Column("paper_nccl_us", "paper: NCCL, us"),
            Column("paper_latency_ratio", "paper: ratio", 2),
            Column("ring_program", "rings"),
        ),
        panels=(
            _panel(("blink_us", "ring_us"), ("paper_blink_us", "paper_nccl_us"), "latency, us"),
        ),
        summary=_summary(rows),
        goals=(
            Goal(
                "latency of rings over ours at the paper's best sizes",
                _LATENCY,
                most,
                "3.32x lower",
            ),
            _never_slower(rows),
        ),
        says=(f"The paper's ratio is best at {_named(best)}; there ours is {_ratios(best)}.",),
        causes=_causes(rows, "us", "us"),
        how="Time of one call, from the launch to the last rank's end.",
    )


@cache
def _rows() -> tuple[Row, ...]:
    """Return a row for every size; both figures show them."""
    paper = data.rows(FILE)
    return tuple(
        _row(row, *found) for row, found in zip(paper, mapped(_run, _cases()), strict=True)
    )


def _cases() -> list[Case]:
    gpus = allocation("dgx-2").devices
    return [
        Case("dgx-2", gpus, Collective.ALLREDUCE, data.size_of(row["size"]))
        for row in data.rows(FILE)
    ]


def _run(case: Case) -> tuple[Ours, Rings]:
    # a port of the switch is all that a GPU's PCIe could add to, and it is 14 times as wide
    links = fabric_alone(case.topology)
    return ours(links, case), rings(links, case)


def _row(paper: Mapping[str, str], mine: Ours, theirs: Rings) -> Row:
    packing = mine.choice.packing
    paper_blink, paper_nccl = float(paper["blink_gb_s"]), float(paper["nccl_gb_s"])
    row: dict[str, Value] = {
        "size": paper["size"],
        "size_bytes": mine.run.size_bytes,
        "blink_gb_per_s": rounded(mine.gb_per_s),
        "ring_gb_per_s": rounded(theirs.gb_per_s),
        "blink_busbw_gb_per_s": rounded(mine.run.busbw_gb_per_s),
        "ring_busbw_gb_per_s": rounded(theirs.run.busbw_gb_per_s),
        "paper_blink_gb_per_s": paper_blink,
        "paper_nccl_gb_per_s": paper_nccl,
        "bound_gb_per_s": rounded(mine.bound_gb_per_s),
        "blink_us": rounded(mine.run.time_ns / 1000),
        "ring_us": rounded(theirs.run.time_ns / 1000),
        "paper_blink_us": float(paper["blink_us"]),
        "paper_nccl_us": float(paper["nccl_us"]),
        "ratio": rounded(theirs.run.time_ns / mine.run.time_ns),
        "paper_ratio": rounded(paper_blink / paper_nccl),
        "paper_latency_ratio": rounded(float(paper["nccl_us"]) / float(paper["blink_us"])),
    }
    return row | {
        "trees": f"{mine.choice.trees}, {len(packing.trees)} x {packing.depth}",
        "chunk_bytes": mine.choice.chunk_bytes,
        "channels_per_tree": mine.choice.channels_per_tree,
        "ring_program": theirs.name,
    }


def _best_sizes(rows: Sequence[Row], more: str, less: str) -> list[Row]:
    """Return the rows whose ratio in the paper cannot be told from its best.

    Both of its numbers were read off a logarithmic axis.
    """
    ratios = [number(row, more) / number(row, less) for row in rows]
    least = max(ratios) / (1 + _READ) ** 2
    return [row for row, ratio in zip(rows, ratios, strict=True) if ratio >= least]


def _named(rows: Sequence[Row]) -> str:
    return ", ".join(str(row["size"]) for row in rows)


def _ratios(rows: Sequence[Row]) -> str:
    return ", ".join(f"{number(row, 'ratio'):.2f}" for row in rows)


def _never_slower(rows: Sequence[Row]) -> Goal:
    least = min(number(row, "ratio") for row in rows)
    return Goal("throughput over rings at the worst size, 1 KB to 1 GB", 1.0, least, "level")


def _summary(rows: Sequence[Row]) -> Mapping[str, float]:
    ratios = [number(row, "ratio") for row in rows]
    return {
        "geomean_ratio": rounded(geometric_mean(ratios)),
        "max_ratio": rounded(max(ratios)),
        "least_ratio": rounded(min(ratios)),
    }


def _panel(simulated: tuple[str, str], paper: tuple[str, str], label: str) -> Panel:
    return Panel(
        Shape.LINES,
        "size_bytes",
        (
            Series(simulated[0], "blink", OURS),
            Series(simulated[1], "ring", RING),
            Series(paper[0], "paper: Blink", PAPER_OURS, is_mark=True),
            Series(paper[1], "paper: NCCL", PAPER_RING, is_mark=True),
        ),
        x_label="size",
        y_label=label,
        is_log=True,
    )


def _causes(rows: Sequence[Row], simulated: str, paper: str) -> tuple[str, ...]:
    """Return why lines differ from the paper's: which sizes, which way."""
    return (
        *_cause(
            rows,
            (f"blink_{simulated}", f"paper_blink_{paper}"),
            small="a size for which launch and one step are all: the paper's axis is logarithmic, "
            "read to 15 %, and its own latency and throughput there differ by as much",
            large="a size where bytes matter: a fused step here overlaps what it reads with what "
            "it writes at the full rate of the port; the paper's kernels ramp up more slowly",
        ),
        *_cause(
            rows,
            (f"ring_{simulated}", f"paper_nccl_{paper}"),
            small="a size for which steps are all: the time of one was fitted to the flat part of "
            "figure 27, the paper's throughput there is read to 15 %",
            large="a size where bytes matter: NCCL changes protocol and number of channels with "
            "the size, which the simulated rings and trees do only by chunk; and its largest bars, "
            "135 to 146 GB/s, are above the part of a lane that its rings achieve on a DGX-1",
        ),
    )


def _cause(rows: Sequence[Row], keys: tuple[str, str], *, small: str, large: str) -> Iterator[str]:
    """Yield a sentence for small and for large sizes that are far off."""
    name = "blink" if keys[0].startswith("blink") else "ring"
    far = [row for row in rows if abs(number(row, keys[0]) / number(row, keys[1]) - 1) > _FAR]
    for text, chosen in (
        (small, [row for row in far if number(row, "size_bytes") <= _FLAT_BYTES]),
        (large, [row for row in far if number(row, "size_bytes") > _FLAT_BYTES]),
    ):
        if chosen:
            shown = "; ".join(
                f"{row['size']} {number(row, keys[0]):.3g} for {number(row, keys[1]):.3g}"
                for row in chosen
            )
            yield f"{name}, {shown}: {text}."


_FLAT_BYTES = 64 << 10  # up to here the paper's latencies do not depend on the size
