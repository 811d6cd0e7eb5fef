"""Data-parallel Keras: wrapped optimizers and callbacks."""

import importlib
from typing import Any

_PLACES = {
    "DistributedOptimizer": "blinkrun.tf.keras.optimizer",
    "Compression": "blinkrun.tf.keras.compression",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value
