"""Simulated times as text, made of what ``simulate --json`` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from blinkrun.cli.figures import (
    format_gpus,
    format_rate,
    format_seconds,
    resource_names,
)
from blinkrun.cli.plan_text import KINDS
from blinkrun.topology.render import align
from blinkrun.units import format_size

_WIDTH = 100  # of lines that can be wrapped
_LISTED = 8  # groups of resources
_HOST = re.compile(r"host ([0-9]+) ")


def simulate_text(report: Mapping[str, Any]) -> str:
    """Return all of it for people."""
    return "\n\n".join([_head(report), _rows(report), *_largest(report)]) + "\n"


def headline(report: Mapping[str, Any]) -> str:
    """Return what is simulated: the collective, the machine, the GPUs of every host.

    >>> headline({"collective": "broadcast", "machine": "m", "what": "GPU", "root": 1,
    ...     "hosts": [[0, 1], [0, 1, 2]], "network_gbps": 40})
    'broadcast on 2 hosts of m, GPUs 0,1 / 0-2, root 1, network 40 Gbit/s'
    """
    hosts = report["hosts"]
    where = report["machine"] if len(hosts) == 1 else f"{len(hosts)} hosts of {report['machine']}"
    words = [f"{report['collective']} on {where}", f"{report['what']}s {_gpus(hosts)}"]
    if report["root"] is not None:
        words.append(f"root {report['root']}")
    if report["network_gbps"] is not None:
        words.append(f"network {report['network_gbps']} Gbit/s")
    return ", ".join(words)


def size_text(size_bytes: int) -> str:
    """Return a size, in K and M of 1024 where that is short, else of 1000, else in bytes.

    >>> size_text(1 << 20), size_text(500_000_000), size_text(1536), size_text(1_000_003)
    ('1 MiB', '500 MB', '1536 B', '1000003 B')
    """
    binary = format_size(size_bytes)
    if len(binary) <= len("1000 MiB"):
        return binary
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return f"{size_bytes} B"


def _gpus(hosts: Sequence[Sequence[int]]) -> str:
    """Return the GPUs of every host, or once for all where they are the same on more than two."""
    if len(hosts) > 2 and all(host == hosts[0] for host in hosts):
        return f"{format_gpus(hosts[0])} of each"
    return " / ".join(map(format_gpus, hosts))


def _head(report: Mapping[str, Any]) -> str:
    chosen = f"links {report['links']}, trees {report['trees']}"
    lines = [f"{headline(report)} ({chosen})"]
    lines.append(f"bound  {format_rate(report['bound_gb_per_s'])} GB/s: {report['bound_why']}")
    if report["against"] is not None:
        lines.append(f"rings  {_rings(report)}")
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)
        for line in lines
    )


def _rings(report: Mapping[str, Any]) -> str:
    ring = report["ring"]
    if not ring["rings"]:
        return "none: these links close no ring"
    many = "s" if ring["rings"] > 1 else ""
    over = KINDS.get(ring["kind"], ring["kind"])
    return (
        f"{ring['rings']} ring{many} over {over}, for which the links allow "
        f"{format_rate(ring['rate_gb_per_s'])} GB/s; its kernels reach "
        f"{100 * report['ring_cost']['efficiency']:.3g} % of them"
    )


def _rows(report: Mapping[str, Any]) -> str:
    names = ["size", "time", "algbw", "busbw", "bound", "trees", "depth", "chunk", "channels"]
    if report["against"] is not None:
        names += ["rings: time", "algbw", "x", "what"]
    rows = [names, *(_row(row, report) for row in report["rows"])]
    left = {len(names) - 1} if report["against"] is not None else set()
    return align(rows, right=[at for at in range(len(names)) if at != 5 and at not in left])


def _row(row: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    trees = row["trees"] if not row["num_trees"] else f"{row['num_trees']} {row['trees']}"
    cells = [
        size_text(row["bytes"]),
        format_seconds(row["seconds"]),
        format_rate(row["algbw_gb_per_s"]),
        format_rate(row["busbw_gb_per_s"]),
        f"{format_rate(100 * row['bound_part'])} %",
        trees,
        str(row["depth"]),
        _chunk(row),
        str(row["channels"]),
    ]
    if report["against"] is None:
        return cells
    ring = row["ring"]
    if ring is None:
        return [*cells, "-", "-", "-", "-"]
    return [
        *cells,
        format_seconds(ring["seconds"]),
        format_rate(ring["algbw_gb_per_s"]),
        format_rate(ring["ratio"]),
        ring["name"],
    ]


def _chunk(row: Mapping[str, Any]) -> str:
    return size_text(row["chunk_bytes"]) if row["chunk_bytes"] else "-"


def _largest(report: Mapping[str, Any]) -> list[str]:
    """Return why the largest size takes its time, and what is busiest."""
    largest = report["largest"]
    size = size_text(largest["bytes"])
    lines = [f"critical path of {size}:"]
    for line in largest["critical"]:
        lines += textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return ["\n".join(lines), _resources(largest["resources"])]


def _resources(resources: Mapping[str, Mapping[str, float]]) -> str:
    """Return the busiest resources, those with the same numbers together."""
    groups: dict[tuple[int, float, str], list[str]] = {}
    for name, use in sorted(resources.items(), key=lambda item: (-item[1]["utilisation"], item[0])):
        if use["bytes"]:
            percent = int(100 * use["utilisation"])  # 100 only where it never rests
            key = (percent, use["capacity_gb_per_s"], re.sub(r"[0-9]+", "#", name))
            groups.setdefault(key, []).append(name)
    rows = [["busy %", "GB/s", "resource"]]
    for (percent, capacity, _), members in list(groups.items())[:_LISTED]:
        first, *more = textwrap.wrap(names_of_hosts(members), _WIDTH - 20)
        rows.append([str(percent), format_rate(capacity), first])
        rows += [["", "", line] for line in more]
    text = align(rows, right=range(2))
    left = len(groups) - _LISTED
    return text if left <= 0 else f"{text}\nand {left} less busy"


def names_of_hosts(names: Sequence[str]) -> str:
    """Return names of resources that differ in their numbers only, hosts that are alike together.

    >>> names_of_hosts(["host 0 port 1 in", "host 1 port 1 in"])
    'host 0,1 port 1 in'
    >>> names_of_hosts(["host 0 nvlink 0->1", "host 1 nvlink 2->1", "host 0 nvlink 2->3"])
    'host 0 nvlink 0->1 2->3; host 1 nvlink 2->1'
    """
    of_host: dict[str, list[str]] = {}
    for name in names:
        host = _HOST.match(name)
        of_host.setdefault(host[1] if host else "", []).append(_HOST.sub("", name))
    hosts_of: dict[tuple[str, ...], list[str]] = {}
    for number, own in of_host.items():
        hosts_of.setdefault(tuple(sorted(own)), []).append(number)
    return "; ".join(
        f"host {format_gpus(sorted(map(int, hosts)))} {resource_names(own)}"
        if hosts[0]
        else resource_names(own)
        for own, hosts in hosts_of.items()
    )
