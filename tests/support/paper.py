"""The GPU sets of the Blink paper with their bounds (tests/data/paper)."""

from __future__ import annotations

import csv

import pytest
from support.places import ROOT


def bounds(name):
    """The rows of a machine as parameters: its name in the catalog, the row."""
    with (ROOT / "tests/data/paper" / f"{name}_bounds.csv").open(newline="") as file:
        return [
            pytest.param(f"dgx-{name[3:]}", row, id=f"{name}-{row['gpus'].replace(' ', '')}")
            for row in csv.DictReader(file)
        ]


def gpus(text):
    """``any 7`` stands for sets that are all alike."""
    if text.startswith("any "):
        return range(int(text[4:]))
    return [int(gpu) for gpu in text.split()]
