"""A moment in the first step at which a model has its weights and none of them has been used.

With TensorFlow, Keras builds a model that nobody has built when its first batch comes.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

from blinkrun.tf import versions
from blinkrun.tf.keras import state as states
from blinkrun.tf.keras.state import keras

Then = Callable[[], None]


def when_built(model: Any, then: Then) -> Callable[[], Any]:
    """Call `then` once in the next step of `model`, when there are weights, before they are used.

    Returns
    -------
    callable
        Takes it back, if it has not come to it.
    """
    if versions.is_legacy() and not _runs_eagerly(model):
        return _while_traced(model, then)
    return _before_step(model, then)


def _before_step(model: Any, then: Then) -> Callable[[], Any]:
    """Have the model built before its next step, from what the iterator says of its batches."""
    step = model.train_function

    def take_back() -> None:
        model.train_function = step

    def build_and_step(iterator: Any) -> Any:
        take_back()
        batches = iterator
        if _runs_eagerly(model) or not _build_from_shapes(model, iterator):
            batch = next(iterator)
            model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=False)
            batches = itertools.chain([batch], iterator)
        states.build_optimizer(model)
        then()
        return step(batches)

    model.train_function = build_and_step
    return take_back


def _build_from_shapes(model: Any, iterator: Any) -> bool:
    """Build `model` of Keras 3 without a batch; False if it cannot do with shapes alone."""
    try:
        inputs = keras.utils.unpack_x_y_sample_weight(iterator.element_spec)[0]
        symbols = keras.tree.map_structure(
            lambda each: keras.KerasTensor(tuple(each.shape), each.dtype.name), inputs
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it will be built by a batch instead
            model(symbols, training=False)
    except Exception:
        return False
    return True


def _while_traced(model: Any, then: Then) -> Callable[[], Any]:
    """Wait for the optimizer to make its variables.

    tf_keras makes all variables outside of the graph that the first step becomes, thus before it
    runs; those of the optimizer come last.
    """
    undo: list[Callable[[], Any]] = []

    def take_back() -> None:
        while undo:
            undo.pop()()

    def built() -> None:
        if undo:
            take_back()
            with importlib.import_module("tensorflow").init_scope():
                then()

    undo += [_after(each, built) for each in states.optimizers_of(model)]
    return take_back


def _after(optimizer: Any, then: Then) -> Callable[[], Any]:
    """Call `then` when `optimizer` has made its variables; what is returned takes that back."""
    name = states.builder_of(optimizer)
    build = getattr(optimizer, name)

    def build_and_tell(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        then()

    held = vars(optimizer)
    held[name] = build_and_tell
    return lambda: held.pop(name, None)


def _runs_eagerly(model: Any) -> bool:
    tensorflow = importlib.import_module("tensorflow")
    return bool(model.run_eagerly) or tensorflow.config.functions_run_eagerly()
