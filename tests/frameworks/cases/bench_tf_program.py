"""The training benchmark with TensorFlow, as short as it can be."""

import contextlib
import io
import json
from pathlib import Path

from blinkrun.bench import main, tf_training
from blinkrun.bench.tf_models import make_model


def train(words, json_name):
    tf_training.BLOCK_S = 0.001
    tf_training.PEAK_STEPS = 1
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main.main([*words, f"--json={json_name}"])
    path = Path(json_name)
    import keras

    num_bytes = {name: 4 * make_model(keras, name).count_params() for name in ("mlp25m", "cnn")}
    return [
        code,
        out.getvalue(),
        json.loads(path.read_text()) if path.exists() else None,
        num_bytes,
    ]
