"""The command ``blinkrun``: command line in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blinkrun.cli import COMMANDS, Command
from blinkrun.errors import BlinkrunError, LaunchError, UsageError
from blinkrun.launcher.options import HELP, Options, parse
from blinkrun.log import say
from blinkrun.version import __version__

if TYPE_CHECKING:
    from blinkrun.cli import Prepared
    from blinkrun.launcher.spec import Hosts, JobSpec

EXIT_USAGE = 2
EXIT_LAUNCH = 1
EXIT_INTERRUPTED = 130
EMULATE = "--emulate"
PLANNING = "blinkrun.cli.job_plan"  # loaded by its name, as commands are


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
    if command is not None and not command.ranks:
        return _call(command, options)
    hosts = _hosts(options)
    checked = _checked(command.check, options) if command is not None and command.check else None
    if isinstance(checked, str):
        sys.stdout.write(checked)
        return 0
    from blinkrun.launcher.start import launch  # noqa: PLC0415

    return launch(_planned(options, _spec(options, checked, hosts)))


def _hosts(options: Options) -> Hosts | None:
    """Return the hosts of the job, None for this one alone; sets the number of ranks by them."""
    from blinkrun.launcher.where import hosts_of  # noqa: PLC0415

    num_ranks, hosts = hosts_of(options, os.environ)
    options.num_ranks = num_ranks
    program = options.program
    is_emulated = any(word.partition("=")[0] == EMULATE for word in program)
    if hosts is not None and is_emulated and program[0] in COMMANDS:
        raise UsageError(f"'{program[0]} {EMULATE}' runs on one host; leave -H out")
    return hosts


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
    if spec.hosts is not None:
        raise UsageError(
            "--topology and --show-plan are for jobs on one host; hosts plan together when they"
            " have met"
        )
    if spec.handed:
        raise UsageError(f"--topology and --show-plan: '{options.program[0]}' plans by itself")
    planning = import_module(PLANNING)
    plan, text = planning.plan_job(options.topology, options.gpus, spec.num_ranks)
    if options.show_plan:
        sys.stdout.write(text)
        sys.stdout.flush()
    return replace(spec, handed={**spec.handed, env.PLAN: plan})


def _call(command: Command, options: Options) -> int:
    """Run a command that needs no ranks, in this process."""
    from importlib import import_module  # noqa: PLC0415

    if options.num_ranks is not None:
        raise UsageError(f"the command '{options.program[0]}' runs without ranks; leave -np out")
    if options.hosts or options.hostfile is not None:
        name = options.program[0]
        if command.hosts:
            raise UsageError(f"write the hosts behind the command: blinkrun {name} -H a:8,b:8")
        raise UsageError(f"the command '{name}' runs here; leave the hosts out")
    return int(import_module(command.module).main(options.program[1:]))


def _spec(
    options: Options, prepared: Prepared | None = None, hosts: Hosts | None = None
) -> JobSpec:
    """Return the job that `options` and the command describe, checked."""
    from blinkrun.launcher.forward import forwarded  # noqa: PLC0415
    from blinkrun.launcher.programs import meant, resolve  # noqa: PLC0415
    from blinkrun.launcher.settings import PYTHON_PATH, settings_of  # noqa: PLC0415
    from blinkrun.launcher.spec import DEFAULT_START_TIMEOUT_S, JobSpec  # noqa: PLC0415

    num_ranks = options.num_ranks if prepared is None else prepared.num_ranks
    if num_ranks is None:
        program = " ".join(options.program[:1]) or "train.py"
        hint = meant(program, COMMANDS)
        raise UsageError(f"how many ranks? example: blinkrun -np 2 {program}{hint}")
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
        hosts=hosts,
        verbose=options.verbose,
        dry_run=options.dry_run,
    )


if __name__ == "__main__":
    sys.exit(main())
