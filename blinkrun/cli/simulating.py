"""From options and a machine to simulated times, with all that is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinkrun.cli.planning import links_of
from blinkrun.cli.simulate_many import ManyHosts
from blinkrun.cli.simulate_options import SimulateOptions
from blinkrun.cli.simulate_scene import Scene, scene_of
from blinkrun.cli.simulate_search import Found, Search
from blinkrun.cli.subject import Subject
from blinkrun.errors import UsageError
from blinkrun.planner.rings import RingPeer
from blinkrun.simulator.cost import Cost
from blinkrun.simulator.explain import critical_text
from blinkrun.simulator.run import Run
from blinkrun.simulator.trace import chrome_trace
from blinkrun.types import Collective

SCHEMA_VERSION = 1  # raised when a key goes or changes its meaning
ITEMSIZE = 4  # of float32
_MB_PER_GB = 1000

Progress = Callable[[int, int], None]  # sizes done, sizes in all


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation gives.

    Attributes
    ----------
    report : dict
        As ``simulate --json`` prints it.
    traced : tuple of Found
        The largest size once more, with all transfers: trees and, if they are traced too, rings.
    """

    report: dict[str, Any]
    traced: tuple[Found, ...]


def simulate_all(subject: Subject, options: SimulateOptions, progress: Progress) -> Simulated:
    """Return the times of all sizes.

    Raises
    ------
    UsageError
        If the options do not fit the machine, or a size is too small.
    """
    scene = scene_of(subject, options)
    sizes = fitted(scene, options)
    search = ManyHosts(scene, options) if scene.is_many else Search(scene, options)
    rows: list[tuple[Found, Found | None]] = []
    for number, size in enumerate(sizes):
        progress(number, len(sizes))
        rows.append((search.fastest(size), search.ring(size) if options.against else None))
    ours, theirs = rows[-1]
    traced = [search.again(ours)]
    if theirs is not None and options.trace is not None:
        traced.append(search.again(theirs))
    report = _head(subject, scene, options) | {
        "bound_gb_per_s": _gb_per_s(search.bound.mb_per_s),
        "bound_why": search.bound.why,
        "ring": _ring(search.ring_peer()) if options.against else None,
        "rows": [_row(row, search.bound.mb_per_s) for row in rows],
        "largest": _largest(traced[0]),
    }
    return Simulated(report, tuple(traced))


def trace_of(simulated: Simulated) -> dict[str, Any]:
    """Return the timelines of the largest size in one Chrome trace.

    Trees and rings have processes of their own, ``trees: ranks`` and so on; both begin at 0.
    """
    events: list[dict[str, Any]] = []
    about = {}
    for found in simulated.traced:
        assert found.what is not None  # `simulate_scene` refuses to trace what is none
        what = "rings" if found.what.is_ring else "trees"
        trace = chrome_trace(found.run, found.what.topology)
        about[what] = trace["otherData"]
        before = max((event["pid"] for event in events), default=0)
        events += [_of_process(event, what, before) for event in trace["traceEvents"]]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _of_process(event: Mapping[str, Any], what: str, before: int) -> dict[str, Any]:
    """Return an event with the number of its process moved, and its name if it gives that."""
    moved = {**event, "pid": event["pid"] + before}
    if event["name"] == "process_name":
        moved["args"] = {"name": f"{what}: {event['args']['name']}"}
    return moved


def fitted(scene: Scene, options: SimulateOptions) -> tuple[int, ...]:
    """Return the sizes in whole elements of every block, rounded down as nccl-tests does.

    Raises
    ------
    UsageError
        If one that was asked for is smaller than an element in every block.
    """
    unit = ITEMSIZE * num_blocks(scene)
    small = [size for size in options.sizes if size < unit]
    if small and not options.is_default:
        raise UsageError(
            f"--sizes {small[0]} is too small: one element of float32 in every block is {unit} "
            "bytes"
        )
    sizes = {size // unit * unit for size in options.sizes} - {0}
    return tuple(sorted(sizes))


def num_blocks(scene: Scene) -> int:
    """Return into how many blocks the data falls."""
    split = (Collective.ALLGATHER, Collective.REDUCESCATTER, Collective.ALLTOALL)
    return scene.topology.size if scene.collective in split else 1


def _head(subject: Subject, scene: Scene, options: SimulateOptions) -> dict[str, Any]:
    root = scene.hosts[0].devices[scene.root] if scene.collective.is_rooted else None
    return {
        "version": SCHEMA_VERSION,
        "machine": subject.name,
        "what": subject.what,
        "collective": scene.collective.label,
        "links": options.links or links_of(link.kind for link in scene.hosts[0].links),
        "hosts": [list(host.devices) for host in scene.hosts],
        "network_gbps": _gbps(options.network_gbps),
        "root": root,
        "trees": options.trees,
        "against": options.against,
        "cost": _cost(scene.cost),
        "ring_cost": _cost(scene.ring_cost),
    }


def _gbps(gbps: Fraction | None) -> float | int | None:
    """Return a rate as JSON has it, whole where it is."""
    if gbps is None or gbps.denominator > 1:
        return None if gbps is None else float(gbps)
    return int(gbps)


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "name": cost.name,
        "launch_ns": cost.launch_ns,
        "step_ns": cost.step_ns,
        "efficiency": float(cost.efficiency),
        "memory_gb_per_s": cost.memory_mb_per_s / _MB_PER_GB or None,
    }


def _row(row: tuple[Found, Found | None], bound_mb_per_s: Fraction) -> dict[str, Any]:
    ours, theirs = row
    numbers = {
        "bytes": ours.run.size_bytes,
        "trees": ours.name,
        "num_trees": ours.num_trees,
        "depth": ours.depth,
        "channels": ours.channels,
        **_times(ours.run),
        "bound_part": float(ours.run.algbw_gb_per_s * _MB_PER_GB / bound_mb_per_s),
        "ring": None,
    }
    if theirs is not None:
        ratio = Fraction(theirs.run.time_ns, max(1, ours.run.time_ns))
        name = {"name": theirs.name}
        numbers["ring"] = name | _times(theirs.run) | {"ratio": float(ratio)}
    return numbers


def _times(run: Run) -> dict[str, Any]:
    return {
        "chunk_bytes": run.chunk_bytes,
        "time_ns": run.time_ns,
        "seconds": run.time_ns / 1e9,
        "algbw_gb_per_s": float(run.algbw_gb_per_s),
        "busbw_gb_per_s": float(run.busbw_gb_per_s),
    }


def _ring(peer: RingPeer) -> dict[str, Any]:
    return {
        "kind": peer.kind.value,
        "rings": len(peer.rings),
        "rate_gb_per_s": _gb_per_s(peer.rate),
    }


def _largest(found: Found) -> dict[str, Any]:
    """Return what the time of the largest size is made of."""
    run = found.run
    return {
        "bytes": run.size_bytes,
        "critical": _critical(found),
        "resources": {
            usage.name: {
                "capacity_gb_per_s": float(usage.capacity_mb_per_s / _MB_PER_GB),
                "bytes": usage.size_bytes,
                "busy_seconds": usage.busy_ns / 1e9,
                "utilisation": float(run.utilisation(usage)),
            }
            for usage in run.usage
        },
    }


def _critical(found: Found) -> list[str]:
    if found.what is None:
        return ["all hosts are alike, so one is simulated for all; there is no path over hosts"]
    return critical_text(found.run, found.what.topology, found.what.program)


def _gb_per_s(mb_per_s: Fraction) -> float:
    return float(mb_per_s / _MB_PER_GB)
