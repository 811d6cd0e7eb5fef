"""What tests need that may not be installed, looked for without importing it."""

import importlib.util

import pytest


def need(*packages: str) -> None:
    """Skip the test, the fixture or at its top the whole module, unless these are installed.

    ``pytest.importorskip`` would import them into the process of the tests, which only starts
    ranks: TensorFlow takes seconds and half a gigabyte.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}", allow_module_level=True)
