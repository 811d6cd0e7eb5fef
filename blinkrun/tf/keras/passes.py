"""`backward_passes_per_step` for Keras 3: gradients added up here before they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


class Passes:
    """Sums of the gradients of the passes since the last step.

    They lie in variables that no optimizer tracks, so that what is saved has none of them. Steps
    are iterations, passes are not: moving averages and schedules go as on the joined batches.

    Parameters
    ----------
    per_step : int
        Passes that make a step.
    averages : bool
        Whether sums are divided by it.
    """

    def __init__(self, per_step: int, averages: bool) -> None:
        self.per_step = per_step
        self._averages = averages
        self._sums: dict[int, Any] = {}
        self._kept: list[Any] = []
        self.counter: Any = None

    def apply(
        self,
        optimizer: Any,
        grads: Sequence[Any],
        variables: Sequence[Any],
        step: Callable[[list[Any]], Any],
    ) -> None:
        """Add gradients to the sums; with those of the last pass, call `step` with the sums."""
        if not optimizer.built:  # not in a branch of the graph
            optimizer.build(list(variables))
            optimizer.built = True
        if self.counter is None:
            self.counter = _variable((), "int32", "passes")
        places = [i for i, grad in enumerate(grads) if grad is not None]
        held = [self._sum_of(variables[i], grads[i]) for i in places]
        sums = [ops.add(grads[i], each) for i, each in zip(places, held, strict=True)]

        def last() -> None:
            due: list[Any] = [None] * len(grads)
            for i, each in zip(places, sums, strict=True):
                due[i] = ops.divide(each, self.per_step) if self._averages else each
            step(due)
            for each in held:
                each.assign(ops.zeros_like(each))
            self.counter.assign(0)

        def early() -> None:
            for each, total in zip(held, sums, strict=True):
                each.assign(total)
            self.counter.assign_add(1)

        ops.cond(ops.equal(self.counter, self.per_step - 1), last, early)

    def _sum_of(self, variable: Any, grad: Any) -> Any:
        """Return the variable that holds the sum for a variable, made at its first gradient."""
        known = self._sums.get(id(variable))
        if known is None:
            known = _variable(variable.shape, keras.backend.standardize_dtype(grad.dtype), "sum")
            self._sums[id(variable)] = known
            self._kept.append(variable)  # or another one could get its id
        return known


def _variable(shape: Any, dtype: str, name: str) -> Any:
    return keras.Variable(
        initializer="zeros", shape=tuple(shape), dtype=dtype, trainable=False, name=name
    )
