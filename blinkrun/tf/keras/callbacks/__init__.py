"""Callbacks for ``model.fit`` on several ranks, for the Keras and the backend in use."""

from blinkrun.tf.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback, JoinCallback
from blinkrun.tf.keras.callbacks.checkpoint import BestModelCheckpoint
from blinkrun.tf.keras.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from blinkrun.tf.keras.callbacks.metrics import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
