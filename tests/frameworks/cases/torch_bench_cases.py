"""The training benchmark, as short as it can be."""

import contextlib
import io
import json
from pathlib import Path

from blinkrun.bench import measure, named, training

TRAINING = ["--models=cnn1", "--batch=2", "--rounds=1"]
ENGINE = ["--sizes=4,16K", "--burst=20", "--rounds=1", "--against=gloo"]


def all_ways(training_json, engine_json):
    """Both benchmarks in one job, and what wrong words end in."""
    return {
        "train": train(TRAINING, training_json),
        "wrong": train(["--models=gpt"], None),
        "engine": engine(ENGINE, engine_json),
    }


def train(words, json_name):
    training.BLOCK_S = 0.001
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = training.training_main([*words, f"--json={json_name}"] if json_name else words)
    path = Path(json_name or "none")
    result = json.loads(path.read_text()) if path.exists() else None
    return [code, out.getvalue(), result]


def engine(words, json_name):
    measure.BLOCK_S = 0.001
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = named.named_main([*words, f"--json={json_name}"] if json_name else words)
    path = Path(json_name or "none")
    return [code, out.getvalue(), json.loads(path.read_text()) if path.exists() else None]
