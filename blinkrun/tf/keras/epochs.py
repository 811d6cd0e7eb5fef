"""Epochs of different length: ranks that are through wait, and take over what the others learned.

A rank that has fewer batches joins: the others' allreduces go on without it, with zeros in its
stead, divided by all ranks as ever. When the last rank is through, those that missed steps are
given weights and optimizer of one that took them all, so that the next epoch begins alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from blinkrun.adapter.objects import allgather_object
from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.adapter.where import caller
from blinkrun.engine import engine
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.state import (
    broadcast_state,
    check_alike,
    inner_optimizer,
    local_to_optimizers,
    state_of,
)


class Epoch:
    """The batches of an epoch on this rank, and its end together with the other ranks."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._is_open = False
        self._num_batches = 0

    def begin(self) -> None:
        """Count from zero."""
        self._is_open = True
        self._num_batches = 0

    def forget(self) -> None:
        """Be outside of an epoch: one that was begun has failed."""
        self._is_open = False

    def count(self) -> None:
        """Say that a batch begins."""
        self._num_batches += 1

    def end(self, model: Any, without: Collection[int] = ()) -> None:
        """Wait for ranks that have more batches, and be as far as they are; once an epoch.

        Collective over the process set. Weights and state of the optimizer are replaced on all
        ranks by those of the rank that took most steps, unless all took as many. Variables whose
        gradients stay on their ranks do so as well.

        Parameters
        ----------
        model : keras.Model
            What is trained.
        without : collection of int
            What `identities` gives for variables that stay each rank's own.
        """
        if not self._is_open:
            return
        self._is_open = False
        engine.current().join(number_of(self._process_set), where=caller())
        steps = (_iterations(model), self._num_batches)
        everyone = allgather_object(steps, "keras.steps taken", self._process_set)
        if len(set(everyone)) > 1:
            root = self._process_set.ranks[everyone.index(max(everyone))]
            state = state_of(model, {*without, *local_to_optimizers(model)})
            check_alike(state, self._process_set)
            broadcast_state(state, root, self._process_set, metrics=False)


def _iterations(model: Any) -> int:
    """Return how many steps the optimizer has taken in all; 0 if there is none."""
    optimizer = inner_optimizer(getattr(model, "optimizer", None))
    counter = getattr(optimizer, "_iterations", None)
    return 0 if counter is None else int(np.asarray(backend.host_values([counter])[0]))
