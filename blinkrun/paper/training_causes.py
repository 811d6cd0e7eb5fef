"""Why rows of figure 17 differ from the paper's: every row that is far off, under its causes.

The rules are of the data alone: which rings run, what PCIe adds, what the paper's own figures 5
and 16 say of the same GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from blinkrun.paper import data
from blinkrun.paper.training_steps import Trained, bars_of
from blinkrun.planner.rings import RingKind

FAR = Fraction(15, 100)


def causes_of(rows: Sequence[Trained]) -> tuple[str, ...]:
    """Return a sentence for every cause that explains a row, with the rows that it explains."""
    found: dict[str, list[str]] = {}
    for yields in (_of_iterations, _of_communication, _of_shares):
        for row in rows:
            for cause in yields(row):
                found.setdefault(cause, []).append(f"{row.configuration} {row.model.title}")
    return tuple(
        f"{cause} ({len(named)} of {len(rows)} rows: {'; '.join(named)})."
        for cause, named in found.items()
    )


def is_far(saved_pct: Fraction, paper_pct: Fraction) -> bool:
    """Whether what is left of a time differs from what the paper leaves by more than 15 %.

    >>> is_far(Fraction(40), Fraction(34)), is_far(Fraction(40), Fraction(16))
    (False, True)
    """
    return abs((100 - saved_pct) / (100 - paper_pct) - 1) > FAR


def _of_communication(row: Trained) -> Iterator[str]:
    """Yield why our communication time is not the paper's."""
    ours, paper = row.comm_saved_pct, row.paper_comm_pct
    if paper is None or not is_far(ours, paper):
        return
    if not is_far(row.nvlink_comm_saved_pct, paper):
        yield (
            "Communication: PCIe carries a part beside NVLink; over NVLink alone what is left is "
            "within 15 % of the paper's"
        )
    elif ours < paper and is_far(row.bars_comm_saved_pct, paper):
        yield (
            "Communication: the paper saves more than its own allreduce bars (figure 16) give for "
            "these GPUs, so its time has more in it than allreduces"
        )
    elif ours < paper:
        nccl = Fraction(bars_of(row.gpus)["allreduce_nccl_gb_s"])
        faster = Fraction(data.GOAL_BYTES, row.tables.ring(data.GOAL_BYTES)) > nccl
        yield "Communication: the simulated " + (
            "rings are faster here than the paper's NCCL (figure 16)"
            if faster
            else "trees are slower here than the paper's Blink (figure 16)"
        )
    elif is_far(row.bars_comm_saved_pct, paper):
        yield (
            "Communication: the paper saves less in training than its own allreduce bars (figure "
            "16) give for these GPUs; the simulated rows go with those bars and with PCIe beside "
            "NVLink"
        )
    else:
        yield (
            "Communication: the paper's packing and kernels reach less on these lanes (figure 16 "
            "as well) than the exact packing, and PCIe carries a part beside NVLink"
        )


def _of_iterations(row: Trained) -> Iterator[str]:
    """Yield why our iteration time is not the paper's."""
    paper = row.paper_iteration_pct
    if paper is None or not is_far(row.iteration_saved_pct, paper):
        return
    side = "larger" if row.iteration_saved_pct > paper else "smaller"
    yield (
        f"Iterations: rings have a {side} share of a simulated iteration than of the paper's, "
        "whose batches and compute times are not known"
    )


def _of_shares(row: Trained) -> Iterator[str]:
    """Yield why the rings' share of an iteration is not that of figure 5."""
    if row.share_fits:
        return
    low, _ = row.paper_share_pct
    over_pcie = row.tables.ring_kind is RingKind.PCIE
    if row.share_pct < low and len(row.gpus) > 6:
        yield (
            "Share: figure 5 has larger shares on 7 and 8 GPUs than on 6, though two and three "
            "rings run there and allreduces get faster (figure 16): what grows with the number of "
            "processes is not simulated"
        )
    elif row.share_pct < low:
        yield (
            "Share: with rings over NVLink an allreduce of a bucket is short, and what a call "
            "costs a training script beside it is not simulated"
        )
    elif over_pcie:
        yield (
            "Share: above figure 5 with rings over PCIe, as if this model computed for longer there"
        )
    else:
        yield "Share: above figure 5 with rings over NVLink"
