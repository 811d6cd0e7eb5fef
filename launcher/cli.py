"""The command ``blinkrun``: command line in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blinkrun.cli import COMMANDS
from blinkrun.errors import BlinkrunError, LaunchError, UsageError
from blinkrun.launcher.options import HELP, Options, parse
from blinkrun.log import say
from blinkrun.version import __version__

if TYPE_CHECKING:
    from blinkrun.cli import Prepared
    from blinkrun.launcher.mpiexec import Mpi
    from blinkrun.launcher.spec import JobSpec

EXIT_USAGE = 2
EXIT_LAUNCH = 1
EXIT_INTERRUPTED = 130
PLANNING = "blinkrun.cli.job_plan"  # loaded by its name, as commands are
LATER_COMMANDS = ("doctor",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``blinkrun argv`` (`sys.argv` by default) and return its exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except UsageError as err:
        say(str(err))
        return EXIT_USAGE
    except LaunchError as err:
        say(str(err))
        return EXIT_LAUNCH
    except BlinkrunError as err:
        say(str(err))
        return EXIT_LAUNCH
    except KeyboardInterrupt:  # while it plans: a job that runs sees to signals itself
        return EXIT_INTERRUPTED


def help_text() -> str:
    """Return what ``blinkrun --help`` prints."""
    lines = [f"  {name:<20} {command.help}\n" for name, command in COMMANDS.items()]
    return HELP.format(commands="".join(lines))


def _run(argv: list[str]) -> int:
    if not argv:
        raise UsageError("nothing to run; example: blinkrun -np 2 train.py (see blinkrun --help)")
    options = parse(argv)
    if options.help or options.version:
        sys.stdout.write(help_text() if options.help else f"blinkrun {__version__}\n")
        return 0
    command = COMMANDS.get(options.program[0]) if options.program else None
    if options.program and options.program[0] in LATER_COMMANDS:
        raise UsageError(f"the command '{options.program[0]}' is not part of version {__version__}")
    if command is not None and not command.ranks:
        return _call(command.module, options)
    checked = _checked(command.check, options) if command is not None and command.check else None
    if isinstance(checked, str):
        sys.stdout.write(checked)
        return 0
    return _launch(_planned(options, _spec(options, checked)))


def _checked(check: str, options: Options) -> str | Prepared | None:
    """Let a command see its arguments, so that a wrong one starts no ranks."""
    from importlib import import_module  # noqa: PLC0415

    if options.num_ranks is not None:
        _spec(options)  # what is wrong with the launch itself is said first
    module, _, function = check.partition(":")
    argv = options.program[1:]
    answer: str | Prepared | None
    answer = getattr(import_module(module), function)(argv, options.num_ranks)
    return answer


def _planned(options: Options, spec: JobSpec) -> JobSpec:
    """Return the job with the plan that its ranks are to use, which is printed if asked for."""
    from dataclasses import replace  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415

    from blinkrun import env  # noqa: PLC0415

    if options.gpus is not None and options.topology is None:
        raise UsageError("--gpus says which GPUs of --topology FILE|NAME; give that too")
    if options.topology is None and not options.show_plan:
        return spec
    if spec.handed:
        raise UsageError(f"--topology and --show-plan: '{options.program[0]}' plans by itself")
    planning = import_module(PLANNING)
    plan, text = planning.plan_job(options.topology, options.gpus, spec.num_ranks)
    if options.show_plan:
        sys.stdout.write(text)
        sys.stdout.flush()
    return replace(spec, handed={**spec.handed, env.PLAN: plan})


def _call(module: str, options: Options) -> int:
    """Run a command that needs no ranks, in this process."""
    from importlib import import_module  # noqa: PLC0415

    if options.num_ranks is not None:
        raise UsageError(f"the command '{options.program[0]}' runs without ranks; leave -np out")
    return int(import_module(module).main(options.program[1:]))


def _spec(options: Options, prepared: Prepared | None = None) -> JobSpec:
    """Return the job that `options` and the command describe, checked."""
    from blinkrun.launcher.forward import forwarded  # noqa: PLC0415
    from blinkrun.launcher.programs import resolve  # noqa: PLC0415
    from blinkrun.launcher.settings import PYTHON_PATH, settings_of  # noqa: PLC0415
    from blinkrun.launcher.spec import DEFAULT_START_TIMEOUT_S, JobSpec  # noqa: PLC0415

    num_ranks = options.num_ranks if prepared is None else prepared.num_ranks
    if num_ranks is None:
        program = " ".join(options.program[:1]) or "train.py"
        raise UsageError(f"how many ranks? example: blinkrun -np 2 {program}")
    for option, is_given in (("--horovod", options.horovod), ("--ddp", options.ddp)):
        if is_given and options.program and options.program[0] in COMMANDS:
            raise UsageError(f"{option} is for scripts, not for the command '{options.program[0]}'")
    start_timeout_s = options.start_timeout_s
    environ = forwarded(options.environ, os.environ)
    settings = settings_of(options, {**os.environ, **environ})
    if PYTHON_PATH in settings:
        environ.pop(PYTHON_PATH, None)  # the other one holds it
    return JobSpec(
        num_ranks=num_ranks,
        program=resolve(options.program, COMMANDS),
        mpi=options.mpi,
        environ=environ,
        settings=settings,
        prefix=options.prefix and options.program[0] not in COMMANDS,  # tables stay tables
        output_dir=options.output_dir,
        start_timeout_s=DEFAULT_START_TIMEOUT_S if start_timeout_s is None else start_timeout_s,
        timeout_s=options.timeout_s,
        time_limit_s=options.time_limit_s,
        handed={} if prepared is None else dict(prepared.texts),
        verbose=options.verbose,
        dry_run=options.dry_run,
    )


def _open_standard_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed: else a socket would take its place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


def _launch(spec: JobSpec) -> int:
    """Find the MPI and run the job, or say how it would be run."""
    from blinkrun import env  # noqa: PLC0415
    from blinkrun.launcher.discover import find_mpi  # noqa: PLC0415
    from blinkrun.launcher.forward import handed_files  # noqa: PLC0415
    from blinkrun.launcher.job import Job, agent_command  # noqa: PLC0415
    from blinkrun.launcher.mpiexec import arguments, outside_of_jobs, settings  # noqa: PLC0415
    from blinkrun.launcher.slots import thread_environ  # noqa: PLC0415

    _open_standard_streams()
    base = outside_of_jobs(os.environ)
    seen = {**base, **spec.environ}
    mpi = find_mpi(spec.mpi, seen)
    cores = len(os.sched_getaffinity(0))
    added = settings(mpi, spec.num_ranks, cores, seen)
    threads = thread_environ(cores, spec.num_ranks, seen)
    ranks = {**added, **threads, env.SIZE: str(spec.num_ranks)}
    if spec.timeout_s is not None:
        ranks[env.TIMEOUT] = f"{spec.timeout_s:g}"
    if spec.verbose:
        ranks[env.VERBOSE] = "1"
    ranks.update(spec.settings)
    ranks.update(dict.fromkeys(spec.handed, ""))  # the files are made when the job starts
    ranks.update(spec.environ)
    command = [
        *arguments(mpi, spec.num_ranks, is_root=os.geteuid() == 0),
        *agent_command(spec.program.argv),
    ]
    if spec.dry_run:
        _print_command(command, ranks)
        return 0
    if spec.verbose:
        _explain(mpi, command, ranks, threads)
    # What changes how programs are loaded is for the ranks' programs alone.
    of_mpi = {name: value for name, value in spec.environ.items() if not name.startswith("LD_")}
    environ = {**base, **added, **of_mpi}
    with handed_files(spec.handed) as handed:
        ranks.update(handed)
        code = Job(spec, command=command, environ=environ, rank_environ=ranks).run(may_retry=True)
        if code is None:
            code = Job(spec, command=command, environ=environ, rank_environ=ranks).run()
    return 1 if code is None else code


def _print_command(command: Sequence[str], environ: dict[str, str]) -> None:
    import shlex  # noqa: PLC0415

    print(shlex.join(command))
    print(f"# environment: {' '.join(sorted(environ))}")


def _explain(
    mpi: Mpi, command: Sequence[str], environ: dict[str, str], threads: dict[str, str]
) -> None:
    """Say what is run; names of variables only, values may be secret."""
    import shlex  # noqa: PLC0415

    say(f"MPI: {mpi}")
    say(f"command: {shlex.join(command)}")
    say(f"environment: {' '.join(sorted(environ))}")
    share = threads.get("OMP_NUM_THREADS")
    said = f"{share} (cores / ranks)" if share else "as OMP_NUM_THREADS says"
    say(f"threads per rank: {said}")


if __name__ == "__main__":
    sys.exit(main())
