"""The options of ``blinkrun bench --emulate MACHINE``, checked as far as that goes without it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun.cli.parsing import Parser, one_of, parse_count, parse_gpus, parse_picture
from blinkrun.cli.source import STANDARD_INPUT, Source, add_source_options, source_of
from blinkrun.errors import UsageError
from blinkrun.units import parse_size

FLAG = "--emulate"
COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
ROOTED = ("broadcast", "reduce")
LINKS = ("nvlink", "all")
TREES = ("auto", "exact", "few")
PEERS = ("ring",)
DEFAULT_SCALE = 1000
LARGEST_SCALE = 999_999

USAGE = f"blinkrun bench {FLAG} MACHINE [--gpus 0,1,4] [--against ring] [options]"

DESCRIPTION = """\
Measure a collective on a machine that is not here: one rank for each of its GPUs moves real bytes
through shared memory, held to the rate of the machine's links divided by --scale.
"""

EPILOG = f"""\
Bandwidths are those of the machine: bytes x scale over the time that was measured. "simulated" is
what the simulator predicts for the same program. Without --sizes, those are taken that need 20 to
500 ms. MACHINE is a file or a name, as 'blinkrun topo' takes it. docs/emulation.md has more.

example:
  blinkrun bench {FLAG} dgx-1v --gpus 1,4,5,7 --scale 1000 --against ring --sizes 1M,4M
"""


@dataclass(frozen=True, slots=True)
class EmulateOptions:
    """What to emulate and what to measure on it.

    Attributes
    ----------
    source : Source
        Of the machine.
    gpus : tuple of int or None
        By rank; None for all that the machine has.
    links : str
        That trees may use.
    scale : int
        By how much every link is slower than on the machine.
    against : tuple of str
        Peers to measure in the same run.
    sizes : tuple of int or None
        Bytes that are really moved, None to choose them by the time that they take.
    collective : str
    root : int or None
        A GPU of the machine; None for the first of the job.
    trees : str
        ``auto`` takes what the simulator finds fastest for each size.
    chunk_bytes : int
        0 to choose.
    json, plot : Path or None
    calls : int
        Timed calls in all per size, 0 for one a round.
    rounds : int
    """

    source: Source
    gpus: tuple[int, ...] | None = None
    links: str = "all"
    scale: int = DEFAULT_SCALE
    against: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    collective: str = "allreduce"
    root: int | None = None
    trees: str = "auto"
    chunk_bytes: int = 0
    json: Path | None = None
    plot: Path | None = None
    calls: int = 0
    rounds: int = 3

    @property
    def machine(self) -> str:
        """What was written for the machine."""
        return self.source.name or ""


def is_emulated(argv: Sequence[str]) -> bool:
    """Whether these arguments of ``bench`` ask for an emulated machine."""
    return any(word == FLAG or word.startswith(f"{FLAG}=") for word in argv)


def make_parser() -> Parser:
    """Return the parser; its help is what ``bench --emulate MACHINE --help`` prints."""
    parser = Parser(f"bench {FLAG} MACHINE", USAGE, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add(FLAG, metavar="MACHINE", help="FILE or NAME of the machine")
    add("--gpus", metavar="0,1,4", help="its GPUs in the order of the ranks (all); -np follows")
    add("--links", metavar="SET", help="what trees may use: nvlink or all (all)")
    add("--scale", metavar="N", help=f"links are N times slower than there ({DEFAULT_SCALE})")
    add("--against", metavar="ring", help="measure the ring library's program as well")
    add("--collective", metavar="NAME", help="allreduce (default), broadcast, reduce, allgather, …")
    add("--root", metavar="GPU", help="of broadcast and reduce (first)")
    add("--sizes", metavar="1M,4M", help="bytes that are moved, comma-separated")
    add("--trees", metavar="HOW", help=f"{', '.join(TREES)} (auto: the fastest simulated)")
    add("--chunk", metavar="BYTES", help="size of a chunk of the trees (chosen)")
    add("--iters", metavar="N", help="timed calls a size (one a round)")
    add("--rounds", metavar="N", help="how often each is timed; the median counts (3)")
    add("--json", metavar="FILE", help="write the rows to FILE")
    add("--plot", metavar="FILE.png", help="draw algbw over size (svg, png or pdf)")
    add_source_options(parser)
    add("--training", action="store_true", help=argparse.SUPPRESS)
    add("-h", "--help", action="store_true", help="show this and exit")
    return parser


def parse(argv: Sequence[str]) -> EmulateOptions | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown, its value cannot be used, or two contradict each other.
    """
    if "-h" in argv or "--help" in argv:  # also behind --emulate, which then lacks its value
        return None
    args = make_parser().read(argv)
    if args.training:
        raise UsageError(f"--training does not go with {FLAG}: it trains on this host")
    if args.emulate == STANDARD_INPUT:
        raise UsageError(f"{FLAG} -: the ranks read standard input; write the report to a file")
    options = EmulateOptions(
        source=source_of(args.emulate, args),
        gpus=None if args.gpus is None else parse_gpus("--gpus", args.gpus),
        links=one_of("--links", args.links or "all", LINKS),
        scale=parse_count("--scale", args.scale or f"{DEFAULT_SCALE}"),
        against=_peers(args.against or ""),
        sizes=None if args.sizes is None else _sizes(args.sizes),
        collective=one_of("--collective", args.collective or "allreduce", COLLECTIVES),
        root=None if args.root is None else parse_count("--root", args.root, least=0),
        trees=one_of("--trees", args.trees or "auto", TREES),
        chunk_bytes=0 if args.chunk is None else _size("--chunk", args.chunk),
        json=_writable("--json", args.json),
        plot=parse_picture(args.plot),
        calls=0 if args.iters is None else parse_count("--iters", args.iters),
        rounds=3 if args.rounds is None else parse_count("--rounds", args.rounds),
    )
    _check_root(options)
    return options


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in PEERS:
            raise UsageError(
                f"--against {name}: beside {FLAG} there is only ring, a ring library's program"
                " over the same links"
            )
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_size("--sizes", item) for item in text.split(",")))


def _size(flag: str, text: str) -> int:
    try:
        size = parse_size(text)
    except UsageError as err:
        raise UsageError(f"{flag} {text}: {err}") from None
    if size < 1:
        raise UsageError(f"{flag} {text}: need at least 1 byte")
    return size


def _writable(flag: str, text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{flag} {path}: that is a folder")
    return path


def _check_root(options: EmulateOptions) -> None:
    if options.root is None:
        return
    if options.collective not in ROOTED:
        raise UsageError(f"--root is for {' and '.join(ROOTED)}; {options.collective} has none")
    if options.gpus is not None and options.root not in options.gpus:
        named = ",".join(map(str, options.gpus))
        raise UsageError(f"--root {options.root} is not among --gpus {named}")
