"""The examples for TensorFlow as modules, so that their losses can be compared."""

import hashlib
import importlib.util
import sys
from pathlib import Path

import keras_digits_program
from support.places import ROOT


def example():
    path = Path(ROOT) / "examples" / "tf_tape_digits.py"
    spec = importlib.util.spec_from_file_location("tf_tape_digits", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tf_tape_digits"] = module
    spec.loader.exec_module(module)
    return module


def both(**options):
    """What both examples tell, one after the other: TensorFlow starts once for them."""
    return {"fit": keras_digits_program.history(**options), "tape": losses(**options)}


def losses(joined_batch, joined_lr, epochs):
    """The losses of all epochs with batches and a rate that do not depend on the ranks."""
    import blinkrun.tf as blink

    digits = example()
    blink.init()
    size = blink.size()
    args = digits.parse_args([f"--epochs={epochs}", f"--batch={joined_batch // size}"])
    args.lr = joined_lr / size
    model, losses, accuracy, _ = digits.train(args)
    weights = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights()))
    return {"losses": losses, "accuracy": accuracy, "weights": weights.hexdigest()}
