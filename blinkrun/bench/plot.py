"""A picture of algbw over size, one line a library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blinkrun.units import format_size

COLORS = {
    "blinkrun": "#1f5fbf",
    "mpi": "#c2571a",
    "mpich": "#d9a441",
    "gloo": "#4d8f4d",
    "ring": "#b03030",
    "horovod": "#7a4fa3",
}
MARKERS = {"blinkrun": "o", "mpi": "s", "mpich": "P", "gloo": "^", "ring": "D", "horovod": "v"}


def draw(result: Mapping[str, Any], path: Path, note: str = "") -> None:
    """Write the picture of `result`, which has the form of ``--json``, to `path`.

    Every point of blinkrun carries its ratio to the fastest peer there.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra; no window is opened)

    rows = result["rows"]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    _line(axes, "blinkrun", [(row["size_bytes"], row["algbw_gb_per_s"]) for row in rows])
    for peer in dict.fromkeys(name for row in rows for name in row["peers"]):
        points = [
            (row["size_bytes"], row["peers"][peer]["algbw_gb_per_s"])
            for row in rows
            if peer in row["peers"]
        ]
        _line(axes, peer, points)
    _ratios(axes, rows)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.margins(y=0.12)
    sizes = [row["size_bytes"] for row in rows]
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=30, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("size")
    axes.set_ylabel("algbw (GB/s)")
    title = f"{result['collective']}, {result['dtype']}, {result['ranks']} ranks"
    hosts = result.get("hosts", ())
    where = f" on {len(hosts)} hosts ({' + '.join(map(str, hosts))})" if len(hosts) > 1 else ""
    axes.set_title(f"{title}{where}, {result['buffers']} buffers\n{note}".rstrip())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def _line(axes: Any, name: str, points: list[tuple[int, float]]) -> None:
    sizes, bandwidths = [point[0] for point in points], [point[1] for point in points]
    axes.plot(sizes, bandwidths, label=name, color=COLORS.get(name), marker=MARKERS.get(name))


def _ratios(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    for row in rows:
        if not row["peers"]:
            continue
        best = max(peer["algbw_gb_per_s"] for peer in row["peers"].values())
        axes.annotate(
            f"{row['algbw_gb_per_s'] / best:.1f}x",
            (row["size_bytes"], row["algbw_gb_per_s"]),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=COLORS["blinkrun"],
        )
