"""What torch calls when it is imported: the backend ``"blink"`` is known from then on.

Named by the entry point group ``torch.backends`` of this package's metadata. Nothing of blinkrun
but this file is loaded until a program asks for the backend.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

BACKEND = "blink"


def register() -> None:
    """Tell torch.distributed the backend's name; without it, where torch is built so, nothing."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and hasattr(distributed, "Backend"):
        distributed.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])


def create(options: Any, extra: Any = None) -> Any:
    """Load the backend, which takes its name over, and return its first process group."""
    # By name: the launcher's files stand on the standard library, and torch is loaded by now.
    return importlib.import_module("blinkrun.torch.distributed").create(options, extra)
