"""``make gpu-check``: is the CUDA executor right and fast on this machine's GPU? Under 4 minutes.

One device is enough: all ranks share it. Results go to stdout, page and JSON to a folder. The exit
code is 0 if all went well, 1 if something is wrong, 2 if there is no device to check.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blinkrun import env
from blinkrun.bench import gpu_check_cases as cases
from blinkrun.bench import gpu_check_report as report
from blinkrun.bench import gpu_check_times as times
from blinkrun.bench import gpu_check_training as training
from blinkrun.bench.gpu_check_ranks import GpuRank, Opener, device_plan, run_threads
from blinkrun.bench.gpu_check_report import Part
from blinkrun.bench.gpu_check_worker import OPENER, named, run_processes
from blinkrun.errors import DeviceError
from blinkrun.executors.kernel_source import kernel_dir
from blinkrun.types import DType

PEER = "blinkrun.bench.gpu_check_cupy:CupyPeer"
BUDGET_S = 230.0
_ARENA_BYTES = 256 << 20  # more than scratch, programs and room take
_TIMEOUT_S = 30.0
_ERRORS = 9  # exit code of compute-sanitizer that has found some
_PART_S = 100.0  # that a part may take at most

Found = tuple[str, Mapping[str, Any]]  # what was found, in a line and as values
Run = Callable[[float], Found]  # raises if something is wrong


class WrongError(Exception):
    """Something was computed, and is wrong."""

    def __init__(self, told: str, values: Mapping[str, Any]) -> None:
        super().__init__(told)
        self.values = values


class LeftOutError(Exception):
    """A part needs what this machine has not."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is checked, and how thoroughly.

    Attributes
    ----------
    opener, peer : str
        ``module:function`` of what opens a device, and of what is compared with.
    sizes : tuple of int
        Elements of the calls that are compared.
    bytes : tuple of int
        Of the calls that are timed.
    """

    opener: str = OPENER
    peer: str = PEER
    sizes: tuple[int, ...] = cases.SIZES
    bytes: tuple[int, ...] = times.SIZES

    def open(self) -> Opener:
        """Return what opens a device."""
        return named(self.opener)


def parts_of(setting: Setting) -> dict[str, tuple[float, Run]]:
    """Return all parts by name, in order: how long each takes at most by far, and what it does.

    What it does is called with the time that it may take.
    """
    loopbacks = {f"loopback-{n}": (20.0, partial(loopback, setting, n)) for n in (2, 4, 8)}
    timed = {f"times-{n}": (15.0, partial(time_ranks, setting, n)) for n in (2, 4, 8)}
    apart = {f"processes-{n}": (20.0, partial(processes, setting, n)) for n in (2, 4)}
    tools = ("memcheck", "racecheck")
    sanitized = {tool: (30.0, partial(sanitize, setting, tool)) for tool in tools}
    return {
        "compile": (0.0, lambda _: compile_all(setting)),  # it cannot be stopped
        **loopbacks,
        **timed,
        **apart,
        "training": (30.0, partial(train, setting)),
        **sanitized,
    }


def compile_all(setting: Setting) -> Found:
    """Compile and load the kernel of every type."""
    api = setting.open()(0, 0)
    seconds = {}
    for dtype in DType:
        begin = time.perf_counter()
        api.prepare(int(dtype))
        seconds[dtype.label] = round(time.perf_counter() - begin, 3)
    folder = kernel_dir()
    kept = len(list(folder.glob("*.cubin"))) if folder.is_dir() else 0
    slowest = max(seconds, key=lambda label: seconds[label])
    told = f"{len(seconds)} kernels, the slowest {slowest} in {seconds[slowest]:.1f} s, {kept} kept"
    return told, {"seconds": seconds, "kept": kept}


def loopback(setting: Setting, size: int, most_s: float) -> Found:
    """Compare calls of ranks that are threads of this process."""
    opener = setting.open()
    plan = device_plan(opener, size)
    everything = []
    for case in cases.cases(size, sizes=setting.sizes):
        inputs = case.inputs(size)
        everything.append((case, inputs, cases.expected(plan, case, inputs)))
    room_bytes = cases.room_bytes(size, setting.sizes)

    def body(me: GpuRank) -> tuple[int, Counter[str]]:
        return cases.check_cases(me, everything, cases.Room.of(me, room_bytes))

    found = run_threads(
        size,
        body,
        opener,
        timeout_s=_TIMEOUT_S,
        arena_bytes=_ARENA_BYTES,
        deadline_s=most_s,
    )
    return _verdict(len(everything), found)


def processes(setting: Setting, size: int, most_s: float) -> Found:
    """Compare calls of ranks that are processes: memory is opened by IPC handles."""
    job = {
        "run": "blinkrun.bench.gpu_check_worker:compare",
        "opener": setting.opener,
        "sizes": list(setting.sizes),
        "every": 3,
        "arena_bytes": _ARENA_BYTES,
    }
    found = run_processes(size, job, deadline_s=most_s)
    return _verdict(found[0]["cases"], [(each["compared"], each["wrong"]) for each in found])


def _verdict(num_cases: int, found: Sequence[tuple[int, Mapping[str, int]]]) -> Found:
    compared = sum(num for num, _ in found)
    wrong: Counter[str] = Counter()
    for _, each in found:
        wrong.update(each)
    values = {"cases": num_cases, "compared": compared, "wrong": dict(wrong)}
    if wrong:
        first = next(iter(wrong))
        told = f"{wrong.total()} of {compared} elements are wrong, first in {first}"
        raise WrongError(told, values)
    return f"{num_cases} calls, {compared} elements compared, none wrong", values


def time_ranks(setting: Setting, size: int, most_s: float) -> Found:
    """Time allreduce on ranks that are threads of this process."""
    opener, peer = setting.open(), named(setting.peer)(0)
    free = opener(0, -1).free_bytes()
    # an arena and, on one rank, two buffers of all ranks' bytes
    fitting = [each for each in setting.bytes if each * size * 3 + size * _ARENA_BYTES < free * 0.8]
    if not fitting:
        raise LeftOutError(f"{free} bytes are free on the device, too few")

    def body(me: GpuRank) -> tuple[list[dict[str, float]], float]:
        return times.time_sizes(me, fitting, peer), times.time_graph(me, peer)

    rows, graph_us = run_threads(
        size,
        body,
        opener,
        timeout_s=_TIMEOUT_S,
        arena_bytes=_ARENA_BYTES + max(fitting),
        deadline_s=most_s,
    )[0]
    last = rows[-1]
    told = (
        f"{last['size_bytes']} bytes in {last['allreduce_us']:.0f} us, a copy takes"
        f" {last['copy_us']:.0f} us; {times.LATENCY_BYTES} bytes in a graph in {graph_us:.1f} us"
    )
    return told, {"ranks": size, "rows": rows, "graph_us": graph_us}


def train(setting: Setting, most_s: float) -> Found:
    """Train a small net on two ranks, to the loss of one process on the CPU."""
    device = "cuda:0" if setting.opener == OPENER else "cpu"
    if reason := training.missing(device):
        raise LeftOutError(reason)
    found = training.check_training(2, device=device, deadline_s=most_s)
    told = (
        f"loss {found['first_loss']:.4f} to {found['last_loss']:.4f} in {found['steps']} steps on"
        f" {device}, off by {found['largest_difference']:.1e} at most"
    )
    if not found["ok"]:
        raise WrongError(told, found)
    return told, found


def sanitize(setting: Setting, tool: str, most_s: float) -> Found:
    """Run a few calls of two ranks under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise LeftOutError("compute-sanitizer is not installed")
    with tempfile.TemporaryDirectory(prefix="blinkrun-") as out:
        # API errors that are expected, such as "not ready", are none of the kernel's.
        command = [program, "--tool", tool, "--error-exitcode", f"{_ERRORS}"]
        if tool == "memcheck":
            command += ["--report-api-errors", "no"]
        command += [sys.executable, "-m", "blinkrun.bench.gpu_check", "--quick", "--out", out]
        command += ["--parts", "loopback-2"]
        command += ["--opener", setting.opener, "--cache", str(kernel_dir().parent)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=most_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LeftOutError(f"not through in {most_s:.0f} s") from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "=====" in line]
    told = lines[-1].strip("= ") if lines else f"exit code {done.returncode}"
    if done.returncode == 1 and "TimeoutError" in done.stdout:
        raise LeftOutError(
            "under it kernels take turns, and those of two ranks wait for each other"
        )
    if done.returncode:
        raise WrongError(told, {"said": lines[-40:]})
    return told, {"said": lines[-40:]}


def run_parts(
    setting: Setting, names: Sequence[str], *, budget_s: float, say: Callable[[str], None] = print
) -> list[Part]:
    """Run parts one after the other and return what each came to; none stops the others."""
    deadline = time.monotonic() + budget_s
    everything = parts_of(setting)
    found = []
    for name in names:
        begin = time.monotonic()
        needed_s, run = everything[name]
        most_s = min(deadline - begin, _PART_S)
        if most_s < needed_s:
            part = Part(name, "left out", f"{max(most_s, 0):.0f} s of {budget_s:g} s are left")
        else:
            part = _run(name, partial(run, most_s), begin)
        say(part.line())
        found.append(part)
    return found


def _run(name: str, run: Callable[[], Found], begin: float) -> Part:
    values: Mapping[str, Any] = {}
    try:
        told, values = run()
        state = "passed"
    except LeftOutError as err:
        state, told = "left out", f"{err}"
    except WrongError as err:
        state, told, values = "failed", f"{err}", err.values
    except Exception as err:  # the report says what went wrong, and the other parts go on
        state, told = "failed", " ".join(f"{type(err).__name__}: {err}".split())[:400]
    return Part(name, state, told, time.monotonic() - begin, values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, write, and return the exit code."""
    every = tuple(parts_of(Setting()))
    parser = argparse.ArgumentParser(
        prog="python -m blinkrun.bench.gpu_check", description="Check the CUDA executor on a GPU."
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), metavar="FOLDER")
    parser.add_argument("--parts", default="", metavar="A,B", help=f"of {', '.join(every)}")
    parser.add_argument("--quick", action="store_true", help="few small sizes")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    parser.add_argument("--opener", default=OPENER, help=argparse.SUPPRESS)
    parser.add_argument("--peer", default=PEER, help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = tuple(filter(None, options.parts.split(","))) or every
    if unknown := sorted(set(names) - set(every)):
        parser.error(f"there is no part {', '.join(unknown)}")
    setting = Setting(options.opener, options.peer)
    if options.quick:
        setting = Setting(
            options.opener, options.peer, (0, 1, 7, 1009, 4097), (1024, 4096, 1 << 20)
        )
    os.environ.setdefault(env.GPUS_PER_RANK, "1/8")  # all ranks share the device
    # By default a device has 8 queues for all streams of a process. Ranks that are threads wait for
    # each other, for ever where one's kernel is behind another's in a queue: each needs its own.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    try:
        device = asdict(setting.open()(0, -1).info)
    except DeviceError as err:
        print(f"gpu-check: no device to check: {err}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="blinkrun-") as folder:
        # compiled anew, and kept for the processes that follow
        os.environ[env.CACHE] = options.cache or folder
        found = run_parts(setting, names, budget_s=options.budget)
    report.write(options.out, device, f"{datetime.date.today()}", found)
    for goal in report.goals(found):
        if goal.measured is not None:
            print(f"{goal.what}: {goal.measured}, wanted {goal.wanted}")
    return int(any(part.state == "failed" for part in found))


if __name__ == "__main__":
    sys.exit(main())
