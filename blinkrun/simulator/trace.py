"""A run as a Chrome trace, for Perfetto or chrome://tracing.

Two processes: ``resources``, what every resource of the topology carries, and ``ranks``, what every
channel does: its reduce steps and the waits between them. Where transfers share a resource each
has a track of its own; slices of one track never overlap, or the viewers would nest them.

References
----------
.. [1] Google, "Trace Event Format": complete events (``X``), metadata events (``M``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from blinkrun.errors import UsageError
from blinkrun.simulator.run import Run, StepTime, Transfer
from blinkrun.topology.graph import Topology

RESOURCES, RANKS = 1, 2  # process ids

_Event = dict[str, Any]


def chrome_trace(run: Run, topology: Topology) -> dict[str, Any]:
    """Return the run's timeline, to be written with `json.dump`.

    Parameters
    ----------
    run : Run
        Simulated with ``trace=True``.
    topology : Topology
        That it ran over.

    Returns
    -------
    dict
        ``traceEvents``, with times in microseconds to the nanosecond; equal runs give equal text.

    Raises
    ------
    UsageError
        If the run kept no transfers although it took some time.
    """
    if run.time_ns and not run.critical:
        raise UsageError("this run kept no timeline; simulate it with trace=True")
    events = [_name(RESOURCES, "resources"), _name(RANKS, "ranks")]
    events += _resource_events(run, topology)
    events += _rank_events(run, topology)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "collective": run.collective.label,
            "program": run.program,
            "size_bytes": run.size_bytes,
            "chunk_bytes": run.chunk_bytes,
            "time_ns": run.time_ns,
            "algbw_gb_per_s": float(run.algbw_gb_per_s),
        },
    }


def _resource_events(run: Run, topology: Topology) -> Iterator[_Event]:
    held: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in run.transfers:
        for name in topology.links[transfer.link].resources:
            held[name].append(transfer)
    track = 0
    for name in sorted(held):
        for lane, transfers in enumerate(_apart(held[name])):
            track += 1
            yield _name(RESOURCES, name if not lane else f"{name} ({lane + 1})", track)
            for transfer in transfers:
                yield _transfer_event(transfer, topology, track)


def _apart(transfers: list[Transfer]) -> list[list[Transfer]]:
    """Return them in as few rows as have no overlaps; they come by start."""
    rows: list[list[Transfer]] = []
    for transfer in transfers:
        for row in rows:
            if row[-1].end_ns <= transfer.start_ns:
                row.append(transfer)
                break
        else:
            rows.append([transfer])
    return rows


def _transfer_event(transfer: Transfer, topology: Topology, track: int) -> _Event:
    src, dst = (topology.devices[rank] for rank in (transfer.src, transfer.dst))
    args = {
        "bytes": transfer.size_bytes,
        "kind": topology.links[transfer.link].kind.value,
        "rank": transfer.rank,
        "channel": transfer.channel,
        "chunk": transfer.chunk,
    }
    span = (transfer.start_ns, transfer.end_ns)
    return _slice(f"{src}->{dst}", (RESOURCES, track), span, args)


def _rank_events(run: Run, topology: Topology) -> Iterator[_Event]:
    by_channel: dict[tuple[int, bool, int], list[StepTime]] = defaultdict(list)
    for step in run.steps:
        by_channel[step.rank, not step.is_prologue, step.channel].append(step)
    for track, key in enumerate(sorted(by_channel), start=1):
        rank, is_channel, number = key
        what = "channel" if is_channel else "prologue"
        device = topology.devices[rank]
        yield _name(RANKS, f"rank {rank} (device {device}) {what} {number}", track)
        yield from _channel_events(by_channel[key], track)


def _channel_events(steps: list[StepTime], track: int) -> Iterator[_Event]:
    """Yield a channel's steps and what it waits between them."""
    free_ns = steps[0].begin_ns
    for step in steps:
        if step.begin_ns > free_ns:
            span = (free_ns, step.begin_ns)
            yield _slice("wait", (RANKS, track), span, {"chunk": step.chunk})
        args = {
            "chunk": step.chunk,
            "start_ns": step.move_ns - step.begin_ns,
            "transfer_ns": step.land_ns - step.move_ns,
            "latency_ns": step.end_ns - step.land_ns,
        }
        yield _slice(f"step {step.step}", (RANKS, track), (step.begin_ns, step.end_ns), args)
        free_ns = step.end_ns


def _slice(name: str, place: tuple[int, int], span: tuple[int, int], args: _Event) -> _Event:
    """Return something that takes time; `place` is process and track."""
    (process, track), (start_ns, end_ns) = place, span
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": args,
    }


def _name(process: int, name: str, track: int | None = None) -> _Event:
    """Return what names a process, or a track of it."""
    if track is None:
        return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    event = {"ph": "M", "name": "thread_name", "pid": process, "tid": track}
    return event | {"args": {"name": name}}
