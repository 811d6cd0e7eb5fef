"""How long planning takes: in this process, from the cache, and as a command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median

from blinkrun import env
from blinkrun.errors import UnreachableRankError
from blinkrun.planner import store
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.topology import catalog
from blinkrun.topology.graph import Topology, induce
from blinkrun.topology.model import LinkSet

_REPEATS = 5
_EXACT = Fraction(0)


def time_lines() -> list[str]:
    """Return the table of planning times beside what is wanted."""
    rows: list[tuple[str, float, float]] = []
    for gpus, limit, name in ((8, 0.3, "dgx-1v"), (16, 1.0, "dgx-2"), (72, 10.0, "gb200-nvl72")):
        for links in (LinkSet.NVLINK, LinkSet.ALL):
            topology = catalog.machine(name, links)
            for flow in (Flow.BOTH, Flow.DOWN, Flow.ALL_DOWN):
                took = _seconds(partial(_pack, topology, flow))
                rows.append((f"{gpus} GPUs, {name}, {links} links, {flow}", took, limit))
    switched = induce(catalog.machine("gb200-nvl72"), range(32))
    for flow in (Flow.BOTH, Flow.DOWN, Flow.ALL_DOWN):
        took = _seconds(partial(_pack, switched, flow))
        rows.append((f"32 GPUs behind switches, {flow}", took, 5.0))
    for links in (LinkSet.NVLINK, LinkSet.ALL):
        label = f"all 219 allocations of dgx-1v, {links} links, allreduce"
        rows.append((label, _once(partial(_all_allocations, links)), 60.0))
    rows += _from_the_cache()
    rows += _commands()
    lines = ["| what | takes | wanted |", "|---|--:|--:|"]
    lines += [f"| {what} | {_told(took)} | {_told(limit)} |" for what, took, limit in rows]
    return lines


def _pack(topology: Topology, flow: Flow) -> None:
    pack(topology, flow, 0 if flow.is_rooted else None, loss=_EXACT)


def _all_allocations(links: LinkSet) -> None:
    whole = catalog.machine("dgx-1v", links)
    for count in range(3, 9):
        for gpus in combinations(range(8), count):
            try:
                _pack(induce(whole, gpus), Flow.BOTH)
            except UnreachableRankError:
                continue  # NVLink alone does not join them


def _from_the_cache() -> list[tuple[str, float, float]]:
    rows = []
    for name in ("dgx-1v", "dgx-2"):
        topology = catalog.machine(name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            store.plan_of(topology, path)
            took = _seconds(partial(store.plan_of, topology, path))
            first = median(_first_hit(name, folder) for _ in range(_REPEATS))
        rows.append((f"cache hit, whole plan of {name}", took, 0.005))
        rows.append((f"the same, the first of a process, {name}", first, 0.005))
    return rows


def _first_hit(name: str, folder: str) -> float:
    """Return what a hit takes in a process that has imported what it needs and done nothing."""
    program = (
        "import sys, time; from pathlib import Path; "
        "from blinkrun.planner import store; from blinkrun.topology import catalog; "
        "topology = catalog.machine(sys.argv[1]); start = time.perf_counter(); "
        "store.plan_of(topology, Path(sys.argv[2])); print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", program, name, folder]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _commands() -> list[tuple[str, float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        commands = (
            (("plan", "--help"), 0.2),
            (("plan", "allreduce", "--topology", "dgx-1v"), 1.5),
        )
        return [
            (
                f"`blinkrun {' '.join(argv)}`{' without a cache' if limit > 1 else ''}",
                median(_run(argv, f"{folder}/{turn}") for turn in range(_REPEATS)),
                limit,
            )
            for argv, limit in commands
        ]


def _run(argv: Sequence[str], cache: str) -> float:
    program = "import sys; from blinkrun.launcher.cli import main; sys.exit(main())"
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *argv],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, env.CACHE: cache},
    )
    return time.perf_counter() - start


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _seconds(call: Callable[[], object]) -> float:
    """Return the median of a few times."""
    return median(_once(call) for _ in range(_REPEATS))


def _told(seconds: float) -> str:
    """Return a time in the unit that people expect.

    >>> _told(0.0123), _told(12.3)
    ('12.3 ms', '12.3 s')
    """
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
