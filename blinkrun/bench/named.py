"""``blinkrun -np N bench --engine``: named allreduces of torch tensors, beside other libraries'.

What is timed is what a script calls: ``blinkrun.torch.allreduce_(tensor, name=…)``, which the ranks
negotiate, the same call of Horovod where that is installed, and
``torch.distributed.all_reduce(tensor)`` over gloo, which must come in the same order everywhere.
Then many small tensors at once: all submitted, then all waited for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blinkrun import log
from blinkrun.bench.libraries import Call, Control, UserMemory
from blinkrun.bench.measure import Effort, Row, measure, median_of_slowest, timed_block
from blinkrun.bench.parser import Parser
from blinkrun.bench.table import format_us
from blinkrun.bench.work import Buffers, Work
from blinkrun.errors import UsageError
from blinkrun.types import DType, Op
from blinkrun.units import format_size, parse_size

DEFAULT_SIZES = "4,1K,16K,256K,1M,4M,16M,64M"
PEERS = ("gloo", "horovod")
EPILOG = """\
Times are medians over rounds of the slowest rank's mean. GB/s = 10^9 bytes/s, bytes over time.

  blinkrun -np 2 bench --engine --sizes 4,16K,1M,64M --against gloo --json out.json --plot out.png
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to time; `burst` tensors of `burst_bytes` are submitted at once, 0 leaves that out."""

    sizes: tuple[int, ...]
    against: tuple[str, ...]
    burst: int
    burst_bytes: int
    rounds: int
    json: Path | None
    plot: Path | None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its help is what ``bench --engine --help`` prints."""
    parser = Parser(
        prog="blinkrun -np N bench --engine",
        description="Measure named allreduces of torch tensors, and gloo's in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this and exit")
    add("--sizes", default=DEFAULT_SIZES, metavar="4,1K,…", help=f"default {DEFAULT_SIZES}")
    add("--against", default="gloo", metavar="NAMES", help="gloo (default), horovod, none")
    add("--burst", default=1000, type=int, metavar="N", help="small tensors at once (1000)")
    add("--burst-bytes", default="256", metavar="SIZE", help="size of each of them (256)")
    add("--rounds", default=7, type=int, metavar="N", help="turns of each library (default 7)")
    add("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    add("--plot", type=Path, metavar="FILE.png", help="draw algbw over size (needs matplotlib)")
    return parser


def parse(argv: Sequence[str]) -> Options | None:
    """Return the checked options, or None if help is asked for.

    Raises
    ------
    UsageError
        If an option is unknown or its value cannot be used.
    """
    args = make_parser().parse_args(argv)
    if args.help:
        return None
    sizes = tuple(parse_size(text) for text in args.sizes.split(","))
    burst_bytes = parse_size(args.burst_bytes)
    for size in (*sizes, burst_bytes):
        if size < 4 or size % 4:
            raise UsageError(f"size {size} is no multiple of 4 bytes, one float32")
    if args.burst < 0 or args.rounds < 1:
        raise UsageError("--burst needs at least 0 and --rounds at least 1")
    against = () if args.against == "none" else tuple(dict.fromkeys(args.against.split(",")))
    for name in against:
        if name not in PEERS:
            raise UsageError(f"--against {name}: choose of {', '.join(PEERS)}, or none")
    if "horovod" in against and importlib.util.find_spec("horovod") is None:
        raise UsageError("--against horovod: it is not installed here")
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no folder {path.parent}")
    return Options(sizes, against, args.burst, burst_bytes, args.rounds, args.json, args.plot)


def named_main(argv: Sequence[str]) -> int:
    """Measure what `argv` asks for; every rank of the job must call it with the same `argv`.

    Rank 0 prints to stdout. Returns the exit code: 0, 1 if a result was wrong, or 2 if `argv`
    cannot be carried out.
    """
    import blinkrun  # noqa: PLC0415  (starts MPI: not before it is needed)
    import blinkrun.torch as blink  # noqa: PLC0415  (imports torch)

    blink.init()
    world = blinkrun.world()
    try:
        options = parse(argv)
    except UsageError as err:
        if world.rank == 0:
            log.say(f"bench --engine: {err}")
        world.barrier()  # no rank leaves before the reason is out
        return 2
    if options is None:
        if world.rank == 0:
            print(make_parser().format_help().rstrip(), flush=True)
        world.barrier()
        return 0
    return _run(options, world)


def _run(options: Options, world: Control) -> int:
    from blinkrun.bench.peers import close_peers, make_peers  # noqa: PLC0415

    peers = make_peers([name for name in options.against if name == "gloo"], world)
    others = [Named(horovod()), *peers] if "horovod" in options.against else peers
    effort = Effort(rounds=options.rounds)
    try:
        _show(world, heading(options, world.size))
        rows = []
        for size_bytes in options.sizes:
            work = Work("allreduce", DType.FLOAT32, Op.SUM, 0, world.size, size_bytes)
            rows.append(measure(work, [Named(), *others], world, effort))
            _show(world, row_line(rows[-1], options))
        burst = measure_burst(options, world) if options.burst else {}
        for line in burst_lines(burst, options):
            _show(world, line)
    finally:
        close_peers(peers)
    result = as_json(rows, burst, options, world.size)
    if world.rank == 0:
        if options.json is not None:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
        if options.plot is not None:
            from blinkrun.bench.plot import draw  # noqa: PLC0415  (matplotlib is an extra)

            draw(result, options.plot)
    return 1 if any(row.wrong for row in rows) else 0


def horovod() -> Any:
    """Return Horovod's torch module, started."""
    import horovod.torch as hvd  # noqa: PLC0415  (a peer, where it is installed)

    hvd.init()
    return hvd


class Named:
    """``allreduce_`` under a name, on ordinary memory: `blinkrun.torch`'s, or that of `module`."""

    def __init__(self, module: Any = None) -> None:
        import blinkrun.torch  # noqa: PLC0415

        self.name = "blinkrun" if module is None else "horovod"
        self._module = blinkrun.torch if module is None else module
        self._memory = UserMemory()

    def refuses(self, work: Work) -> str | None:
        """Nothing that is asked for here is refused."""
        return None

    def make_buffers(self, work: Work) -> Buffers:
        """Return ordinary memory."""
        return self._memory.buffers(work)

    def make_call(self, work: Work, buffers: Buffers) -> Call:
        """Return the call of the public API on a tensor over the buffer."""
        import torch  # noqa: PLC0415

        tensor = torch.from_numpy(buffers.send)
        op, name = self._module.Sum, f"bench.{work.size_bytes}"
        return partial(self._module.allreduce_, tensor, name=name, op=op)


def measure_burst(options: Options, world: Control) -> dict[str, float]:
    """Return the seconds that each library takes for all small tensors of a burst."""
    import time  # noqa: PLC0415

    calls = _burst_calls(options)
    for call in calls.values():
        for _ in range(3):
            timed_block(call, 1, world, time.perf_counter)
    mine: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            mine[name].append(timed_block(call, 3, world, time.perf_counter))
    everyone: list[Mapping[str, Sequence[float]]] = world.allgather_object(mine)
    return {name: median_of_slowest(everyone, name) for name in calls}


def _burst_calls(options: Options) -> dict[str, Callable[[], object]]:
    """Return what submits all tensors and then waits for all, by library."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    import blinkrun.torch as blink  # noqa: PLC0415

    tensors = [torch.ones(options.burst_bytes // 4) for _ in range(options.burst)]
    named = [(f"burst.{i}", tensor) for i, tensor in enumerate(tensors)]

    def of(module: Any) -> Callable[[], None]:
        def call() -> None:
            handles = [module.allreduce_async_(t, name=name, op=module.Max) for name, t in named]
            for handle in handles:
                module.synchronize(handle)

        return call

    def gloo() -> None:
        works = [dist.all_reduce(t, dist.ReduceOp.MAX, async_op=True) for t in tensors]
        for work in works:
            work.wait()

    calls: dict[str, Callable[[], object]] = {"blinkrun": of(blink)}
    for peer in options.against:
        calls[peer] = gloo if peer == "gloo" else of(horovod())
    return calls


def heading(options: Options, num_ranks: int) -> str:
    """Return the names and units of the columns."""
    line = f"# named allreduce, float32 sum, {num_ranks} ranks, torch tensors\n#"
    line += f"{'size':>9}{'time (us)':>12}{'GB/s':>9}{'#wrong':>8}"
    for peer in options.against:
        line += f"  |{peer + ' (us)':>13}{'GB/s':>9}{'x':>8}"
    return line


def row_line(row: Row, options: Options) -> str:
    """Return the line of one size."""
    time_us = row.time_us["blinkrun"]
    line = f" {format_size(row.work.size_bytes):>9}{format_us(time_us):>12}"
    line += f"{row.work.algbw(time_us):>9.3f}{row.wrong:>8}"
    for peer in options.against:
        theirs = row.time_us[peer]
        line += f"  |{format_us(theirs):>13}{row.work.algbw(theirs):>9.3f}{theirs / time_us:>8.2f}"
    return line


def burst_lines(seconds: Mapping[str, float], options: Options) -> list[str]:
    """Return the lines about the burst."""
    if not seconds:
        return []
    what = f"{options.burst} tensors of {format_size(options.burst_bytes)} at once"
    return [
        f"# {what}: {name} {1e3 * each:.2f} ms, {options.burst / each:.0f} tensors/s"
        for name, each in seconds.items()
    ]


def as_json(
    rows: Sequence[Row], burst: Mapping[str, float], options: Options, num_ranks: int
) -> dict[str, Any]:
    """Return what ``--json`` writes; rows as those of ``bench --json``."""
    found = []
    for row in rows:
        times = dict(row.time_us)
        ours = times.pop("blinkrun")
        found.append(
            {
                "size_bytes": row.work.size_bytes,
                "time_us": ours,
                "algbw_gb_per_s": row.work.algbw(ours),
                "wrong": row.wrong,
                "peers": {
                    peer: {"time_us": each, "algbw_gb_per_s": row.work.algbw(each)}
                    for peer, each in times.items()
                },
            }
        )
    return {
        "ranks": num_ranks,
        "collective": "named allreduce",
        "dtype": "float32",
        "buffers": "user",
        "rows": found,
        "burst": {"tensors": options.burst, "bytes": options.burst_bytes, "seconds": dict(burst)},
    }


def _show(world: Control, line: str) -> None:
    if world.rank == 0:
        print(line, flush=True)
