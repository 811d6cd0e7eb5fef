"""The table of an emulated machine: nccl-tests' columns, what the simulator says, and the ring."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.bench.emulate_job import RING, Call, EmulatedJob, Peer, Rings
from blinkrun.bench.emulate_options import EmulateOptions
from blinkrun.bench.table import OURS, format_us
from blinkrun.bench.work import Work
from blinkrun.cli.figures import format_gpus
from blinkrun.units import format_size
from blinkrun.version import __version__


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one program: microseconds of a call, wrong elements of all ranks."""

    time_us: float
    wrong: int


@dataclass(frozen=True, slots=True)
class EmulatedRow:
    """A size: what was called, and what was measured by the name of the program."""

    work: Work
    call: Call
    measured: Mapping[str, Measured]

    @property
    def wrong(self) -> int:
        """Wrong elements of all programs together."""
        return sum(measured.wrong for measured in self.measured.values())

    def simulated_us(self, name: str) -> float:
        """Return the time that the simulator predicts, in microseconds."""
        if name == OURS:
            return self.call.simulated_ns / 1e3
        rings = self.call.rings
        return rings.simulated_ns / 1e3 if rings is not None else 0.0

    def ratio(self, name: str) -> float:
        """Return the measured time over the simulated one."""
        return self.measured[name].time_us / self.simulated_us(name)


def parameter_lines(job: EmulatedJob, options: EmulateOptions) -> list[str]:
    """Return what is emulated and how, as lines that begin with ``#``."""
    gpus = format_gpus(job.topology.devices)
    calls = str(options.calls) if options.calls else "one a round"
    root = f", root GPU {job.topology.devices[job.root]}," if job.collective.is_rooted else ""
    lines = [
        f"blinkrun {__version__} bench: {job.collective.label}{root} on an emulated"
        f" {job.topology.name}, GPUs {gpus}, links {job.links}, scale {job.scale}",
        f"{job.size} ranks on {os.cpu_count()} core(s), {platform.node()}; dtype float32, op sum,"
        f" calls {calls}, rounds {options.rounds}; time: median over rounds of the slowest rank",
        *_tree_lines(job),
        *_ring_lines(job),
        f"GB/s = 10^9 bytes/s of the machine: bytes x {job.scale} / time; e/s: emulated over"
        " simulated time" + ("; x: the ring's time over blinkrun's" if job.peer else ""),
    ]
    return [f"# {line}" for line in lines]


def _tree_lines(job: EmulatedJob) -> list[str]:
    return _by_sizes("trees", [(call.size_bytes, _trees_text(call)) for call in job.calls])


def _ring_lines(job: EmulatedJob) -> list[str]:
    if job.peer is None:
        return []
    texts = [
        (call.size_bytes, _rings_text(call.rings, job.peer)) for call in job.calls if call.rings
    ]
    return _by_sizes("ring", texts)


def _by_sizes(head: str, texts: Sequence[tuple[int, str]]) -> list[str]:
    """Return one line where all sizes have the same text, else one for each text."""
    sizes: dict[str, list[str]] = {}
    for size, text in texts:
        sizes.setdefault(text, []).append(format_size(size))
    if len(sizes) == 1:
        return [f"{head}: {text}" for text in sizes]
    return [f"{head}, {', '.join(those)}: {text}" for text, those in sizes.items()]


def _trees_text(call: Call) -> str:
    packing, choice = call.choice.packing, call.choice
    number = len(packing.trees)
    share = 100 * packing.rate / packing.bound if packing.bound else 100
    text = f"{number} tree{'s' if number > 1 else ''} of depth {packing.depth} ({choice.trees})"
    text += f", {choice.channels_per_tree} channel{'s' if choice.channels_per_tree > 1 else ''}"
    text += f"{' each' if number > 1 else ''}, {_chunk_text(choice.chunk_bytes)}"
    return f"{text}, {float(packing.rate / 1000):.4g} GB/s, {float(share):.4g} % of the bound"


def _rings_text(rings: Rings, peer: Peer) -> str:
    what = f"{peer.num_rings} ring{'s' if peer.num_rings > 1 else ''}"
    what = what if rings.name == RING else rings.name
    return f"{what} over {peer.kind}, {_chunk_text(rings.chunk_bytes)}"


def _chunk_text(chunk_bytes: int) -> str:
    return f"chunks of {format_size(chunk_bytes)}" if chunk_bytes else "parts uncut"


def header_lines(job: EmulatedJob) -> list[str]:
    """Return the names and the units of the columns."""
    names = f"{'size':>12}{'count':>12}{'root':>6}"
    names += f"{'time':>11}{'algbw':>9}{'busbw':>9}{'simulated':>11}{'e/s':>7}{'#wrong':>8}"
    units = f"{'(B)':>12}{'(elements)':>12}{'':>6}"
    units += f"{'(us)':>11}{'(GB/s)':>9}{'(GB/s)':>9}{'(us)':>11}{'':>7}{'':>8}"
    if job.peer is not None:
        names += f"  |{'ring time':>11}{'algbw':>9}{'simulated':>11}{'e/s':>7}{'#wrong':>8}{'x':>8}"
        units += f"  |{'(us)':>11}{'(GB/s)':>9}{'(us)':>11}{'':>7}{'':>8}{'':>8}"
    return [f"#{names}", f"#{units}"]


def row_line(row: EmulatedRow, job: EmulatedJob) -> str:
    """Return the line of one size."""
    work, ours = row.work, row.measured[OURS]
    line = (
        f" {work.size_bytes:>12}{work.count:>12}{work.root_label:>6}{format_us(ours.time_us):>11}"
    )
    line += f"{job.scale * work.algbw(ours.time_us):>9.2f}"
    line += f"{job.scale * work.busbw(ours.time_us):>9.2f}"
    line += f"{format_us(row.simulated_us(OURS)):>11}{row.ratio(OURS):>7.3f}{ours.wrong:>8}"
    if RING in row.measured:
        ring = row.measured[RING]
        line += f"  |{format_us(ring.time_us):>11}{job.scale * work.algbw(ring.time_us):>9.2f}"
        line += f"{format_us(row.simulated_us(RING)):>11}{row.ratio(RING):>7.3f}{ring.wrong:>8}"
        line += f"{ring.time_us / ours.time_us:>8.2f}"
    return line


def closing_lines(rows: Sequence[EmulatedRow], job: EmulatedJob) -> list[str]:
    """Return the sums under the table."""
    wrong = sum(row.wrong for row in rows)
    ratios = [row.ratio(name) for row in rows for name in row.measured]
    bandwidths = [job.scale * row.work.busbw(row.measured[OURS].time_us) for row in rows]
    return [
        f"# Wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth: {sum(bandwidths) / len(bandwidths):.4f} GB/s",
        f"# Emulated over simulated time: {min(ratios):.3f} to {max(ratios):.3f}",
    ]


def as_json(rows: Sequence[EmulatedRow], job: EmulatedJob) -> dict[str, Any]:
    """Return what ``--json`` writes: the form of a bench without emulation, and more."""
    return {
        "emulated": {
            "machine": job.topology.name,
            "gpus": list(job.topology.devices),
            "links": job.links,
            "scale": job.scale,
            "root_gpu": job.topology.devices[job.root] if job.collective.is_rooted else None,
        },
        "ranks": job.size,
        "collective": job.collective.label,
        "dtype": "float32",
        "buffers": "arena",
        "rows": [_row_as_json(row, job) for row in rows],
    }


def _row_as_json(row: EmulatedRow, job: EmulatedJob) -> dict[str, Any]:
    choice, packing = row.call.choice, row.call.choice.packing
    trees = {
        "trees": choice.trees,
        "num_trees": len(packing.trees),
        "depth": packing.depth,
        "channels_per_tree": choice.channels_per_tree,
        "chunk_bytes": choice.chunk_bytes,
        "rate_gb_per_s": float(packing.rate / 1000),
        "bound_gb_per_s": float(packing.bound / 1000),
    }
    result = {"size_bytes": row.work.size_bytes, **_way_as_json(row, OURS, job), **trees}
    result["peers"] = {}
    if RING in row.measured and row.call.rings is not None and job.peer is not None:
        result["peers"][RING] = _way_as_json(row, RING, job) | {
            "program": row.call.rings.name,
            "chunk_bytes": row.call.rings.chunk_bytes,
            "kind": job.peer.kind.value,
            "num_rings": job.peer.num_rings,
        }
    return result


def _way_as_json(row: EmulatedRow, name: str, job: EmulatedJob) -> dict[str, Any]:
    measured = row.measured[name]
    return {
        "time_us": measured.time_us,
        "algbw_gb_per_s": job.scale * row.work.algbw(measured.time_us),
        "busbw_gb_per_s": job.scale * row.work.busbw(measured.time_us),
        "wrong": measured.wrong,
        "simulated_us": row.simulated_us(name),
        "simulated_algbw_gb_per_s": job.scale * row.work.algbw(row.simulated_us(name)),
        "emulated_over_simulated": row.ratio(name),
    }
