"""Gradients added up on this rank over several passes, and reduced once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from blinkrun.errors import UsageError
from blinkrun.tf.reduce import Grad, as_dense, divided

Reduce = Callable[[list[Grad]], list[Grad]]


class Aggregation:
    """Sums of gradients in variables; eagerly, in a ``tf.function`` and in graphs of sessions.

    Variables are made at the first use. In a graph of a session they are local variables:
    ``tf.compat.v1.local_variables_initializer()`` initialises them.

    Parameters
    ----------
    passes : int
        After how many passes gradients are reduced.
    average : bool
        Whether what has been reduced is divided by `passes`.
    sparse_as_dense : bool
        Whether `tf.IndexedSlices` become dense; they cannot be added up else.
    name : str
        What the names of the variables begin with.

    Raises
    ------
    UsageError
        If `passes` is no whole number of at least 1. A ValueError.
    """

    def __init__(
        self, passes: int, *, average: bool = False, sparse_as_dense: bool = False, name: str = ""
    ) -> None:
        self.passes = checked_passes(passes)
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._name = name or "aggregation"
        self._count: Any = None
        self._sums: list[Any] = []

    @property
    def variables(self) -> list[Any]:
        """The counter and the sums, as far as they have been made."""
        return [v for v in (self._count, *self._sums) if v is not None]

    def compute(self, gradients: Sequence[Grad], reduce: Reduce) -> list[Grad]:
        """Add gradients to the sums; return the reduced sums when they are due, else the sums.

        Parameters
        ----------
        gradients : sequence of tf.Tensor, tf.IndexedSlices or None
            Of the same variables at every pass.
        reduce : callable
            Reduces sums over the ranks, None staying None; called once when a graph is built, at
            every step in which it is due eagerly.

        Raises
        ------
        UsageError
            If a gradient is sparse and is not to become dense, or other gradients than at the
            first pass are None. A ValueError.
        """
        given = [self._as_dense(each) for each in gradients]
        if self._count is None:
            self._make_variables(given)
        places = [n for n, each in enumerate(given) if each is not None]
        if places != [n for n, each in enumerate(self._sums) if each is not None]:
            raise UsageError(
                "gradients are None that were not at the first pass, or the other way round; with "
                "backward_passes_per_step they must be so at every pass"
            )
        sums = [self._sums[n] for n in places]
        added = [total.assign_add(given[n]) for n, total in zip(places, sums, strict=True)]
        with tf.control_dependencies([*ops_of(added), *ops_of([self._count.assign_add(1)])]):
            is_due = tf.equal(self._count.read_value(), self.passes)

            def when_due() -> list[Any]:
                totals: list[Grad] = [None] * len(given)
                for n, total in zip(places, sums, strict=True):
                    totals[n] = total.read_value()
                reduced = reduce(totals)
                with tf.control_dependencies([reduced[n] for n in places]):
                    cleared = [total.assign(tf.zeros_like(total)) for total in sums]
                    cleared.append(self._count.assign(0))
                with tf.control_dependencies(ops_of(cleared)):
                    return [self._final(reduced[n]) for n in places]

            results = tf.cond(is_due, when_due, lambda: [total.read_value() for total in sums])
        if not isinstance(results, list | tuple):
            results = [results]
        placed: list[Grad] = [None] * len(given)
        for n, result in zip(places, results, strict=True):
            placed[n] = result
        return placed

    def apply(
        self, gradients: Sequence[Grad], update: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Return what `update` does after a pass that has reduced, what `otherwise` does after one.

        Parameters
        ----------
        gradients : sequence of tf.Tensor or None
            What `compute` returned.
        """
        if self._count is None:
            raise UsageError("apply_gradients() before compute_gradients(), which adds them up")
        with tf.control_dependencies([each for each in gradients if each is not None]):
            is_reduced = tf.equal(self._count.read_value(), 0)
        return tf.cond(is_reduced, update, otherwise)

    def _final(self, gradient: Grad) -> Any:
        divisor = self.passes if self._average else 1
        return divided(tf.identity(gradient), divisor)

    def _as_dense(self, gradient: Grad) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise UsageError(
                "IndexedSlices are not added up with backward_passes_per_step > 1; give "
                "sparse_as_dense=True"
            )
        return as_dense(gradient)

    def _make_variables(self, gradients: Sequence[Any]) -> None:
        for gradient in gradients:
            if gradient is not None and not gradient.shape.is_fully_defined():
                raise UsageError(
                    f"a gradient has shape {gradient.shape}; gradients of known shapes are added up"
                )
        self._count = local_variable(f"{self._name}_count", (), tf.int32)
        self._sums = [
            None if each is None else local_variable(f"{self._name}_sum{n}", each.shape, each.dtype)
            for n, each in enumerate(gradients)
        ]


def checked_passes(passes: int) -> int:
    """Return a number of passes, or raise UsageError if it is no whole number of at least 1."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise UsageError(
            f"backward_passes_per_step is {passes!r}, need a whole number of at least 1"
        )
    return passes


def local_variable(name: str, shape: Any, dtype: tf.DType) -> Any:
    """Return a variable of zeros that is not trained: a local one in a graph of a session."""
    built = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or getattr(built, "building_function", False):
        with tf.init_scope():
            return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, dtype),
        trainable=False,
        use_resource=True,
        name=name,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


def ops_of(results: Sequence[Any]) -> list[Any]:
    """Return what to depend on in a graph; eagerly there is nothing."""
    return [] if tf.executing_eagerly() else [getattr(each, "op", each) for each in results]
