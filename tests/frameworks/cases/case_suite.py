"""Runs every case of the modules of some kinds in one job and keeps what each returned or raised.

A module ``tf_*_cases.py``, ``keras_*_cases.py`` or ``legacy_*_cases.py`` in this folder names its
cases in CASES; each is a function without parameters that returns a JSON value. TENSORFLOW_ONLY
names those that are left out under Keras' torch backend, SEVERAL_RANKS those that one rank leaves
out: they take long and show nothing there.
"""

import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path

import blinkrun.tf as blink

# Keras imports them if they are there: a third of TensorFlow's start, and no case uses them.
sys.modules.update({"matplotlib": None, "sklearn": None})
IS_TORCH = os.environ.get("KERAS_BACKEND") == "torch"
if IS_TORCH:
    sys.modules["tensorflow"] = None  # as if it was not installed


def run_all(kinds, only=""):
    """Run the cases of ``KIND_*_cases.py`` for each of `kinds`, or those of the modules in `only`.

    Both are names, comma-separated.
    """
    warnings.simplefilter("error")
    # Variables of Keras 3 on torch, whenever numpy asks for their values.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword")
    folder = Path(__file__).parent
    names = [
        path.stem for kind in kinds.split(",") for path in sorted(folder.glob(f"{kind}_*_cases.py"))
    ]
    blink.init()
    results = {}
    for name in names:
        if not only or name in only.split(","):
            results[f"import {name}"] = attempt(lambda name=name: run_module(name, results))
    loaded = sum(name.startswith(("tensorflow.", "tf_keras")) for name in sys.modules)
    results["modules_of_tensorflow"] = {"returned": [IS_TORCH, loaded]}
    return results


def run_module(name, results):
    module = importlib.import_module(name)
    left_out = {
        *(getattr(module, "TENSORFLOW_ONLY", ()) if IS_TORCH else ()),
        *(getattr(module, "SEVERAL_RANKS", ()) if blink.size() == 1 else ()),
    }
    for case in module.CASES:
        assert case not in results, f"two cases are called {case}"
        if case not in left_out:
            results[case] = attempt(getattr(module, case))


def attempt(case):
    try:
        return {"returned": case()}
    except Exception:
        return {"raised": traceback.format_exc()}
