"""The commands of blinkrun, by name; a table only, so that reading it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module whose ``main(argv)`` runs it, and its line in the help.

    `ranks` says that it runs on ranks, ``blinkrun -np N name``; otherwise it runs as it is.
    `hosts` says that it takes hosts itself, ``blinkrun name -H HOSTS``.
    `check` names a ``module:function`` that sees the arguments before any rank is started: called
    with them and the number of ranks (None: not given), it raises UsageError, or returns a text to
    print instead of running (help), or what it has prepared for the ranks, or None.
    """

    module: str
    help: str
    ranks: bool
    check: str = ""
    hosts: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a command has worked out before its ranks start: how many, and texts for them.

    The ranks find each text in a file, whose path is in the variable that is the text's key.
    """

    num_ranks: int
    texts: Mapping[str, str]


COMMANDS: dict[str, Command] = {
    "bench": Command(
        "blinkrun.bench.main",
        "measure collectives, here or on an emulated machine",
        True,
        "blinkrun.bench.options:check",
    ),
    "topo": Command("blinkrun.cli.topo", "show a machine: matrix, PCIe tree, picture", False),
    "plan": Command("blinkrun.cli.plan", "plan a collective on it, prove and draw the plan", False),
    "simulate": Command("blinkrun.cli.simulate", "predict its time, say what bounds it", False),
    "doctor": Command(
        "blinkrun.cli.doctor", "examine this host, or all hosts of a job", False, hosts=True
    ),
}
