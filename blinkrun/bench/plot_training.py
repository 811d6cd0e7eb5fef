"""A picture of samples a second, one bar for each way to train."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, OTHERS = "#1f5fbf", "#6b7683"


def draw_training(launches: Sequence[Mapping[str, Any]], path: Path, note: str = "") -> None:
    """Write the picture of `launches`, which have the form of ``--json``, to `path`.

    A bar is the median over the launches' medians; its line goes from the least to the most round.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra; no window is opened)

    models = launches[0]["models"]
    figure = Figure(figsize=(9, 0.6 + 2.9 * len(models)), layout="constrained")
    rows = figure.subplots(len(models), squeeze=False)[:, 0]
    for axes, model in zip(rows, models, strict=True):
        _bars(axes, [launch["models"][model]["samples_per_s"] for launch in launches])
        megabytes = models[model]["gradient_bytes"] / 1e6
        axes.set_title(f"{model}, {megabytes:.1f} MB of gradients", loc="left", fontsize=10)
    rows[-1].set_xlabel("samples a second, all ranks together")
    what = {"tf": "TensorFlow", None: "torch"}[launches[0].get("framework")]
    figure.suptitle(f"Training, {what}, {launches[0]['ranks']} ranks\n{note}".rstrip(), fontsize=11)
    figure.savefig(path, dpi=120)


def _bars(axes: Any, launches: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    names = list(launches[0])
    rates = [statistics.median(launch[name]["median"] for launch in launches) for name in names]
    below = [
        rate - min(launch[name]["min"] for launch in launches)
        for name, rate in zip(names, rates, strict=True)
    ]
    above = [
        max(launch[name]["max"] for launch in launches) - rate
        for name, rate in zip(names, rates, strict=True)
    ]
    colors = [OURS if name.startswith("blinkrun") else OTHERS for name in names]
    axes.barh(names, rates, xerr=(below, above), color=colors, ecolor="#222222", capsize=2)
    for row, rate in enumerate(rates):
        axes.text(0, row, f"  {rate:.0f}", va="center", color="white", fontweight="bold")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
