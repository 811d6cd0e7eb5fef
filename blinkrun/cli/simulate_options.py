"""The options of ``blinkrun simulate``, checked as far as that goes without a machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from blinkrun.cli.parsing import Parser, one_of, parse_count, parse_gbps, parse_gpus, parse_picture
from blinkrun.cli.source import Source, add_source_options, source_of
from blinkrun.errors import UsageError
from blinkrun.units import parse_size

COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter", "alltoall")
ROOTED = ("broadcast", "reduce")
LINKS = ("nvlink", "pcie", "all")
PEERS = ("ring",)
TREES = ("auto", "packed", "few", "one-hop", "shallow")
DEFAULT_SIZES = "1K,16K,256K,1M,16M,256M,1G"
LEAST_CHUNK_BYTES = 64  # a cache line
MOST_BYTES = 1 << 40

USAGE = "blinkrun simulate COLLECTIVE [--topology MACHINE] [--gpus 0,1,4] [options]"

DESCRIPTION = f"""\
Predict a collective: run its program over a machine on a virtual clock.

  COLLECTIVE  {", ".join(COLLECTIVES)}
  --paper     instead: the evaluation of the Blink paper; see --paper --help
"""

EPILOG = """\
examples:
  blinkrun simulate allreduce --topology dgx-1v --gpus 0,1,4 --against ring
  blinkrun simulate broadcast --topology dgx-2 --sizes 1M,500M --trace trees.json
  blinkrun simulate allreduce --topology dgx-1v --gpus 0-2/3-7 --hosts 2 --network-gbps 40
"""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What to simulate.

    Attributes
    ----------
    collective : str
    source : Source
        Of the machine.
    gpus : tuple of tuple of int
        The job's GPUs by host, in the order of the ranks; one list stands for every host, none for
        all GPUs.
    sizes : tuple of int
        Bytes of the collective as nccl-tests counts them, ascending.
    is_default : bool
        Whether nobody asked for these very sizes, so that those that are too small are left out.
    root : int or None
        A GPU of the first host; None for the first of the job.
    links : str or None
        None for all that the machine has.
    against : str or None
        ``ring``: simulate the rings of a ring library beside.
    trees : str
        Which trees may be chosen; ``auto``: the fastest for each size.
    chunk_bytes, channels : int or None
        None: the fastest for each size.
    hosts : int
        Alike, joined by a network.
    network_gbps : Fraction or None
        Of each host's NIC, in 10^9 bits/s; None for one host.
    json : bool
    plot, trace : Path or None
    """

    collective: str
    source: Source
    gpus: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    is_default: bool = False
    root: int | None = None
    links: str | None = None
    against: str | None = None
    trees: str = "auto"
    chunk_bytes: int | None = None
    channels: int | None = None
    hosts: int = 1
    network_gbps: Fraction | None = None
    json: bool = False
    plot: Path | None = None
    trace: Path | None = None


def make_parser() -> Parser:
    """Return the parser; its help is what ``simulate --help`` prints."""
    parser = Parser("simulate", USAGE, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("collective", nargs="?", help=argparse.SUPPRESS)
    add("--topology", metavar="MACHINE", help="FILE, - or NAME as for topo; default: this one")
    add("--gpus", metavar="0,1,4", help="GPUs in the order of the ranks (all); of hosts: 0,1/2-4")
    add("--sizes", metavar="1M,500M", help=f"bytes, K = 1024 ({DEFAULT_SIZES})")
    add("--root", metavar="R", help="GPU that broadcast or reduce is rooted at (first)")
    add("--links", metavar="SET", help="nvlink (any fabric beside PCIe), pcie or all (all)")
    add("--against", metavar="ring", help="what a ring library gets on the same GPUs")
    add("--trees", metavar="WHICH", help=f"{', '.join(TREES)} (auto: by size)")
    add("--chunk", metavar="BYTES", help="of pipelining (the fastest for each size)")
    add("--channels", metavar="N", help="per tree (the fastest for each size)")
    add("--hosts", metavar="N", help="so many of these machines (1)")
    add("--network-gbps", metavar="G", help="what joins the hosts, Gbit/s of each")
    add("--json", action="store_true", help="print JSON (docs/simulator.md)")
    add("--plot", metavar="FILE.svg", help="draw algbw over size (svg, png or pdf)")
    add("--trace", metavar="FILE.json", help="write the largest size's timeline for Perfetto")
    add_source_options(parser)
    add("-h", "--help", action="store_true", help="show this and exit")
    return parser


def parse(argv: Sequence[str]) -> SimulateOptions | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown, its value cannot be used, or two contradict each other.
    """
    args = make_parser().read(argv)
    if args.help:
        return None
    if args.collective is None:
        raise UsageError(f"which collective? one of {', '.join(COLLECTIVES)}; or --paper")
    options = SimulateOptions(
        collective=one_of("collective", args.collective, COLLECTIVES),
        source=source_of(args.topology, args),
        gpus=() if args.gpus is None else parse_hosts(args.gpus),
        sizes=parse_sizes(args.sizes or DEFAULT_SIZES),
        is_default=args.sizes is None,
        root=None if args.root is None else parse_count("--root", args.root, least=0),
        links=None if args.links is None else one_of("--links", args.links, LINKS),
        against=None if args.against is None else one_of("--against", args.against, PEERS),
        trees=one_of("--trees", args.trees or "auto", TREES),
        chunk_bytes=None if args.chunk is None else _chunk_bytes(args.chunk),
        channels=None if args.channels is None else parse_count("--channels", args.channels),
        hosts=1 if args.hosts is None else parse_count("--hosts", args.hosts),
        network_gbps=_network_gbps(args),
        json=args.json,
        plot=parse_picture(args.plot),
        trace=_trace(args.trace),
    )
    _check_hosts(options, args.gpus)
    _check_root(options)
    _check_alltoall(options)
    return options


def parse_hosts(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of every host: lists as `parse_gpus` takes them, with ``/`` between hosts.

    Raises
    ------
    UsageError
        As `parse_gpus`.

    Examples
    --------
    >>> parse_hosts("0-2/3,4")
    ((0, 1, 2), (3, 4))
    """
    return tuple(parse_gpus("--gpus", part) for part in text.split("/"))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of a list in bytes, each once, in ascending order.

    Raises
    ------
    UsageError
        If one is no size, nothing, or more than a TiB.

    Examples
    --------
    >>> parse_sizes("1M,4,1K")
    (4, 1024, 1048576)
    """
    sizes = set()
    for word in text.split(","):
        size = _size("--sizes", word)
        if not 0 < size <= MOST_BYTES:
            raise UsageError(f"--sizes {word}: need at least 1 byte, at most 1024G")
        sizes.add(size)
    return tuple(sorted(sizes))


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except (UsageError, OverflowError) as err:
        raise UsageError(f"{flag}: {err}") from None


def _chunk_bytes(text: str) -> int:
    size = _size("--chunk", text)
    if size < LEAST_CHUNK_BYTES:
        raise UsageError(f"--chunk {text}: need at least {LEAST_CHUNK_BYTES} bytes, a cache line")
    return size


def _network_gbps(args: argparse.Namespace) -> Fraction | None:
    if args.network_gbps is None:
        return None
    return parse_gbps("--network-gbps", args.network_gbps)


def _trace(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--trace {text}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"--trace {text}: that is a folder")
    return path


def _check_hosts(options: SimulateOptions, gpus: str | None) -> None:
    """Refuse hosts without a network, a network without hosts, and GPUs of other hosts."""
    if len(options.gpus) > 1 and len(options.gpus) != options.hosts:
        raise UsageError(
            f"--gpus {gpus}: GPUs of {len(options.gpus)} hosts, --hosts is {options.hosts}"
        )
    if options.hosts > 1 and options.network_gbps is None:
        raise UsageError(f"--hosts {options.hosts} needs --network-gbps, such as 100")
    if options.hosts == 1 and options.network_gbps is not None:
        raise UsageError("--network-gbps joins hosts; say with --hosts how many there are")
    if options.hosts > 1 and options.trees not in ("auto", "packed"):
        raise UsageError(
            f"--trees {options.trees} does not go with --hosts: trees over hosts are packed"
        )


def _check_root(options: SimulateOptions) -> None:
    if options.root is None:
        return
    if options.collective not in ROOTED:
        raise UsageError(f"--root is for {' and '.join(ROOTED)}; {options.collective} has none")
    if options.gpus and options.root not in options.gpus[0]:
        first = " of the first host" if options.hosts > 1 else ""
        listed = ",".join(map(str, options.gpus[0]))
        raise UsageError(f"--root {options.root} is not among --gpus {listed}{first}")


def _check_alltoall(options: SimulateOptions) -> None:
    """Refuse what chooses between trees where there are none."""
    if options.collective != "alltoall":
        return
    given = {
        "--trees": options.trees != "auto",
        "--against": options.against is not None,
        "--chunk": options.chunk_bytes is not None,
        "--channels": options.channels is not None,
    }
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(f"{flag}: alltoall goes from each straight to each, without trees")
