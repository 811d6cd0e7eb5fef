"""Runs every case of the modules of a kind in one job and keeps what each returned or raised.

A module ``tf_*_cases.py``, ``keras_*_cases.py`` or ``legacy_*_cases.py`` in this folder names its
cases in CASES; each is a function without parameters that returns a JSON value. In a keras module
TENSORFLOW_ONLY names those that are left out under Keras' torch backend.
"""

import importlib
import os
import traceback
import warnings
from pathlib import Path

import blinkrun.tf as blink


def run_all(kind, only=""):
    """Run the cases of ``KIND_*_cases.py``, or those of the modules in `only`, comma-separated."""
    warnings.simplefilter("error")
    # Variables of Keras 3 on torch, whenever numpy asks for their values.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword")
    names = sorted(path.stem for path in Path(__file__).parent.glob(f"{kind}_*_cases.py"))
    blink.init()
    results = {}
    for name in names:
        if not only or name in only.split(","):
            results[f"import {name}"] = attempt(lambda name=name: run_module(name, results))
    return results


def run_module(name, results):
    module = importlib.import_module(name)
    is_torch = os.environ.get("KERAS_BACKEND") == "torch"
    left_out = getattr(module, "TENSORFLOW_ONLY", ()) if is_torch else ()
    for case in module.CASES:
        assert case not in results, f"two cases are called {case}"
        if case not in left_out:
            results[case] = attempt(getattr(module, case))


def attempt(case):
    try:
        return {"returned": case()}
    except Exception:
        return {"raised": traceback.format_exc()}
