"""``blinkrun -np N bench --training``: samples per second of training, beside other ways to do it.

All ways take turns in one run, so that whatever else the machine does hits them alike. A figure is
the median over rounds of the slowest rank.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun import log
from blinkrun.bench.libraries import Control
from blinkrun.bench.parser import Parser
from blinkrun.errors import UsageError

WAYS = {
    "ddp": "DDP over gloo",
    "ddp-blink": "DDP over blink",
    "flat": "one flat MPI allreduce",
    "single": "one process alone",
    "apart": "not reduced",
}
HOROVOD = {"horovod": "Horovod"}  # measured where it is installed and asked for
MODEL_NAMES = ("mlp25", "cnn1", "cnn27")
BLOCK_S = 0.5

EPILOG = """\
mlp25: 25 MB, linear 3072-1536-1024-10; cnn1: 1 MB, convolutions 3-32-64-128, linear 2048-64-10;
cnn27: 27 MB, convolutions 3-64-128-256, linear 4096-1536-10. Random images of 3x32x32, SGD with
momentum. Exposed: what is left of the communication when backward is through.

  blinkrun -np 2 bench --training --models mlp25,cnn1 --against ddp,flat,single --json out.json
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to train and beside what."""

    models: tuple[str, ...]
    against: tuple[str, ...]
    batch: int
    rounds: int
    json: Path | None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its help is what ``bench --training --help`` prints."""
    parser = Parser(
        prog="blinkrun -np N bench --training",
        description="Measure training with blinkrun, and other ways in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this and exit")
    add("--models", default=",".join(MODEL_NAMES), metavar="NAMES", help="default: all")
    add(
        "--against",
        default=",".join(WAYS),
        metavar="NAMES",
        help=f"{', '.join(WAYS)}, horovod; none",
    )
    add("--batch", default=32, type=int, metavar="N", help="images a rank and step (default 32)")
    add("--rounds", default=7, type=int, metavar="N", help="turns of each way (default 7)")
    add("--json", type=Path, metavar="FILE", help="write the figures to FILE")
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
    for name in ("batch", "rounds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}, need at least 1")
    if args.json is not None and not args.json.resolve().parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no such folder")
    against = "" if args.against == "none" else args.against
    if "horovod" in against.split(",") and importlib.util.find_spec("horovod") is None:
        raise UsageError("--against horovod: it is not installed here")
    return Options(
        models=_some_of("--models", args.models, MODEL_NAMES),
        against=_some_of("--against", against, (*WAYS, *HOROVOD)),
        batch=args.batch,
        rounds=args.rounds,
        json=args.json,
    )


def _some_of(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: choose of {', '.join(known)}")
    return names


def training_main(argv: Sequence[str]) -> int:
    """Measure what `argv` asks for; every rank of the job must call it with the same `argv`.

    Rank 0 prints to stdout. Returns the exit code: 0, or 2 if `argv` cannot be carried out.
    """
    import blinkrun  # noqa: PLC0415  (starts MPI: not before it is needed)
    import blinkrun.torch  # noqa: PLC0415  (imports torch)

    blinkrun.torch.init()
    world = blinkrun.world()
    try:
        options = parse(argv)
    except UsageError as err:
        if world.rank == 0:
            log.say(f"bench --training: {err}")
        world.barrier()  # no rank leaves before the reason is out
        return 2
    if options is None:
        if world.rank == 0:
            print(make_parser().format_help().rstrip(), flush=True)
        world.barrier()
        return 0
    return run(options, world)


def run(options: Options, world: Any) -> int:
    """Measure what `options` say; every rank must call it with the same ones, after `init`."""
    from blinkrun.bench.peers import close_peers, make_peers  # noqa: PLC0415  (imports torch)

    peers = make_peers(["gloo"] if {"ddp", "ddp-blink"} & {*options.against} else [], world)
    try:
        results = {}
        _show(world, _heading(options, world))
        for model in options.models:
            results[model] = measure(model, options, world)
            for line in table(model, results[model]):
                _show(world, line)
    finally:
        close_peers(peers)
    if options.json is not None and world.rank == 0:
        document = {"ranks": world.size, "batch": options.batch, "models": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _show(world: Control, line: str) -> None:
    if world.rank == 0:
        print(line, flush=True)


def _heading(options: Options, world: Any) -> str:
    threads = os.environ.get("OMP_NUM_THREADS", "?")
    return (
        f"# training: {world.size} ranks, {world.cores} cores, OMP_NUM_THREADS {threads}, "
        f"{options.batch} images a rank, {options.rounds} rounds"
    )


def measure(model: str, options: Options, world: Any) -> dict[str, Any]:
    """Return the figures of one model; every rank must call it with the same arguments."""
    from blinkrun.bench import trainers as t  # noqa: PLC0415  (imports torch)
    from blinkrun.bench.models import num_bytes  # noqa: PLC0415

    given: dict[str, Any] = {"batch": options.batch, "rank": world.rank}
    ours = {
        overlap: t.Ours(f"blinkrun, overlap {overlap}", model, overlap=overlap, **given)
        for overlap in ("off", "on")
    }
    makers: dict[str, Callable[[str], t.Trainer]] = {
        "ddp": lambda name: t.Ddp(name, model, **given),
        "ddp-blink": lambda name: t.DdpBlink(name, model, **given),
        "horovod": lambda name: t.Horovod(name, model, **given),
        "flat": lambda name: t.Flat(name, model, num_ranks=world.size, **given),
        "single": lambda name: t.Single(name, model, **given),
        "apart": lambda name: t.Trainer(name, model, **given),
    }
    everyone = [*ours.values(), *(makers[n]({**WAYS, **HOROVOD}[n]) for n in options.against)]
    rates = _rates(everyone, options, world)
    return {
        "ranks": world.size,
        "gradient_bytes": num_bytes(ours["off"].model),
        "auto": f"blinkrun, overlap {_auto(world)}",
        "samples_per_s": {
            name: {"median": statistics.median(each), "min": min(each), "max": max(each)}
            for name, each in rates.items()
        },
        "step_ms": {
            f"overlap {overlap}": _breakdown(trainer, options, world)
            for overlap, trainer in ours.items()
        },
    }


def _auto(world: Any) -> str:
    """Return what a user's DistributedOptimizer chooses here."""
    from blinkrun.torch.settings import choose  # noqa: PLC0415

    return "on" if choose(world, "auto").on else "off"


def _rates(everyone: Sequence[Any], options: Options, world: Any) -> dict[str, list[float]]:
    """Return the samples per second of every way in every round."""
    steps = {trainer.name: _block_length(trainer, world) for trainer in everyone}
    rates: dict[str, list[float]] = {trainer.name: [] for trainer in everyone}
    for _ in range(options.rounds):
        for trainer in everyone:
            count = steps[trainer.name]
            seconds = max(world.allgather_object(_timed(trainer, count, world)))
            num_ranks = world.size if trainer.takes_all_ranks else 1
            rates[trainer.name].append(num_ranks * count * options.batch / seconds)
    return rates


def _block_length(trainer: Any, world: Any) -> int:
    """Return the steps of a block, the same on every rank, after a warm-up."""
    _timed(trainer, 3, world)
    seconds = max(world.allgather_object(_timed(trainer, 3, world))) / 3
    return max(1, round(BLOCK_S / float(seconds)))


def _timed(trainer: Any, count: int, world: Any) -> float:
    """Return the seconds of `count` steps that all ranks begin together."""
    world.barrier()
    start = time.perf_counter()
    if trainer.takes_all_ranks or world.rank == 0:
        for _ in range(count):
            trainer.step()
    return time.perf_counter() - start


def _breakdown(trainer: Any, options: Options, world: Any) -> dict[str, float]:
    """Return the milliseconds of each phase: the median over steps, the mean over ranks."""
    world.barrier()
    steps = [trainer.phases() for _ in range(3 * options.rounds)]
    mine = {phase: statistics.median(step[phase] for step in steps) for phase in steps[0]}
    ranks: list[Mapping[str, float]] = world.allgather_object(mine)
    return {phase: 1e3 * statistics.fmean(rank[phase] for rank in ranks) for phase in mine}


def table(model: str, result: Mapping[str, Any]) -> list[str]:
    """Return the lines about one model."""
    rates = result["samples_per_s"]
    chosen = rates[result["auto"]]["median"]
    lines = [
        f"# {model}: {result['gradient_bytes'] / 1e6:.1f} MB of gradients",
        f"# {'way':<26} {'samples/s':>10} {'min':>7} {'max':>7} {'blinkrun is':>12}",
    ]
    for name, rate in rates.items():
        mark = "*" if name == result["auto"] else " "
        lines.append(
            f"{mark} {name:<26} {rate['median']:10.0f} {rate['min']:7.0f} {rate['max']:7.0f} "
            f"{chosen / rate['median']:11.2f}x"
        )
    lines.append(
        "# step, ms: "
        + "  ".join(
            f"{phase:>9}" for phase in ("forward", "backward", "exposed", "optimizer", "total")
        )
    )
    for way, phases in result["step_ms"].items():
        figures = [*phases.values(), sum(phases.values())]
        lines.append(f"{way:<12}" + "  ".join(f"{figure:9.2f}" for figure in figures))
    return [*lines, *_share_lines(result)]


def _share_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what part of a step is communication, and what the ranks give beside being alone."""
    rates = {name: rate["median"] for name, rate in result["samples_per_s"].items()}
    phases = result["step_ms"][result["auto"].removeprefix("blinkrun, ")]
    words = [f"{phases['exposed'] / sum(phases.values()):.1%} of a step is exposed communication"]
    ours, alone, apart = (rates.get(n) for n in (result["auto"], WAYS["single"], WAYS["apart"]))
    if ours and apart:
        words.append(f"{1 - ours / apart:.1%} by the difference to ranks that reduce nothing")
    if ours and alone and result.get("ranks"):
        words.append(f"{ours / alone / result['ranks']:.0%} efficiency")
    return [f"# {result['auto']}: {', '.join(words)}".replace("%", " %")]
