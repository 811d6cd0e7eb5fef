"""A histogram of how many times as fast as rings the plans are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from blinkrun.planner.packing import Flow

COLORS = {Flow.BOTH: "#1f5fbf", Flow.DOWN: "#c2571a"}
_EDGES = (1, 1.001, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 1000)  # of the bins; the first: equal
_LABELS = ("equal", "to 1.1", "1.25", "1.5", "2", "3", "4", "6", "8", "12", "above")


def draw_histogram(ratios: Mapping[Flow, Sequence[tuple[float, int]]], path: Path) -> None:
    """Write the picture of `ratios`, and how many allocations have each, to `path`."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra; no window is opened
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(ratios)
    for number, (flow, values) in enumerate(ratios.items()):
        counts = in_bins(values)
        places = [at + (number - (len(ratios) - 1) / 2) * width for at in range(len(counts))]
        bars = axes.bar(places, counts, width, label=str(flow), color=COLORS[flow])
        axes.bar_label(bars, [_short(count) for count in counts], fontsize=7)
    axes.set_xticks(range(len(_LABELS)), _LABELS)
    axes.set_xlabel("rate of the plan over the rate of rings")
    axes.set_ylabel("allocations of 2 to 8 GPUs")
    axes.set_yscale("symlog")
    axes.set_ylim(0, 3 * max(axes.get_ylim()[1], 1))
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    with mpl.rc_context({"svg.hashsalt": "blinkrun", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _short(count: int) -> str:
    """Return a number that fits over its bar.

    >>> _short(0), _short(470), _short(80_791)
    ('', '470', '81k')
    """
    return f"{count / 1000:.0f}k" if count >= 10_000 else str(count or "")


def in_bins(counted: Sequence[tuple[float, int]]) -> list[int]:
    """Return how many values are in each bin; the lower edge belongs to it.

    >>> in_bins([(1.0, 2), (1.05, 1), (5.0, 1), (90.0, 1)])
    [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    """
    counts = [0] * len(_LABELS)
    for value, count in counted:
        counts[next(at for at, edge in enumerate(_EDGES[1:]) if value < edge)] += count
    return counts
