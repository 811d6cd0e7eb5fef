"""``blinkrun plan --advise N``: which GPUs to take, the fastest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blinkrun.cli.figures import format_gpus, format_rate
from blinkrun.cli.plan_options import PlanOptions
from blinkrun.cli.planning import links_of
from blinkrun.cli.subject import Subject, check_ranks
from blinkrun.errors import UsageError
from blinkrun.planner.advise import Group, advise
from blinkrun.planner.packing import Flow
from blinkrun.planner.report import LANE
from blinkrun.topology.model import LinkSet
from blinkrun.topology.render import align

SCHEMA_VERSION = 1
_LISTED = 6  # allocations of a group that the table names
_MB_PER_GB = 1000


def advice_of(subject: Subject, options: PlanOptions) -> dict[str, Any]:
    """Return the ranking as ``--json`` prints it.

    Raises
    ------
    UsageError
        If there are fewer free GPUs than wanted, or one does not exist.
    """
    count = options.advise or 0
    free = subject.usual if options.free is None else options.free
    check_ranks(subject, "--free", free)
    if count > len(free):
        raise UsageError(f"--advise {count}: only {len(free)} GPUs are free")
    whole = subject.topology(LinkSet(options.links or LinkSet.ALL))
    unit = subject.lane_mb_per_s if whole.unit == LANE else 1
    lane = None if whole.unit == LANE else subject.lane_mb_per_s or None
    groups = advise(whole, free, count, Flow(options.collective), options.root, lane=lane)
    return {
        "version": SCHEMA_VERSION,
        "machine": subject.name,
        "what": subject.what,
        "collective": options.collective,
        "links": options.links or links_of(link.kind for link in whole.links),
        "free": list(free),
        "count": count,
        "root": options.root,
        "groups": [_group(group, unit) for group in groups],
    }


def advice_text(advice: Mapping[str, Any]) -> str:
    """Return the ranking for people."""
    what = f"{advice['what']}s"
    head = (
        f"{advice['collective']} on {advice['machine']}: {advice['count']} of {what} "
        f"{format_gpus(advice['free'])}, the fastest first (links {advice['links']})"
    )
    rows = [["GB/s", "rings", "ratio", "alike", what]]
    for group in advice["groups"]:
        ratio = group["ratio"]
        listed = " | ".join(format_gpus(gpus) for gpus in group["allocations"][:_LISTED])
        more = group["count"] - min(_LISTED, len(group["allocations"]))
        rows.append(
            [
                format_rate(group["rate_gb_per_s"]),
                format_rate(group["ring_gb_per_s"]),
                "-" if ratio is None else format_rate(ratio),
                str(group["count"]),
                listed + (f" | and {more} more" if more else ""),
            ]
        )
    foot = "" if advice["links"] != "nvlink" else "\nrings: over these links alone\n"
    return f"{head}\n\n{align(rows, right=range(4))}\n{foot}"


def _group(group: Group, unit_mb_per_s: int) -> dict[str, Any]:
    return {
        "rate_gb_per_s": float(group.rate * unit_mb_per_s / _MB_PER_GB),
        "ring_gb_per_s": float(group.ring_rate * unit_mb_per_s / _MB_PER_GB),
        "ratio": None if group.ratio is None else float(group.ratio),
        "count": group.count,
        "allocations": [list(allocation) for allocation in group.allocations],
        "why": group.why,
    }
