"""Texts that tests compare with, as files; ``UPDATE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def check_golden(name: str, text: str) -> None:
    """Assert that `text` is what tests/data/`name` holds."""
    path = DATA / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; if it should, run with UPDATE_GOLDEN=1"
