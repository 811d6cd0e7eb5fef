"""The options of ``blinkrun plan``, checked as far as that goes without a machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from blinkrun.cli.parsing import (
    Parser,
    one_of,
    parse_count,
    parse_gpus,
    parse_loss,
    parse_picture,
)
from blinkrun.cli.source import Source, add_source_options, source_of
from blinkrun.errors import UsageError

COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
ROOTED = ("broadcast", "reduce")
LINKS = ("nvlink", "pcie", "all")
METHODS = ("exact", "mwu", "onehop", "paper")

USAGE = "blinkrun plan COLLECTIVE [--topology MACHINE] [--gpus 0,1,4] [options]"

DESCRIPTION = f"""\
Plan a collective at the best rate that the links allow, prove it, and show it.

  COLLECTIVE  {", ".join(COLLECTIVES)}
"""

EPILOG = """\
examples:
  blinkrun plan allreduce --topology dgx-1v --gpus 0,1,4 --plot plan.svg
  nvidia-smi topo -m | blinkrun plan broadcast --topology - --root 2 --json
  blinkrun plan --topology dgx-1v --advise 3 --free 0,1,2,4,7
"""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What to plan.

    Attributes
    ----------
    collective : str
    source : Source
        Of the machine.
    gpus : tuple of int or None
        Of the job, in the order of its ranks; None for all.
    root : int or None
        A GPU of the machine; None for the first of the job.
    links : str or None
        None for all that the machine has.
    method : str
    loss : Fraction
    relays : tuple of int
    json : bool
    plot : Path or None
    advise : int or None
        Rank the allocations of so many GPUs instead.
    free : tuple of int or None
        The GPUs to choose from; None for all.
    """

    collective: str
    source: Source
    gpus: tuple[int, ...] | None = None
    root: int | None = None
    links: str | None = None
    method: str = "exact"
    loss: Fraction = Fraction(0)
    relays: tuple[int, ...] = ()
    json: bool = False
    plot: Path | None = None
    advise: int | None = None
    free: tuple[int, ...] | None = None


def make_parser() -> Parser:
    """Return the parser; its help is what ``plan --help`` prints."""
    parser = Parser("plan", USAGE, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("collective", nargs="?", help=argparse.SUPPRESS)
    add("--topology", metavar="MACHINE", help="FILE, - or NAME as for topo; default: this one")
    add("--gpus", metavar="0,1,4", help="the job's GPUs in the order of its ranks (all)")
    add("--root", metavar="R", help="GPU that broadcast or reduce is rooted at (first)")
    add("--links", metavar="SET", help="nvlink (any fabric beside PCIe), pcie or all (all)")
    add("--method", metavar="HOW", help=f"{', '.join(METHODS)} (exact)")
    add("--loss", metavar="0.05", help="give up 5%% for fewer trees (0; jobs use 0.05)")
    add("--relays", metavar="2,3", help="GPUs outside the job that data may run through")
    add("--json", action="store_true", help="print JSON (docs/planning.md)")
    add("--plot", metavar="FILE.svg", help="draw the trees (svg, png or pdf)")
    add_source_options(parser)
    add("--advise", metavar="N", help="rank the choices of N GPUs instead")
    add("--free", metavar="0,1,2", help="the GPUs that --advise may choose (all)")
    add("-h", "--help", action="store_true", help="show this and exit")
    return parser


def parse(argv: Sequence[str]) -> PlanOptions | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown, its value cannot be used, or two contradict each other.
    """
    args = make_parser().read(argv)
    if args.help:
        return None
    _check_together(args)
    options = PlanOptions(
        collective=one_of("collective", args.collective or "allreduce", COLLECTIVES),
        source=source_of(args.topology, args),
        gpus=None if args.gpus is None else parse_gpus("--gpus", args.gpus),
        root=None if args.root is None else parse_count("--root", args.root, least=0),
        links=None if args.links is None else one_of("--links", args.links, LINKS),
        method=one_of("--method", args.method or "exact", METHODS),
        loss=parse_loss(args.loss or "0"),
        relays=() if args.relays is None else parse_gpus("--relays", args.relays),
        json=args.json,
        plot=parse_picture(args.plot),
        advise=None if args.advise is None else parse_count("--advise", args.advise, least=2),
        free=None if args.free is None else parse_gpus("--free", args.free),
    )
    _check_root(options)
    _check_relays(options)
    return options


def _check_together(args: argparse.Namespace) -> None:
    """Refuse what says nothing, or contradicts itself."""
    if args.advise is None:
        if args.collective is None:
            raise UsageError(f"which collective? one of {', '.join(COLLECTIVES)}; or --advise N")
        if args.free is not None:
            raise UsageError("--free is what --advise chooses from; a plan's GPUs are --gpus")
        return
    for flag in ("gpus", "relays", "method", "loss", "plot"):
        if getattr(args, flag) is not None:
            more = "; the GPUs to choose from are --free" if flag == "gpus" else ""
            raise UsageError(f"--{flag} does not go with --advise{more}")


def _check_root(options: PlanOptions) -> None:
    if options.root is None:
        return
    if options.collective not in ROOTED:
        raise UsageError(f"--root is for {' and '.join(ROOTED)}; {options.collective} has none")
    if options.gpus is not None and options.root not in options.gpus:
        raise UsageError(f"--root {options.root} is not among --gpus {_list(options.gpus)}")


def _check_relays(options: PlanOptions) -> None:
    if options.relays and options.gpus is None:
        raise UsageError("--relays are GPUs outside the job; say with --gpus which are in it")
    both = sorted(set(options.relays) & set(options.gpus or ()))
    if both:
        raise UsageError(f"--relays {_list(both)}: in the job already, as --gpus says")


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
