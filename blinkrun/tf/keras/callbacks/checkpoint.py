"""Checkpoints that one rank writes while the others wait."""

from __future__ import annotations

import os
from typing import Any

import blinkrun
from blinkrun.adapter.objects import broadcast_object
from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.errors import CollectiveError, UsageError
from blinkrun.tf.keras.callbacks.base import Callback, arrange
from blinkrun.tf.keras.state import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Save the model whenever a metric is better than ever: `root_rank` writes, the others wait.

    Every rank of the process set has it, and goes on when the file is complete. If it cannot be
    written, every rank raises. Where `BroadcastGlobalVariablesCallback` is there as well, it may be
    on the root alone, which then writes without anybody waiting.

    Parameters
    ----------
    monitor, verbose, save_weights_only, mode, save_freq
        As in `keras.callbacks.ModelCheckpoint`. With a number for `save_freq` every rank must have
        as many batches.
    filepath : str or path, optional
        Where to save; may have places for metrics and ``{epoch}``. May be set as an attribute
        later, before training.
    root_rank : int, default 0
        The rank that writes, as a rank of the job.
    process_set : ProcessSet
        The ranks that train together; others neither write nor wait.

    Raises
    ------
    UsageError
        When training begins, if there is no `filepath`.
    CollectiveError
        If `root_rank` could not write; it raises the cause itself.
    """

    place = Callback.place
    is_collective = False  # it may be on one rank alone, which then does not wait

    def __init__(  # noqa: PLR0913 - Horovod's arguments
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
        root_rank: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=f"best{ending}" if filepath is None else os.fspath(filepath),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None
        self.root_rank = root_rank
        self.process_set = process_set
        self.companions: list[Any] = [self]
        self.is_shared = True  # whether all ranks have it

    def set_model(self, model: Any) -> None:
        """Take the model, and put the callbacks of the list in order."""
        super().set_model(model)
        arrange(self, model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Check the arguments that matter from here on."""
        super().on_train_begin(logs)
        checked_root(self.root_rank, self.process_set)
        if self.filepath is None:
            raise UsageError(
                "BestModelCheckpoint has no file to save to; give it filepath='….keras', or set "
                "its attribute filepath before fit"
            )
        self.filepath = os.fspath(self.filepath)

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if not self.process_set.included():
            return
        if len(self.process_set.ranks) < 2 or not self.is_shared:
            super()._save_model(epoch, batch, logs)
            return
        failure: Exception | None = None
        if blinkrun.rank() == self.root_rank:
            try:
                super()._save_model(epoch, batch, logs)
            except Exception as err:
                failure = err
        told = None if failure is None else f"{type(failure).__name__}: {failure}"
        told, self.best = broadcast_object(
            (told, self.best), self.root_rank, process_set=self.process_set
        )
        if failure is not None:
            raise failure
        if told is not None:
            raise CollectiveError(
                f"rank {blinkrun.rank()}: rank {self.root_rank} could not save the model to "
                f"'{self.filepath}': {told}"
            )
