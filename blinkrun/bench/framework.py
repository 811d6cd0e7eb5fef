"""``blinkrun -np N bench --framework tf|torch``: samples per second of training; its options."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun import log
from blinkrun.bench import training
from blinkrun.bench.parser import Parser
from blinkrun.errors import LaunchError, UsageError

FLAG = "--framework"
# The package that a framework is found by, and what installs it.
FRAMEWORKS = {"tf": ("tensorflow", "tensorflow-cpu"), "torch": ("torch", "torch")}
MODELS = {"mlp25m": "mlp25", "cnn": "cnn1"}  # and what `bench --training` calls them
TF_WAYS = {
    "mwms": "MultiWorkerMirroredStrategy",
    "apart": "Keras fit, not reduced",
    "single": "Keras fit alone",
    "single-tape": "tape loop alone",
    "tf_keras": "tf_keras fit alone",
}
NEED_TF_KERAS = ("mwms", "tf_keras")

EPILOG = f"""\
Ways of tf: {", ".join(TF_WAYS)};
of torch: {", ".join(training.WAYS)}, horovod. All take turns in one run.
mlp25m: 25 MB, linear 3072-1536-1024-10; cnn: 1 MB, convolutions 3-32-64-128, linear 2048-64-10.
Random images of 3x32x32, SGD with momentum.
MultiWorkerMirroredStrategy runs model.fit of tf_keras in processes of its own, which sleep while
others have their turn; without tf_keras it is left out.

  blinkrun -np 2 bench --framework tf --model mlp25m --against mwms,single --json out.json
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to train with what, and beside what; `left_out` is said, not measured."""

    framework: str
    models: tuple[str, ...]
    against: tuple[str, ...]
    left_out: str
    batch: int
    threads: int
    rounds: int
    json: Path | None


def is_framework(argv: Sequence[str]) -> bool:
    """Whether `argv` asks for this benchmark."""
    return any(word.partition("=")[0] == FLAG for word in argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its help is what ``bench --framework tf --help`` prints."""
    parser = Parser(
        prog="blinkrun -np N bench --framework tf|torch",
        description="Measure training with blinkrun, and other ways in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this and exit")
    add(FLAG, default="", metavar="NAME", help=", ".join(FRAMEWORKS))
    add("--model", default=",".join(MODELS), metavar="NAMES", help=f"default: {', '.join(MODELS)}")
    add("--against", metavar="NAMES", help="ways beside blinkrun (default all); none")
    add("--batch", default=32, type=int, metavar="N", help="images a rank and step (default 32)")
    add("--threads", default=1, type=int, metavar="N", help="of TensorFlow in a rank (default 1)")
    add("--rounds", default=7, type=int, metavar="N", help="turns of each way (default 7)")
    add("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    return parser


def parse(argv: Sequence[str]) -> Options | None:
    """Return the checked options, or None if help is asked for. No framework is loaded.

    Raises
    ------
    UsageError
        If an option is unknown, its value cannot be used, or a package that it needs is missing.
    """
    args = make_parser().parse_args(argv)
    if args.help:
        return None
    if args.framework not in FRAMEWORKS:
        raise UsageError(f"{FLAG} {args.framework}: choose of {', '.join(FRAMEWORKS)}")
    package, extra = FRAMEWORKS[args.framework]
    if not _is_there(package):
        raise UsageError(
            f"{FLAG} {args.framework} needs {package}: pip install 'blinkrun[{extra}]'"
        )
    for name in ("batch", "threads", "rounds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}, need at least 1")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no folder {args.json.parent}")
    against, left_out = _ways(args.framework, args.against)
    return Options(
        framework=args.framework,
        models=_some_of("--model", args.model, tuple(MODELS)),
        against=against,
        left_out=left_out,
        batch=args.batch,
        threads=args.threads,
        rounds=args.rounds,
        json=args.json,
    )


def _ways(framework: str, text: str | None) -> tuple[tuple[str, ...], str]:
    """Return the ways to measure beside blinkrun, and why some of the default ones are not."""
    known = (*TF_WAYS,) if framework == "tf" else (*training.WAYS, *training.HOROVOD)
    if text is not None:
        names = _some_of("--against", "" if text == "none" else text, known)
        for name in names:
            package = "tf_keras" if name in NEED_TF_KERAS else name
            if name in (*NEED_TF_KERAS, *training.HOROVOD) and not _is_there(package):
                raise UsageError(f"--against {name} needs {package}, which is not installed here")
        return names, ""
    if framework == "torch":
        return (*training.WAYS,), ""
    if _is_there("tf_keras"):
        return known, ""
    left_out = f"tf_keras is not installed: {' and '.join(NEED_TF_KERAS)} left out"
    return tuple(name for name in known if name not in NEED_TF_KERAS), left_out


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _some_of(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: choose of {', '.join(known)}")
    return names


def framework_main(argv: Sequence[str], world: Any) -> int:
    """Measure what `argv` asks for; every rank of the job must call it with the same `argv`.

    Rank 0 prints to stdout. Returns the exit code: 0, 1 if the ranks' weights were not the same
    after blinkrun trained them, or 2 if `argv` cannot be carried out. A rank whose worker fails
    says so and exits with 1.
    """
    try:
        options = parse(argv)
    except UsageError as err:
        if world.rank == 0:
            log.say(f"bench: {err}")
        world.barrier()  # no rank leaves before the reason is out
        return 2
    if options is None:
        if world.rank == 0:
            print(make_parser().format_help().rstrip(), flush=True)
        world.barrier()
        return 0
    if options.framework == "tf":
        from blinkrun.bench.tf_training import run  # noqa: PLC0415  (imports TensorFlow)

        try:
            return run(options, world)
        except LaunchError as err:  # of a process beside this rank: the job cannot go on
            log.say(str(err))
            sys.exit(1)
    import blinkrun.torch  # noqa: PLC0415  (imports torch)

    blinkrun.torch.init()
    return training.run(as_training(options), world)


def as_training(options: Options) -> training.Options:
    """Return the options of ``bench --training`` that ask for the same."""
    return training.Options(
        models=tuple(MODELS[name] for name in options.models),
        against=options.against,
        batch=options.batch,
        rounds=options.rounds,
        json=options.json,
    )
