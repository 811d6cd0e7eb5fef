"""A plan as text, made of what ``plan --json`` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from blinkrun.cli.figures import (
    format_bytes,
    format_gpus,
    format_rate,
    format_seconds,
    resource_names,
)
from blinkrun.topology.render import align

_WIDTH = 100  # of lines that can be wrapped
KINDS = {"nvlink": "NVLink", "xgmi": "xGMI", "pcie": "PCIe", "shm": "shared memory"}


def plan_text(report: Mapping[str, Any]) -> str:
    """Return the whole plan for people."""
    parts = [_head(report), _trees(report), _resources(report), _times(report)]
    if "hybrid" in report:
        parts.append(_hybrid(report))
    return "\n\n".join(parts) + "\n"


def headline(report: Mapping[str, Any]) -> str:
    """Return what is planned: the collective, the machine, the GPUs.

    >>> headline({"collective": "broadcast", "machine": "m", "devices": [0, 1], "root": 1,
    ...     "relays": [2], "what": "GPU"})
    'broadcast on m, GPUs 0,1, root 1, relays 2'
    """
    words = [f"{report['collective']} on {report['machine']}"]
    words.append(f"{report['what']}s {format_gpus(report['devices'])}")
    if report["root"] is not None:
        words.append(f"root {report['root']}")
    if report["relays"]:
        words.append(f"relays {format_gpus(report['relays'])}")
    return ", ".join(words)


def _head(report: Mapping[str, Any]) -> str:
    loss = (
        f", loss {float(100 * Fraction(report['loss'])):g} %"
        if report["method"] != "onehop"
        else ""
    )
    lines = [f"{headline(report)} (links {report['links']}, method {report['method']}{loss})"]
    rows = [("rate", _amount(report, "rate")), ("bound", _amount(report, "bound"))]
    rows.append(("proof", report["certificate"]["why"]))
    rows.append(("rings", _rings(report)))
    for name, text in rows:
        lines += textwrap.wrap(
            f"{name:<7}{text}", _WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False
        )
    return "\n".join(lines)


def _amount(report: Mapping[str, Any], key: str) -> str:
    """Return a rate in GB/s, in lanes too where those are counted."""
    text = f"{format_rate(report[f'{key}_gb_per_s'])} GB/s"
    if report["unit"] == "lane":
        exact = report[f"{key}_exact"]
        lanes = "lane" if exact == "1" else "lanes"
        text += f" = {exact} {lanes} of {format_rate(report['unit_gb_per_s'])} GB/s"
    return text


def _rings(report: Mapping[str, Any]) -> str:
    ring = report["ring"]
    if not ring["rings"]:
        return "none: these links close no ring"
    many = "s" if ring["rings"] > 1 else ""
    over = KINDS.get(ring["kind"], ring["kind"])
    least = "" if ring["is_exact"] else " or a little more"
    return (
        f"a ring library gets {format_rate(ring['rate_gb_per_s'])} GB/s{least} from"
        f" {ring['rings']} ring{many} over {over}; this plan is {format_rate(ring['ratio'])} x that"
    )


def _trees(report: Mapping[str, Any]) -> str:
    rows = [["tree", "GB/s", "share", "root", "depth", "edges"]]
    for number, tree in enumerate(report["trees"], start=1):
        share = 100 * tree["rate_gb_per_s"] / report["rate_gb_per_s"]
        rows.append(
            [
                str(number),
                format_rate(tree["rate_gb_per_s"]),
                f"{share:.3g} %",
                str(tree["root"]),
                str(tree["depth"]),
                edges_text(tree["edges"], report["collective"]),
            ]
        )
    return align(rows, right=range(5))


def edges_text(edges: Sequence[Sequence[Any]], collective: str) -> str:
    """Return a tree's edges, those of a node together, and what they run over.

    >>> edges_text([[0, 1, "nvlink"], [0, 2, "nvlink"], [2, 3, "pcie"]], "allreduce")
    '0<>1,2 nvlink; 2<>3 pcie'
    >>> edges_text([[1, 0, "nvlink"], [2, 0, "nvlink"]], "reduce")
    '1,2>0 nvlink'
    """
    upwards = collective in ("reduce", "reducescatter")
    mark = "<>" if collective == "allreduce" else ">"
    groups: dict[tuple[int, str], list[int]] = {}
    for src, dst, kind in edges:
        near, far = (dst, src) if upwards else (src, dst)
        groups.setdefault((near, kind), []).append(far)
    texts: list[tuple[str, str]] = []
    for (near, kind), far in groups.items():
        others = format_gpus(sorted(far))
        ends = (others, str(near)) if upwards else (str(near), others)
        texts.append((mark.join(ends), kind))
    kinds = {kind for _, kind in texts}
    if len(kinds) == 1:
        return f"{' '.join(text for text, _ in texts)} {kinds.pop()}"
    return "; ".join(f"{text} {kind}" for text, kind in texts)


def _resources(report: Mapping[str, Any]) -> str:
    """Return the use of every resource, those with the same numbers together, fullest first."""
    groups: dict[tuple[float, float, str], list[str]] = {}
    for name, use in report["resources"].items():
        used, capacity = use["used_gb_per_s"], use["capacity_gb_per_s"]
        groups.setdefault((used, capacity, re.sub(r"[0-9]+", "#", name)), []).append(name)
    rows = [["used", "of GB/s", "%", "resource"]]
    order = sorted(groups.items(), key=lambda item: -item[0][0] / item[0][1])
    for (used, capacity, _), members in order:
        percent = f"{100 * used / capacity:.0f}"
        first, *more = textwrap.wrap(resource_names(members), _WIDTH - 24)
        rows.append([format_rate(used), format_rate(capacity), percent, first])
        rows += [["", "", "", line] for line in more]
    return align(rows, right=range(3))


def _times(report: Mapping[str, Any]) -> str:
    rows = [["size", "time", "GB/s", "rings", "trees"]]
    for row in report["times"]:
        ring = row["ring_seconds"]
        rows.append(
            [
                format_bytes(row["bytes"]),
                format_seconds(row["seconds"]),
                format_rate(row["algbw_gb_per_s"]),
                "-" if ring is None else format_seconds(ring),
                row["trees"],
            ]
        )
    return align(rows, right=range(4))


def _hybrid(report: Mapping[str, Any]) -> str:
    """Return the paper's split of the data over NVLink and PCIe."""
    rows = [["hybrid", "time", "GB/s", "over PCIe"]]
    for row in report["hybrid"]:
        rows.append(
            [
                format_bytes(row["bytes"]),
                format_seconds(row["seconds"]),
                format_rate(row["bytes"] / row["seconds"] / 1e9),
                f"{100 * row['pcie_bytes'] / row['bytes']:.3g} %",
            ]
        )
    return align(rows, right=range(4))
