"""What a job is started with, beside what was asked for: commands, variables, hosts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun.launcher import agent
from blinkrun.launcher.far import Spread

MAX_SHOWN = 1 << 16  # a word of a command line may have 128 KiB


@dataclass(frozen=True, slots=True)
class Means:
    """What a job is started with.

    Attributes
    ----------
    command : sequence of str
        The mpiexec with its arguments, and the supervisor that it starts for each rank.
    environ : mapping
        What the MPI sees.
    ranks : mapping
        What is added for the ranks' programs.
    threads : tuple of str
        Variables that tell a program how many threads to use, where each host has its own number.
    spread : Spread or None
        Where ranks run, if not all run on this host.
    """

    command: Sequence[str]
    environ: Mapping[str, str]
    ranks: Mapping[str, str]
    threads: tuple[str, ...] = ()
    spread: Spread | None = None


def agent_command(argv: Sequence[str]) -> list[str]:
    """Return the command of one rank: its supervisor, with a word that shows what it will run."""
    shown = shlex.join(argv)
    return [sys.executable, "-S", "-E", str(Path(agent.__file__)), shown[:MAX_SHOWN]]
