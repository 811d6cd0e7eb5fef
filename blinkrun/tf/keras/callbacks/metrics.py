"""Metrics averaged over the ranks before anybody decides by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blinkrun.adapter.objects import allgather_object
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.tf.keras.averages import Number, averages
from blinkrun.tf.keras.callbacks.base import SECOND, Callback


class MetricAverageCallback(Callback):
    """Average the metrics of an epoch over the ranks, before other callbacks read them.

    It is moved to the front of the list of callbacks: `EarlyStopping`, `ReduceLROnPlateau`,
    `ModelCheckpoint`, `History` and the progress bar see averages wherever they stand, and so
    decide alike on all ranks. Every rank must have it.

    The average is the plain one over the ranks that have the metric; ranks that lack it, such as
    one without validation data, are given it. NaN or infinity on one rank is so on all.

    Parameters
    ----------
    device : str
        Accepted for Horovod scripts: metrics are averaged on the host.
    process_set : ProcessSet
        The ranks that average; others keep their own.
    """

    place = SECOND
    is_collective = True

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.device = device
        self.process_set = process_set

    def on_train_begin(self, logs: Any = None) -> None:
        """Say so at once if there is no job, or no such process set."""
        self.is_alone()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the numbers in `logs`; blocks until every rank is here."""
        if not self.is_alone():
            logs = {} if logs is None else logs
            everyone = allgather_object(_numbers(logs), "keras.metrics", self.process_set)
            logs.update(averages(everyone, self.process_set.ranks))


def _numbers(logs: Mapping[str, Any]) -> dict[str, Number]:
    """Return what of `logs` can be averaged: numbers, and arrays of them."""
    found: dict[str, Number] = {}
    for name, value in logs.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind in "biuf" or array.dtype.name == "bfloat16":
            found[str(name)] = array.astype(np.float64) if array.ndim else float(array)
    return found
