"""The options of ``blinkrun doctor``, checked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from blinkrun.cli.parsing import Parser
from blinkrun.errors import UsageError

USAGE = "blinkrun doctor [-H HOSTS] [options] [SCRIPT]"

DESCRIPTION = """\
Say what this host offers to a job and what keeps one from running: Python,
blinkrun, its compiled core, MPI, cores, memory, network, GPUs. With hosts, from
-H, a host file or the batch system: ask all of them at once, and whether they
fit together and reach each other. Nothing waits for a password.

  SCRIPT  a file that every host must have, with the same content
"""

EPILOG = """\
Exit code: 0 if a job can run, 1 if not, 2 for wrong usage.

examples:
  blinkrun doctor
  blinkrun doctor --gpus
  blinkrun doctor -H a:8,b:8 --network-interface eth0 train.py
"""

DEADLINE_S = 90.0  # loading the core and trying GPUs, from a cold network file system


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to examine, and how to reach it."""

    hosts: str | None
    hostfile: str | None
    agent: str | None
    interfaces: tuple[str, ...]
    mpi: str | None
    gpus: bool
    deadline_s: float
    json: bool
    script: str | None


def make_parser() -> Parser:
    """Return the parser; its help is what ``doctor --help`` prints."""
    parser = Parser("doctor", USAGE, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("script", nargs="?", help=argparse.SUPPRESS)
    add("-H", "--host", metavar="HOSTS", help="hosts of the job, as a:8,b:8")
    add("--hostfile", metavar="FILE", help="the same from a file")
    add("--launch-agent", metavar="CMD", help="starts programs on other hosts, as ssh does (ssh)")
    add("--network-interface", metavar="NAMES", help="interfaces to be used, as eth0,eth1")
    add("--mpi", metavar="WHICH", help="openmpi, mpich, intel or an mpiexec")
    add("--gpus", action="store_true", help="ranks need GPUs: what keeps them from it is a problem")
    add("--timeout", metavar="S", help=f"longest wait for a host, seconds ({DEADLINE_S:g})")
    add("--json", action="store_true", help="print all that is known, as JSON")
    add("-h", "--help", action="store_true", help="show this and exit")
    return parser


def parse(argv: Sequence[str]) -> DoctorOptions | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown or its value cannot be used.
    """
    args = make_parser().read(argv)
    if args.help:
        return None
    if args.host is not None and args.hostfile is not None:
        raise UsageError("-H and --hostfile exclude each other")
    return DoctorOptions(
        hosts=args.host,
        hostfile=args.hostfile,
        agent=args.launch_agent,
        interfaces=_interfaces(args.network_interface),
        mpi=args.mpi,
        gpus=args.gpus,
        deadline_s=_seconds(args.timeout),
        json=args.json,
        script=args.script,
    )


def _interfaces(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names:
        raise UsageError("--network-interface needs a name, as eth0")
    return names


def _seconds(text: str | None) -> float:
    if text is None:
        return DEADLINE_S
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"--timeout {text}: need a positive number of seconds")
    return value
