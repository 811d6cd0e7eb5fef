"""Gradients of Keras 3 on TensorFlow, reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from blinkrun.buffers import view
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.tf import graph
from blinkrun.tf.keras.settings import Settings


class Reducer:
    """Reduces the gradients of one optimizer.

    Parameters
    ----------
    owner : str
        What the names of its requests begin with; the same on all ranks.
    """

    def __init__(self, settings: Settings, owner: str) -> None:
        self._settings = settings
        self._owner = owner

    def reduce(
        self, grads: Sequence[Any], names: Sequence[str], variables: Sequence[Any]
    ) -> list[Any]:
        """Return gradients of variables reduced over the ranks; None stays None."""
        places = [i for i, grad in enumerate(grads) if grad is not None]
        given = [tf.convert_to_tensor(grads[i]) for i in places]
        labels = [f"{self._owner}.{names[i]}" for i in places]
        number = self._settings.process_set.process_set_id

        def start(arrays: Sequence[Any]) -> _Started:
            results = [np.empty_like(each) for each in arrays]
            calls = []
            for label, array, result in zip(labels, arrays, results, strict=True):
                there = view(np.ascontiguousarray(array), label)
                member = Member(there.dtype, there.shape)
                request = Request(
                    label,
                    Kind.ALLREDUCE,
                    (member,),
                    number,
                    self._settings.op,
                    scales=self._settings.scales,
                )
                calls.append((request, [Part(there, view(result, label))]))
            return _Started(engine.current().submit_all(calls), results)

        if tf.executing_eagerly():
            reduced = [tf.constant(e) for e in start([e.numpy() for e in given]).wait()]
        else:
            specs = [tf.TensorSpec(each.shape, each.dtype) for each in given]
            reduced = graph.call(start, given, specs, "reduce")
        results: list[Any] = [None] * len(grads)
        for i, grad in zip(places, reduced, strict=True):
            results[i] = grad
        return results

    @staticmethod
    def divided(grad: Any, by: int) -> Any:
        """Return a gradient, dense or sparse, divided by a number."""
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values / by, grad.indices, grad.dense_shape)
        return None if grad is None else grad / by


class _Started:
    def __init__(self, handles: Sequence[Any], results: list[Any]) -> None:
        self._handles, self._results = handles, results

    def wait(self) -> list[Any]:
        for each in self._handles:
            each.wait()
        return self._results
