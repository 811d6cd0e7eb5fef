"""``blinkrun -np N bench --framework tf``: what takes turns, and what is found out about it.

blinkrun and plain Keras run in the ranks. Whatever needs tf_keras or a runtime of its own has a
process beside each rank (`tf_remote`), which sleeps while it is not asked.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from blinkrun.bench import tf_table, turns
from blinkrun.bench.framework import NEED_TF_KERAS, TF_WAYS, Options
from blinkrun.bench.processes import peak_bytes, rest_bytes
from blinkrun.bench.shares import covered, read_spans
from blinkrun.bench.tf_remote import Remotes
from blinkrun.bench.turns import Observed, Turn

BLOCK_S = 0.7
PEAK_STEPS = 20  # after which a peak is read
OURS = {"fit": "blinkrun, Keras fit", "tape": "blinkrun, tape loop"}


def run(options: Options, world: Any) -> int:
    """Measure what `options` say; every rank must call it with the same ones.

    Returns the exit code: 0, or 1 if ranks differ after blinkrun trained them.
    """
    keras = load(options)
    show = _print_line if world.rank == 0 else _print_nothing
    for line in tf_table.heading(options, world.size, world.cores):
        show(line)
    session = Session(options, world, keras)
    results = {}
    try:
        for model in options.models:
            results[model] = session.measure(model)
            for line in tf_table.lines(model, results[model]):
                show(line)
    finally:
        session.close()
    if options.json is not None and world.rank == 0:
        document = {
            "framework": "tf",
            "ranks": world.size,
            "batch": options.batch,
            "threads": options.threads,
            "models": results,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    agree = [result["agree"][name] for result in results.values() for name in OURS.values()]
    return 0 if all(agree) else 1


def load(options: Options) -> Any:
    """Return Keras 3 on TensorFlow, which computes with as many threads as asked for."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from blinkrun.bench.tf_ways import limit_threads  # noqa: PLC0415  (imports TensorFlow)

    limit_threads(options.threads)  # before blinkrun or anything else starts the runtime
    import keras  # noqa: PLC0415

    import blinkrun.tf  # noqa: PLC0415

    blinkrun.tf.init()
    return keras


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_nothing(line: str) -> None:
    pass


class Session:
    """The ways of one run, model by model; every rank has one and calls the same on it.

    Parameters
    ----------
    options : Options
        What is asked for.
    world : Communicator
        All ranks.
    keras : module
        Keras 3.
    """

    def __init__(self, options: Options, world: Any, keras: Any) -> None:
        self._options = options
        self._world = world
        self._keras = keras
        self._remotes = Remotes(options, world)
        self._rest_bytes = rest_bytes()
        self._is_fresh = True

    def measure(self, model: str) -> dict[str, Any]:
        """Return the figures of `model`: what ``--json`` writes about it."""
        ours = {"fit": self._fit(model, ours=True)}
        num_bytes = ours["fit"].num_bytes()
        memory = self._memory(model, ours["fit"]) if self._is_fresh else {}
        ours["tape"] = self._loop(model, ours=True)
        plain = {"fit": self._fit(model, ours=False), "tape": self._loop(model, ours=False)}
        mine = {what: Turn(OURS[what], way) for what, way in ours.items()}
        everyone = [*mine.values(), *self._beside(model, plain)]
        found = turns.rates(
            everyone,
            rounds=self._options.rounds,
            batch=self._options.batch,
            block_s=BLOCK_S,
            control=self._world,
        )
        if memory and "mwms" in self._options.against:
            memory["mwms_peak_bytes"] = self._most(self._remotes.peak_bytes("mwms"))
        return {
            "gradient_bytes": num_bytes,
            "samples_per_s": {name: turns.spread(each) for name, each in found.items()},
            "efficiency": efficiency(found, everyone, self._world.size),
            "share": self._shares(ours, plain) if self._world.size > 1 else {},
            "agree": turns.agreeing(_trained_together(everyone), self._world),
            **({"memory": memory} if memory else {}),
        }

    def close(self) -> None:
        """End the workers."""
        self._remotes.close()

    # ---- the ways --------------------------------------------------------------------------------

    def _fit(self, model: str, *, ours: bool) -> Any:
        from blinkrun.bench.tf_ways import Fit, Task  # noqa: PLC0415  (imports TensorFlow)
        from blinkrun.tf.keras import DistributedOptimizer  # noqa: PLC0415

        more: Any = {"wrap": DistributedOptimizer, "probe": busy_ns} if ours else {}
        return Fit(self._keras, Task(model, self._options.batch, self._world.rank), **more)

    def _loop(self, model: str, *, ours: bool) -> Any:
        from blinkrun.bench.tf_ways import Loop, Task  # noqa: PLC0415  (imports TensorFlow)
        from blinkrun.tf import DistributedGradientTape  # noqa: PLC0415

        more: Any = {"wrap": DistributedGradientTape, "probe": busy_ns} if ours else {}
        return Loop(self._keras, Task(model, self._options.batch, self._world.rank), **more)

    def _beside(self, model: str, plain: Mapping[str, Any]) -> list[Turn]:
        """Return the turns of the ways that blinkrun is measured beside."""
        found = []
        for name in self._options.against:
            way: Any
            if name in NEED_TF_KERAS:
                way = self._remotes.make(name, model)
            else:
                way = plain["tape" if name == "single-tape" else "fit"]
            takes_all = name in ("mwms", "apart")
            found.append(Turn(TF_WAYS[name], way, takes_all))
        return found

    # ---- what else is found out ------------------------------------------------------------------

    def _memory(self, model: str, way: Any) -> dict[str, int]:
        """Return peaks of memory; a process has but one, so this must be its first training."""
        self._is_fresh = False
        turns.timed(Turn("", way), PEAK_STEPS, self._world)
        found = {
            "rest_bytes": self._most(self._rest_bytes),
            "peak_bytes": self._most(peak_bytes()),
            "allowed_bytes": 2 * way.num_bytes(),
        }
        is_first = self._world.rank == 0
        plain = self._remotes.plain_memory(model, PEAK_STEPS) if is_first else {}
        plain = self._world.broadcast_object(plain)
        return found | {f"plain_{name}": value for name, value in plain.items()}

    def _most(self, value: int) -> int:
        values: list[int] = self._world.allgather_object(value)
        return max(values)

    def _shares(self, ours: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return of each of our ways what part of its step is communication."""
        found = {}
        with tempfile.TemporaryDirectory(prefix="blinkrun-bench-") as folder:
            path = Path(folder) / "timeline.json"
            for what, way in ours.items():
                found[OURS[what]] = turns.shares(
                    Turn("", plain[what]),
                    partial(observe, way, path),
                    rounds=self._options.rounds,
                    block_s=BLOCK_S,
                    control=self._world,
                )
        return found


def busy_ns() -> int:
    """Return the nanoseconds in which the engine of this rank has carried out requests so far."""
    from blinkrun import engine  # noqa: PLC0415

    return engine.current().stats.busy_ns


def observe(way: Any, path: Path, steps: int) -> Observed:
    """Run a block of `steps` with a timeline at `path`; what is seen is rank 0's, who writes it.

    Every rank must call it.
    """
    import blinkrun.tf as blink  # noqa: PLC0415

    blink.start_timeline(path)
    seconds = way.run(steps)
    blink.stop_timeline()
    start, stop = way.marks
    timeline_us = 0.0
    if blink.rank() == 0:
        timeline_us = covered(read_spans(path), (start.epoch_us, stop.epoch_us))
        path.unlink()
    busy_s = (stop.probed - start.probed) / 1e9
    return Observed(seconds / steps, timeline_us / 1e6 / seconds, busy_s / seconds)


def efficiency(
    rates: Mapping[str, Sequence[float]], everyone: Sequence[Turn], num_ranks: int
) -> dict[str, float]:
    """Return the rate of every way that takes all ranks over theirs if each were alone.

    A loop is held against the loop alone, everything else against Keras' fit alone; what was not
    measured gives nothing.
    """
    found = {}
    for turn in everyone:
        alone = TF_WAYS["single-tape" if turn.name == OURS["tape"] else "single"]
        if turn.takes_all_ranks and alone in rates:
            whole = num_ranks * turns.spread(rates[alone])["median"]
            found[turn.name] = turns.spread(rates[turn.name])["median"] / whole
    return found


def _trained_together(everyone: Sequence[Turn]) -> dict[str, str]:
    """Return the digests of the ways whose ranks must have the same weights."""
    return {
        turn.name: turn.way.digest()
        for turn in everyone
        if turn.takes_all_ranks and turn.name != TF_WAYS["apart"]
    }
