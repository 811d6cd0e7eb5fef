"""The example as a module, so that its losses can be compared."""

import importlib.util
import sys

from support.places import ROOT


def example():
    spec = importlib.util.spec_from_file_location("keras_digits", ROOT / "examples/keras_digits.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["keras_digits"] = module
    spec.loader.exec_module(module)
    return module


def history(joined_batch, joined_lr, epochs):
    """What Keras tells of all epochs with batches and a rate that do not depend on the ranks."""
    digits = example()
    blink = digits.blink
    blink.init()
    size = blink.size()
    args = digits.parse_args(
        [f"--epochs={epochs}", f"--batch={joined_batch // size}", f"--lr={joined_lr / size}"]
    )
    args.warmup = 0
    got, _ = digits.train(args)
    return {name: [float(each) for each in values] for name, values in got.items()}
