import doctest
import importlib

import pytest
from support.places import ROOT


def modules():
    """Names of all modules that have examples in their docstrings."""
    found = []
    for folder, package in (
        (ROOT / "blinkrun", "blinkrun"),
        (ROOT / "launcher", "blinkrun.launcher"),
    ):
        for path in sorted(folder.rglob("*.py")):
            if ">>> " in path.read_text():
                inside = path.relative_to(folder).with_suffix("").parts
                parts = inside[:-1] if inside[-1] == "__init__" else inside
                found.append(".".join((package, *parts)))
    return found


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name):
    if name.startswith("blinkrun.torch"):
        pytest.importorskip("torch", reason="needs torch")
    if name.startswith("blinkrun.tf"):
        pytest.importorskip("tensorflow", reason="needs tensorflow")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
