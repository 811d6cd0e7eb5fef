"""The options of ``blinkrun -np N bench``, checked before anything is measured."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun.bench import framework
from blinkrun.bench.emulate_options import FLAG as EMULATE
from blinkrun.bench.emulate_options import is_emulated
from blinkrun.bench.parser import Parser
from blinkrun.bench.work import COLLECTIVES, Work, num_blocks
from blinkrun.cli import Prepared
from blinkrun.errors import ReportError, UsageError
from blinkrun.types import DType, Op
from blinkrun.units import parse_size

DEFAULT_SIZES = "4,1K,16K,256K,1M,4M,16M,64M,256M"
# The package that a peer is measured through, and what installs it.
PEERS = {"mpi": ("mpi4py", "mpi4py"), "gloo": ("torch", "'blinkrun[torch]'")}
BUFFERS = ("arena", "user")

EPILOG = """\
Units: GB/s = 10^9 bytes/s, algbw and busbw as nccl-tests defines them. The libraries take turns in
one run; a time is the median over rounds of the slowest rank's mean time of a call.

  blinkrun -np 2 bench --sizes 4,16K,1M,64M --against mpi,gloo --json out.json --plot out.png
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure and where to put it.

    `calls` is the number of timed calls per size and library, 0 to choose by their time.
    """

    sizes: tuple[int, ...]
    collective: str
    dtype: DType
    op: Op
    root: int
    buffers: str
    against: tuple[str, ...]
    memory: bool
    json: Path | None
    plot: Path | None
    calls: int
    warmup: int
    rounds: int

    def work(self, size_bytes: int, num_ranks: int) -> Work:
        """Return the call that a row of `size_bytes` measures."""
        return Work(
            collective=self.collective,
            dtype=self.dtype,
            op=self.op,
            root=self.root,
            num_ranks=num_ranks,
            size_bytes=size_bytes,
        )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its help is what ``bench --help`` prints."""
    parser = Parser(
        prog="blinkrun -np N bench",
        description="Measure a collective over sizes, and other libraries in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this and exit")
    add("--sizes", metavar="4,1K,…", help=f"bytes, comma-separated (default {DEFAULT_SIZES})")
    add("-b", dest="smallest", metavar="MIN", help="or a range of sizes: from MIN (default 4)")
    add("-e", dest="largest", metavar="MAX", help="to MAX (default 256M)")
    add("-f", dest="factor", metavar="FACTOR", type=int, help="by FACTOR (default 4)")
    add("--collective", default="allreduce", metavar="NAME", help=", ".join(COLLECTIVES))
    add("--dtype", default="float32", metavar="NAME", help=", ".join(t.label for t in DType))
    add("--op", default="sum", metavar="NAME", help=", ".join(o.name.lower() for o in Op))
    add("--root", default=0, type=int, metavar="R", help="root of broadcast and reduce (default 0)")
    add("--buffers", default="arena", metavar="KIND", help="arena (in place, default) or user")
    add("--against", default="", metavar="PEERS", help=f"peers: {', '.join(PEERS)}")
    add(EMULATE, metavar="MACHINE", help="a machine that is not here; --emulate MACHINE --help")
    add(framework.FLAG, metavar="tf|torch", help="measure training; --framework tf --help")
    add("--training", action="store_true", help="measure training instead; --training --help")
    add("--engine", action="store_true", help="measure named torch allreduces; --engine --help")
    add("--memory", action="store_true", help="compare with the machine's read+write rate")
    add("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    add("--plot", type=Path, metavar="FILE.png", help="draw algbw over size (needs matplotlib)")
    add("--iters", default=0, type=int, metavar="N", help="timed calls a size (default: by time)")
    add("--warmup", default=3, type=int, metavar="N", help="calls before (default 3)")
    add("--rounds", default=7, type=int, metavar="N", help="turns of each library (default 7)")
    return parser


def parse(argv: Sequence[str], num_ranks: int) -> Options | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown, its value cannot be used, or a package that it needs is missing.
    """
    args = make_parser().parse_args(argv)
    if args.help:
        return None
    _at_least("--iters", args.iters, 0)
    _at_least("--warmup", args.warmup, 1)
    _at_least("--rounds", args.rounds, 1)
    sizes, is_exact = _sizes(args)
    options = Options(
        sizes=sizes,
        collective=_one_of("--collective", args.collective, COLLECTIVES),
        dtype=DType[_one_of("--dtype", args.dtype, [t.label for t in DType]).upper()],
        op=Op[_one_of("--op", args.op, [o.name.lower() for o in Op]).upper()],
        root=args.root,
        buffers=_one_of("--buffers", args.buffers, BUFFERS),
        against=_peers(args.against),
        memory=args.memory,
        json=_writable("--json", args.json),
        plot=_writable("--plot", args.plot),
        calls=args.iters,
        warmup=args.warmup,
        rounds=args.rounds,
    )
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'blinkrun[plot]'")
    return _fit(options, num_ranks=num_ranks, is_exact=is_exact)


def check(argv: Sequence[str], num_ranks: int | None) -> str | Prepared | None:
    """Look at `argv` before ranks start; what the launcher calls.

    Returns
    -------
    str, Prepared or None
        The help if it is asked for; the job of ``--emulate``; None for ranks as ``-np`` says.

    Raises
    ------
    UsageError
        As `parse`. Options of ``--training`` and ``--engine`` are left to the ranks, which load
        torch.
    """
    try:
        if is_emulated(argv):
            from blinkrun.bench.emulate import prepare  # noqa: PLC0415 - loads the planner

            return prepare(argv, num_ranks)
        wants_help = bool({"-h", "--help"} & {*argv})
        if framework.is_framework(argv):
            asked = framework.parse(argv)
            return framework.make_parser().format_help() if asked is None else None
        if {"--training", "--engine"} & {*argv}:
            return _help_on_torch(argv) if wants_help else None
        if num_ranks is None:
            return make_parser().format_help() if wants_help else None
        return make_parser().format_help() if parse(argv, num_ranks) is None else None
    except ReportError:
        raise  # names its file
    except UsageError as err:
        raise UsageError(f"bench: {err}") from None


def _help_on_torch(argv: Sequence[str]) -> str:
    """Return the help of what is measured on torch; it needs neither torch nor ranks."""
    from blinkrun.bench import named, training  # noqa: PLC0415

    make = training.make_parser if "--training" in argv else named.make_parser
    return make().format_help()


def _fit(options: Options, *, num_ranks: int, is_exact: bool) -> Options:
    """Round sizes down to whole elements in every block, as nccl-tests does.

    A size below one element is dropped from a range, and refused where it was asked for.
    """
    unit = options.dtype.itemsize * num_blocks(options.collective, num_ranks)
    too_small = [size for size in options.sizes if size < unit]
    if too_small and is_exact:
        raise UsageError(
            f"size {too_small[0]} is too small: one element of {options.dtype.label} in every"
            f" block is {unit} bytes"
        )
    sizes = [size // unit * unit for size in options.sizes if size >= unit]
    fitted = dataclasses.replace(options, sizes=tuple(dict.fromkeys(sizes)))
    if not fitted.sizes:
        raise UsageError(f"no size holds {unit} bytes, one element in every block")
    for size_bytes in fitted.sizes:
        fitted.work(size_bytes, num_ranks)  # refuses what cannot be measured
    return fitted


def _sizes(args: argparse.Namespace) -> tuple[tuple[int, ...], bool]:
    """Return the sizes, and whether they were given one by one."""
    is_range = any(value is not None for value in (args.smallest, args.largest, args.factor))
    if is_range and args.sizes is not None:
        raise UsageError("--sizes and -b/-e/-f exclude each other")
    if not is_range:
        texts = (args.sizes or DEFAULT_SIZES).split(",")
        return tuple(parse_size(text) for text in texts), args.sizes is not None
    size, largest = parse_size(args.smallest or "4"), parse_size(args.largest or "256M")
    factor = 4 if args.factor is None else args.factor
    _at_least("-f", factor, 2)
    if not 0 < size <= largest:
        raise UsageError(f"-b {size} -e {largest} holds no size; need 0 < MIN <= MAX")
    sizes = []
    while size <= largest:
        sizes.append(size)
        size *= factor
    return tuple(sizes), False


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name == "ring":
            raise UsageError(f"--against ring is for an emulated machine: {EMULATE} MACHINE")
        _one_of("--against", name, tuple(PEERS))
        package, source = PEERS[name]
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"--against {name} needs {package}: pip install {source}")
    return names


def _one_of(flag: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{flag} {value} is unknown; known are {', '.join(known)}")
    return value


def _at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{flag} is {value}, need at least {least}")


def _writable(flag: str, path: Path | None) -> Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}")
    return path
