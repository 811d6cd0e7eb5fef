"""The commands that the reports are made of, and how they are launched."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun import log
from blinkrun.errors import LaunchError

SIZES = "4,1K,16K,256K,1M,4M,16M,64M,256M"
UP_TO_64M = "4,1K,16K,256K,1M,4M,16M,64M"
BLOCKS = "8,1K,16K,256K,1M,4M,16M,64M"  # 8: a float32 for each of two ranks
FROM_1M = "1M,4M,16M,64M"
QUICK_SIZES = "8,1K,16K,256K,1M"
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """One command: ``blinkrun -np ranks bench arguments``.

    `slots` are the ranks of each fake host, none for this machine alone; `rate` is that of the
    hosts' links as tc takes it, none for no limit.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    is_drawn: bool = False
    slots: tuple[int, ...] = ()
    rate: str = ""


Launch = Callable[[Run], tuple[str, Any]]  # returns the table and the JSON result of one launch


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the launches of a run gave: the first table, and every JSON result."""

    run: Run
    command: str
    table: str
    launches: tuple[Mapping[str, Any], ...]


def training_runs() -> list[Run]:
    """Return the runs of the report on training."""
    ways = ("ddp", "ddp-blink", "flat", "single")
    two = ("--models", "mlp25,cnn1")
    runs = [Run("1 ranks training", 1, ("--training", *two, "--against", "single"))]
    for ranks in (2, 4, 8):
        models = two if ranks == 8 else ()
        words = ("--training", *models, "--against", ",".join(ways))
        runs.append(Run(f"{ranks} ranks training", ranks, words, is_drawn=True))
    if _has_horovod():
        words = ("--training", *two, "--against", "horovod,ddp,single")
        runs.append(Run("2 ranks training, Horovod", 2, words, is_drawn=True))
    return runs


def tf_runs() -> list[Run]:
    """Return the runs of the report on training with TensorFlow.

    A run for each model on two ranks: a process has but one peak of memory. Where tf_keras is
    missing, what needs it is left out; where TensorFlow is, there is nothing to run.
    """
    if importlib.util.find_spec("tensorflow") is None:
        return []
    words = ("--framework", "tf", "--model")
    alone = ("mlp25m,cnn", "--against", "single,single-tape", "--rounds", "15")  # 2 % is little
    return [
        Run("1 ranks training with tf", 1, (*words, *alone)),
        *(
            Run(f"2 ranks training with tf, {model}", 2, (*words, model), is_drawn=True)
            for model in ("mlp25m", "cnn")
        ),
    ]


def engine_runs() -> list[Run]:
    """Return the runs of the report on the engine."""
    peers = {"": "gloo"}
    if _has_horovod():
        peers[", Horovod"] = "horovod"
    return [
        Run(f"{ranks} ranks engine{beside}", ranks, ("--engine", "--against", peer), is_drawn=True)
        for beside, peer in peers.items()
        for ranks in (2, 4)
    ]


def _has_horovod() -> bool:
    """Whether this peer, which does not build everywhere, is there.

    It has runs of its own: its threads look for work a thousand times a second, for all that runs
    beside them to feel.
    """
    return importlib.util.find_spec("horovod") is not None


def collective_runs() -> list[Run]:
    """Return the runs of the report on collectives."""
    both = ("--against", "mpi,gloo")
    runs = []
    for ranks, sizes in ((2, SIZES), (4, SIZES), (8, UP_TO_64M), (16, UP_TO_64M)):
        for kind in ("arena", "user"):
            arguments = ("--sizes", sizes, "--buffers", kind, *both)
            memory = ("--memory",) if (ranks, kind) == (2, "arena") else ()
            runs.append(Run(f"{ranks} ranks {kind}", ranks, (*arguments, *memory), is_drawn=True))
    for dtype in ("float32", "bfloat16", "float16"):
        runs.append(Run(f"2 ranks {dtype}", 2, ("--sizes", FROM_1M, "--dtype", dtype, *both)))
    for collective in ("broadcast", "reduce", "allgather", "reducescatter"):
        arguments = ("--sizes", BLOCKS, "--collective", collective, "--against", "mpi")
        runs.append(Run(f"2 ranks {collective}", 2, arguments))
    return runs


def shorten(run: Run) -> Run:
    """Return `run` with few small sizes and rounds: to try the report, not to believe it."""
    arguments = list(run.arguments)
    if "--sizes" in arguments:
        arguments[arguments.index("--sizes") + 1] = QUICK_SIZES
    return dataclasses.replace(run, arguments=(*arguments, "--rounds", "3"))


def carry_out(
    runs: Sequence[Run], num_launches: int, launch: Launch | None = None
) -> Iterator[list[Outcome]]:
    """Launch all `runs` some times, in turns: those that are compared meet the same machine.

    `launch` says how, if not as a command on this machine. Yields what there is after each turn.

    Raises
    ------
    LaunchError
        If a launch fails or takes longer than 15 minutes; the message ends with what it wrote.
    """
    tables: list[str] = []
    results: list[list[Any]] = [[] for _ in runs]
    for turn in range(num_launches):
        for i, run in enumerate(runs):
            log.say(f"bench report: {run.name}, launch {turn + 1} of {num_launches}")
            table, result = (launch or on_this_machine)(run)
            tables += [table] if turn == 0 else []
            results[i].append(result)
        yield [
            Outcome(run, " ".join(["blinkrun", *command(run)]), tables[i], tuple(results[i]))
            for i, run in enumerate(runs)
        ]


def command(run: Run, hosts: Sequence[str] = string.ascii_lowercase) -> list[str]:
    """Return what follows ``blinkrun`` in the command of `run`, on hosts of these names."""
    pairs = zip(hosts, run.slots, strict=False)
    where = ["-H", ",".join(f"{host}:{slots}" for host, slots in pairs)] if run.slots else []
    return ["-np", str(run.ranks), *where, "bench", *run.arguments]


def on_this_machine(run: Run) -> tuple[str, Any]:
    """Return the table and the JSON result of one launch."""
    launcher = str(Path(sys.executable).with_name("blinkrun"))
    with tempfile.TemporaryDirectory(prefix="blinkrun-bench-") as folder:
        path = Path(folder) / "result.json"
        table = output([launcher, "--no-prefix", *command(run), "--json", str(path)])
        return table, json.loads(path.read_text())


def output(words: Sequence[str]) -> str:
    """Return what a command prints.

    Raises
    ------
    LaunchError
        If it fails or takes longer than 15 minutes; the message ends with what it wrote.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{' '.join(words)} took longer than {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise LaunchError(f"{' '.join(words)} ended with exit code {done.returncode}: {tail}")
    return done.stdout.rstrip()
