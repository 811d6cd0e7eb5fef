"""``DistributedOptimizer(op=Adasum)`` for ``tf.compat.v1``: steps are combined, not gradients.

The optimizer steps on this rank's gradients; the differences that its steps have made to the
variables are combined by Adasum, each variable by itself, and added to what was there before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.tf.aggregation import local_variable, ops_of
from blinkrun.tf.how import How
from blinkrun.tf.reduce import reduced
from blinkrun.tf.variable_names import names_of


class AdasumMixin:
    """What `DistributedOptimizer` puts in front of an optimizer's class for ``op=Adasum``."""

    __slots__ = ()

    _optimizer: Any
    _how: How
    _window: Window

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's own gradients."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Step on this rank's gradients and combine the changes; every rank calls it.

        With `backward_passes_per_step` above 1, the changes of so many steps.
        """
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        window = self._window
        before = window.begin(variables)
        with tf.control_dependencies(before):
            update = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([] if update is None else [update]):
            return window.end(lambda: self._combine(variables, before))

    def _combine(self, variables: list[Any], before: list[Any]) -> Any:
        """Replace what this rank's steps have made of the variables by what all have made."""
        starts = [tf.identity(start) for start in before]
        changes = [
            tf.subtract(variable.read_value(), start)
            for variable, start in zip(variables, starts, strict=True)
        ]
        combined = reduced(changes, names_of(variables), self._how)
        assigned = [
            variable.assign(start + change)
            for variable, start, change in zip(variables, starts, combined, strict=True)
        ]
        return tf.group(*assigned)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which steps are combined."""
        return self._how.process_set


class Window:
    """What variables were before the steps that are combined next.

    Parameters
    ----------
    passes : int
        Steps that are combined at a time.
    name : str
        What the names of the variables that it makes begin with.
    """

    def __init__(self, passes: int, name: str) -> None:
        self._passes = passes
        self._name = name
        self._count: Any = None
        self._starts: list[Any] = []

    def begin(self, variables: list[Any]) -> list[Any]:
        """Return the values that `variables` had when the window began."""
        if self._passes == 1:
            return [tf.identity(variable) for variable in variables]
        if self._count is None:
            self._count = local_variable(f"{self._name}_count", (), tf.int32)
            self._starts = [
                local_variable(f"{self._name}_start{n}", each.shape, each.dtype)
                for n, each in enumerate(variables)
            ]
        pairs = list(zip(self._starts, variables, strict=True))
        is_first = tf.equal(self._count.read_value(), 0)
        noted = tf.cond(
            is_first,
            lambda: tf.group(*[start.assign(variable) for start, variable in pairs]),
            tf.no_op,
        )
        with tf.control_dependencies([] if noted is None else [noted]):
            return [start.read_value() for start in self._starts]

    def end(self, combine: Callable[[], Any]) -> Any:
        """Combine if the window is over; the steps of this pass have been taken."""
        if self._passes == 1:
            return combine()
        count = tf.math.floormod(self._count.read_value() + 1, self._passes)
        counted = self._count.assign(count)
        with tf.control_dependencies(ops_of([counted])):
            return tf.cond(tf.equal(count, 0), combine, tf.no_op)
