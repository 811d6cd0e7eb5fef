"""The table of nccl-tests with a group of columns for each peer, and the same as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from blinkrun.bench.measure import Row
from blinkrun.bench.memory import WAYS
from blinkrun.bench.options import Options
from blinkrun.version import __version__

OURS = "blinkrun"


def parameter_lines(options: Options, ranks: Sequence[int], notes: Sequence[str] = ()) -> list[str]:
    """Return what was asked for, as lines that begin with ``#``; `ranks` are those of each host."""
    calls = str(options.calls) if options.calls else "by time"
    hosts = f" on {len(ranks)} hosts ({' + '.join(map(str, ranks))})," if len(ranks) > 1 else ""
    lines = [
        f"blinkrun {__version__} bench: {options.collective}, {sum(ranks)} rank(s){hosts}"
        f" on {os.cpu_count()} core(s), {platform.node()}",
        f"dtype {options.dtype.label}, op {options.op.name.lower()}, root {options.root},"
        f" buffers {options.buffers}, against {', '.join(options.against) or 'none'}",
        f"calls {calls}, warm-up {options.warmup}, rounds {options.rounds};"
        " time: median over rounds of the slowest rank's mean",
        "GB/s = 10^9 bytes/s; x: the peer's time over blinkrun's",
        *notes,
    ]
    return [f"# {line}" for line in lines]


def header_lines(options: Options) -> list[str]:
    """Return the names and the units of the columns."""
    names = f"{'size':>12}{'count':>13}{'type':>10}{'redop':>8}{'root':>6}"
    names += f"{'time':>12}{'algbw':>9}{'busbw':>9}{'#wrong':>8}"
    units = f"{'(B)':>12}{'(elements)':>13}{'':>10}{'':>8}{'':>6}"
    units += f"{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}"
    for peer in options.against:
        names += f"  |{peer + ' time':>12}{'algbw':>9}{'x':>8}"
        units += f"  |{'(us)':>12}{'(GB/s)':>9}{'':>8}"
    if options.memory:
        names += f"  |{'memory':>9}{'of it':>7}"
        units += f"  |{'(GB/s)':>9}{'(%)':>7}"
    return [f"#{names}", f"#{units}"]


def row_line(row: Row, options: Options) -> str:
    """Return the line of one size."""
    work, time_us = row.work, row.time_us[OURS]
    line = f" {work.size_bytes:>12}{work.count:>13}{work.dtype.label:>10}{work.op_label:>8}"
    line += f"{work.root_label:>6}{format_us(time_us):>12}"
    line += f"{work.algbw(time_us):>9.2f}{work.busbw(time_us):>9.2f}{row.wrong:>8}"
    for peer in options.against:
        if peer in row.time_us:
            theirs = row.time_us[peer]
            line += f"  |{format_us(theirs):>12}{work.algbw(theirs):>9.2f}{theirs / time_us:>8.2f}"
        else:
            line += f"  |{'-':>12}{'-':>9}{'-':>8}"
    if options.memory:
        memory_us = memory_time_us(row)
        if memory_us is None:
            line += f"  |{'-':>9}{'-':>7}"
        else:
            line += f"  |{work.algbw(memory_us):>9.2f}{100 * memory_us / time_us:>7.0f}"
    return line


def closing_lines(rows: Sequence[Row]) -> list[str]:
    """Return the sums under the table."""
    wrong = sum(row.wrong for row in rows)
    bandwidths = [row.work.busbw(row.time_us[OURS]) for row in rows]
    return [
        f"# Wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth: {sum(bandwidths) / len(bandwidths):.4f} GB/s",
    ]


def memory_time_us(row: Row) -> float | None:
    """Return how long the machine takes to read and write the bytes that the call must move."""
    times = [row.time_us[way] for way in WAYS if way in row.time_us]
    return min(times) if times else None


def as_json(rows: Sequence[Row], options: Options, ranks: Sequence[int]) -> dict[str, Any]:
    """Return what ``--json`` writes; `ranks` are those of each host."""
    return {
        "ranks": sum(ranks),
        "hosts": list(ranks),
        "collective": options.collective,
        "dtype": options.dtype.label,
        "buffers": options.buffers,
        "rows": [_row_as_json(row, options) for row in rows],
    }


def _row_as_json(row: Row, options: Options) -> dict[str, Any]:
    work, time_us = row.work, row.time_us[OURS]
    peers = [peer for peer in options.against if peer in row.time_us]
    result: dict[str, Any] = {
        "size_bytes": work.size_bytes,
        "time_us": time_us,
        "algbw_gb_per_s": work.algbw(time_us),
        "busbw_gb_per_s": work.busbw(time_us),
        **_cores(row, OURS),
        "wrong": row.wrong,
        "peers": {peer: _peer_as_json(row, peer) for peer in peers},
    }
    memory_us = memory_time_us(row)
    if memory_us is not None:
        result["memory"] = {"time_us": memory_us, "share": memory_us / time_us}
    return result


def _peer_as_json(row: Row, peer: str) -> dict[str, float]:
    time_us = row.time_us[peer]
    return {
        "time_us": time_us,
        "algbw_gb_per_s": row.work.algbw(time_us),
        **_cores(row, peer),
    }


def _cores(row: Row, name: str) -> dict[str, float]:
    return {"cores": row.cores[name]} if name in row.cores else {}


def format_us(time_us: float) -> str:
    """Return a time in microseconds, with decimals where they say something."""
    return f"{time_us:.2f}" if time_us < 1000 else f"{time_us:.0f}"
