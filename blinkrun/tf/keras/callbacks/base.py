"""What the callbacks have in common: their place in the list of callbacks, and who shows progress.

Keras calls callbacks in the order of the list, so one that averages metrics helps only those after
it. Users should not have to know: when a model is handed to the first of these callbacks, they find
the list that they are in and put themselves where they belong.
"""

from __future__ import annotations

import sys
from typing import Any

import blinkrun
from blinkrun.adapter.operations import Max
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.state import keras

FIRST, SECOND, AS_GIVEN, LAST = range(4)

_FRAMES_TO_LOOK_AT = 12


class Callback(keras.callbacks.Callback):
    """A callback that knows its place; base of those of blinkrun."""

    place = AS_GIVEN  # in the list of callbacks
    is_collective = False  # whether the ranks of its process set wait for each other in it
    async_safe = True  # nothing here runs at the end of batches
    process_set: ProcessSet = global_process_set

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = (
            True  # of tf_keras: values that nobody looks at stay where they are
        )

    def set_model(self, model: Any) -> None:
        """Take the model, and put the callbacks of the list in order."""
        super().set_model(model)
        arrange(self, model)

    def is_alone(self) -> bool:
        """Whether there is nobody to share with: one rank, or a set that has not this one."""
        blinkrun.world()  # says so if there is none
        number_of(self.process_set)
        return len(self.process_set.ranks) < 2 or not self.process_set.included()


def arrange(callback: Any, model: Any) -> None:
    """Put the callbacks of the list that `callback` is in into an order that serves all.

    Those that make ranks alike come first, then averages, then the others as they were given. A
    progress bar that Keras added by itself stays on one rank. At the end of an epoch all stop if
    one does.
    """
    holder = _list_with(callback)
    if holder is None or getattr(holder, "_arranged_by_blinkrun", False):
        return
    holder._arranged_by_blinkrun = True
    ours = [each for each in holder.callbacks if hasattr(each, "is_collective")]
    for each in ours:
        each.companions = ours
    callbacks = sorted(holder.callbacks, key=lambda each: getattr(each, "place", AS_GIVEN))
    sets = {id(each.process_set): each.process_set for each in ours if each.is_collective}
    if not _shows_progress(sets) and callbacks and callbacks[-1] is holder._progbar:
        callbacks.pop()
        holder._progbar = None
    unwatched = None if _has_strangers(holder, ours) else holder
    for process_set in sets.values():
        together = StopTogether(process_set, unwatched)
        together.set_model(model)
        callbacks.append(together)
    holder.callbacks = callbacks  # a new list: Keras may be going over the old one


class StopTogether(keras.callbacks.Callback):
    """Ends training on all ranks of a set at the end of the epoch in which any of them ends it.

    What decides by averaged metrics decides alike anyway; this is for what does not, such as
    `TerminateOnNaN`, without which the others would wait for this rank.
    """

    def __init__(self, process_set: ProcessSet, unwatched: Any = None) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._process_set = process_set
        self._unwatched = unwatched

    def on_train_begin(self, logs: Any = None) -> None:
        """Spare the user tf_keras' warning that callbacks are slow: the first batch begins so."""
        if hasattr(self._unwatched, "_check_timing"):
            self._unwatched._check_timing = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agree whether to go on."""
        if len(self._process_set.ranks) > 1 and self._process_set.included():
            mine = float(bool(self.model.stop_training))
            stop = backend.reduce([mine], ["stop training"], Max, self._process_set)
            self.model.stop_training = bool(stop[0])


def _has_strangers(holder: Any, ours: list[Any]) -> bool:
    """Whether a list has callbacks that are neither of Keras nor of blinkrun."""
    others = [each for each in holder.callbacks if each not in ours]
    return any(type(each).__module__.split(".")[0] != keras.__name__ for each in others)


def _list_with(callback: Any) -> Any | None:
    """Return the CallbackList that is just telling `callback` its model; None if it is none."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES_TO_LOOK_AT):
        holder = frame.f_locals.get("self")
        listed = getattr(holder, "callbacks", None)
        if isinstance(holder, keras.callbacks.CallbackList) and callback in listed:
            return holder
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _shows_progress(sets: dict[int, ProcessSet]) -> bool:
    """Whether this rank is the first of those that train together."""
    if not blinkrun.is_initialized():
        return True
    chosen = min((each.ranks for each in sets.values() if each.included()), key=len, default=[0])
    return blinkrun.rank() == min(chosen)
