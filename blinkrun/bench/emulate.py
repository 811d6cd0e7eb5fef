"""``blinkrun bench --emulate MACHINE``: what the launcher prepares, and what every rank runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blinkrun import env, log
from blinkrun.bench.emulate_job import Call, EmulatedJob, Way
from blinkrun.bench.emulate_options import EmulateOptions, make_parser, parse
from blinkrun.bench.emulate_table import (
    EmulatedRow,
    Measured,
    as_json,
    closing_lines,
    header_lines,
    parameter_lines,
    row_line,
)
from blinkrun.bench.libraries import Control, Library
from blinkrun.bench.measure import Clock, checked, median_of_slowest, timed_block
from blinkrun.cli import Prepared
from blinkrun.cli.figures import format_gpus
from blinkrun.errors import BlinkrunError, LaunchError, UsageError
from blinkrun.schedule.ir import Program

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane


class Load(Protocol):
    """Says which program the next calls run; what the executor offers."""

    def __call__(self, program: Program, *, chunk_bytes: int) -> None:
        """Load `program`, cut into chunks of `chunk_bytes`; every rank must call it."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What a rank measures with: `load` says which program its library's calls run from then on."""

    library: Library
    control: Control
    load: Load
    clock: Clock = time.perf_counter


def prepare(argv: Sequence[str], num_ranks: int | None) -> str | Prepared:
    """Return the job for the ranks, or the help if `argv` asks for it; before any rank starts.

    Raises
    ------
    UsageError
        If `argv` cannot be carried out, or `num_ranks`, where given, is not that of the GPUs.
    """
    options = parse(argv)
    if options is None:
        return make_parser().format_help()
    from blinkrun.bench.emulate_pace import check_pace  # noqa: PLC0415
    from blinkrun.bench.emulate_plan import job_of  # noqa: PLC0415 - the planner; not for errors
    from blinkrun.executors.emulation import Emulation  # noqa: PLC0415
    from blinkrun.planner.store import command_cache_dir, plan_of  # noqa: PLC0415

    job = job_of(options, num_ranks)
    Emulation(job.topology, job.scale)  # says what is wrong with the scale, if anything is
    plan = plan_of(job.topology, command_cache_dir())  # what other calls than the measured run on
    check_pace(job, plan)
    return Prepared(job.size, {env.EMULATION: job.to_json(), env.PLAN: plan.to_json()})


def emulate(argv: Sequence[str]) -> int:
    """Measure what `argv` asks for; every rank of the job must call it with the same `argv`.

    Rank 0 prints the table to stdout. Returns the exit code: at rank 0, which has said why, 1 if a
    result was wrong and 2 if `argv` cannot be carried out; 0 otherwise.
    """
    from blinkrun import runtime  # noqa: PLC0415 - starts MPI: not before it is needed
    from blinkrun.bench.libraries import Blinkrun  # noqa: PLC0415
    from blinkrun.comm.world import connect  # noqa: PLC0415
    from blinkrun.executors.emulation import Emulation  # noqa: PLC0415

    control = connect()
    agreed = _agreed(argv, control)
    if isinstance(agreed, int):
        control.finalize()
        return agreed
    options, job = agreed
    runtime.init(control=control, emulation=Emulation(job.topology, job.scale))
    world = runtime.world()
    rings = world.broadcast_object(job.ring_programs() if world.rank == 0 else {})
    bench = Bench(Blinkrun(world, "arena"), world, world.executor.load_program)
    return run(job, options, rings, bench)


def _agreed(argv: Sequence[str], control: ControlPlane) -> tuple[EmulateOptions, EmulatedJob] | int:
    """Return the options and the job, as rank 0 has them; an exit code where there is no job."""
    options, text, code = None, "", 0
    if control.rank == 0:
        try:
            options = parse(argv)
            text = make_parser().format_help() if options is None else _text(options, control.size)
        except BlinkrunError as err:
            log.say(f"bench: {err}")
            code = 2 if isinstance(err, UsageError) else 1
    options, text, failed = control.broadcast((options, text, code))
    if options is not None and not failed:
        return options, EmulatedJob.from_json(text)
    if control.rank == 0 and not failed:
        print(text, end="", flush=True)
    return code


def _text(options: EmulateOptions, num_ranks: int) -> str:
    """Return the job that the launcher has handed over, or make it."""
    path = os.environ.get(env.EMULATION)
    if path:
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError as err:
            raise LaunchError(f"{env.EMULATION}={path}: cannot be read: {err.strerror}") from err
    from blinkrun.bench.emulate_plan import job_of  # noqa: PLC0415 - the launcher does it

    return job_of(options, num_ranks).to_json()


def run(
    job: EmulatedJob, options: EmulateOptions, rings: Mapping[str, Program], bench: Bench
) -> int:
    """Measure all calls of `job` and print the table; returns the exit code."""
    leads = bench.control.rank == 0
    show = _print_line if leads else _print_nothing
    for line in (*parameter_lines(job, options), *header_lines(job)):
        show(line)
    rows = []
    for call in job.calls:
        row = measure(job, call, job.ways(call, rings), options, bench)
        rows.append(row)
        show(row_line(row, job))
    for line in closing_lines(rows, job):
        show(line)
    if leads:
        _write(job, options, rows)
    return 1 if leads and any(row.wrong for row in rows) else 0


def measure(
    job: EmulatedJob, call: Call, ways: Sequence[Way], options: EmulateOptions, bench: Bench
) -> EmulatedRow:
    """Return what a call takes by way of each program; every rank must call it alike.

    Each program is loaded once, checked on known data, and then timed in all its rounds: the links
    set the pace, so there is no drift that turns would even out, and a rank that has just loaded a
    program has used up its turn of a core.
    """
    control = bench.control
    work = job.work(call)
    buffers = bench.library.make_buffers(work)
    do = bench.library.make_call(work, buffers)
    num_calls = -(-options.calls // options.rounds) or 1
    wrong: dict[str, int] = {}
    mine: dict[str, list[float]] = {}
    for way in ways:
        bench.load(way.program, chunk_bytes=way.chunk_bytes)
        wrong[way.name] = checked(work, control, buffers, do)
        mine[way.name] = [
            timed_block(do, num_calls, control, bench.clock) for _ in range(options.rounds)
        ]
    control.barrier()  # who is through early sleeps here, not in an exchange that polls
    everyone = control.allgather_object(mine)
    times_us = {name: 1e6 * median_of_slowest(everyone, name) for name in mine}
    return EmulatedRow(work, call, {n: Measured(us, wrong[n]) for n, us in times_us.items()})


def _write(job: EmulatedJob, options: EmulateOptions, rows: Sequence[EmulatedRow]) -> None:
    result = as_json(rows, job)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot is not None:
        from blinkrun.bench.plot import draw  # noqa: PLC0415 - matplotlib is an extra

        emulated = result["emulated"]
        gpus = format_gpus(emulated["gpus"])
        note = f"emulated {emulated['machine']}, GPUs {gpus}, links at 1/{job.scale} of their rate"
        draw(result, options.plot, note=note)


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_nothing(line: str) -> None:
    pass
