"""Figure 17: training on a DGX-1V, iterations and communication with rings and with trees.

A step computes (`training_compute`), and its gradients are reduced bucket by bucket
(`simulator.overlap`), each allreduce as long as the simulator says (`training_times`). The paper's
setting is not known; the one taken here follows from figure 5 and is the same for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blinkrun.paper import data
from blinkrun.paper.figure import Figure
from blinkrun.paper.models import MODELS
from blinkrun.paper.training_causes import causes_of
from blinkrun.paper.training_hosts import fig19a
from blinkrun.paper.training_report import (
    COLUMNS,
    HOW,
    PANELS,
    goals_of,
    row_of,
    says_of,
    summary_of,
)
from blinkrun.paper.training_steps import gpus_in, trained
from blinkrun.paper.training_times import Tables, one_host_tables

__all__ = ["fig17", "fig19a"]

__all__ = ["fig17", "fig19a"]

AllTables = Callable[[Sequence[tuple[int, ...]]], Sequence[Tables]]


def fig17(tables: AllTables = one_host_tables) -> Figure:
    """Return figure 17, with figure 5's shares beside ours.

    Parameters
    ----------
    tables : callable, optional
        Gives the times of allreduces on each of some sets of GPUs; they are simulated if not
        given.

    Returns
    -------
    Figure
        A row per configuration and model, in the order of the paper's bars.
    """
    papers = data.rows("fig17_training_dgx1v")
    sets = [gpus_in(paper["configuration"]) for paper in papers]
    rows = [
        trained(paper, gpus, model, times)
        for paper, gpus, times in zip(papers, sets, tables(sets), strict=True)
        for model in MODELS
    ]
    summary = summary_of(rows)
    return Figure(
        name="fig17",
        title="Training on a DGX-1V",
        rows=tuple(row_of(one) for one in rows),
        columns=COLUMNS,
        panels=PANELS,
        summary=summary,
        goals=goals_of(summary),
        says=says_of(summary),
        causes=causes_of(rows),
        how=HOW,
    )
