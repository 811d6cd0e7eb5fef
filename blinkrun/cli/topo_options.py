"""The options of ``blinkrun topo``, checked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun.cli.parsing import Parser, parse_count, parse_picture
from blinkrun.cli.source import Source, add_source_options, source_of
from blinkrun.errors import UsageError

USAGE = "blinkrun topo [FILE|-|NAME] [options]"

DESCRIPTION = """\
Show a machine: its matrix, PCIe tree, fabric, nearest NICs and fingerprint.

  FILE  what nvidia-smi topo -m (or -p2p), nvidia-smi nvlink -s, rocm-smi
        --showtopo or amd-smi topology printed, also inside other text; an NCCL
        or RCCL topology XML; or what topo --json printed. - is standard input
  NAME  a machine of the catalog (topo --list)
  Without either: this machine.
"""

EPILOG = """\
examples:
  nvidia-smi topo -m | blinkrun topo -
  blinkrun topo dgx-1v --plot topo.svg
"""


@dataclass(frozen=True, slots=True)
class TopoOptions:
    """What to show of which machine.

    `form` is ``text``, ``json``, ``xml`` or ``list`` (the catalog's names); `ranks` is how many
    ranks there are whose GPUs are to be shown, None for one on each GPU that is seen here.
    """

    source: Source
    form: str
    plot: Path | None
    ranks: int | None = None


def make_parser() -> Parser:
    """Return the parser; its help is what ``topo --help`` prints."""
    parser = Parser("topo", USAGE, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("machine", nargs="?", help=argparse.SUPPRESS)
    add("--json", action="store_true", help="print all that is known, as JSON")
    add("--xml", action="store_true", help="print an NCCL topology XML")
    add("--ranks", metavar="N", help="say which GPUs N ranks of a host take")
    add("--plot", metavar="FILE.svg", help="draw it (svg, png or pdf)")
    add_source_options(parser)
    add("--list", action="store_true", help="print the catalog's names")
    add("-h", "--help", action="store_true", help="show this and exit")
    return parser


def parse(argv: Sequence[str]) -> TopoOptions | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown or its value cannot be used.
    """
    args = make_parser().read(argv)
    if args.help:
        return None
    forms = [form for form in ("json", "xml", "list") if getattr(args, form)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} exclude each other")
    if args.list and args.machine is not None:
        raise UsageError(f"--list takes no machine, '{args.machine}' is given")
    if args.ranks is not None and (args.xml or args.list):
        raise UsageError(f"--ranks and --{forms[0]} exclude each other")
    return TopoOptions(
        source=source_of(args.machine, args),
        form=forms[0] if forms else "text",
        plot=parse_picture(args.plot),
        ranks=None if args.ranks is None else parse_count("--ranks", args.ranks),
    )
