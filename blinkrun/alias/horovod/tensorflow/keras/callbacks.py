"""Callbacks by Horovod's names."""

import importlib
from typing import Any

__all__ = [  # noqa: F822 - looked up when they are used
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module("blinkrun.tf.keras.callbacks"), name)
