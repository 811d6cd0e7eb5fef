"""The example as a module, so that its losses can be compared."""

import importlib.util
import sys
from pathlib import Path

from support.places import ROOT


def example():
    path = Path(ROOT) / "examples" / "torch_digits.py"
    spec = importlib.util.spec_from_file_location("torch_digits", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_digits"] = module
    spec.loader.exec_module(module)
    return module


def losses(joined_batch, joined_lr, epochs):
    """The losses of all epochs with batches and a rate that do not depend on the ranks."""
    import torch

    import blinkrun.torch as blink

    torch.set_num_threads(1)
    digits = example()
    blink.init()
    args = digits.parse_args([f"--epochs={epochs}", f"--batch={joined_batch // blink.size()}"])
    args.lr = joined_lr / blink.size()
    got, accuracy, _ = digits.train(args)
    return {"losses": got, "accuracy": accuracy}
