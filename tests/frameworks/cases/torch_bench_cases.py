"""The training benchmark, as short as it can be."""

import contextlib
import io
import json
from pathlib import Path

from blinkrun.bench import measure, named, training


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
