"""`DistributedOptimizer`: optimizers of Keras, and those of ``tf.compat.v1.train``."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine import engine
from blinkrun.engine.request import ADASUM
from blinkrun.errors import UsageError
from blinkrun.tf.adasum import AdasumMixin, Window
from blinkrun.tf.aggregation import Aggregation, checked_passes
from blinkrun.tf.compression import Compression
from blinkrun.tf.how import How, identity
from blinkrun.tf.reduce import reduced_but_local
from blinkrun.tf.tape import groups_of
from blinkrun.tf.variable_names import names_of
from blinkrun.types import Op

_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class DistributedMixin:
    """What `DistributedOptimizer` puts in front of the class of a ``tf.compat.v1`` optimizer."""

    __slots__ = ()

    _optimizer: Any
    _how: How
    _aggregation: Aggregation | None
    _local: dict[int, Any]

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on this rank: it is not reduced.

        It is divided by the number of ranks, unless `scale_local_gradients` is false.
        """
        self._local[identity(var)] = var

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the gradients of all ranks with their variables; every rank calls it.

        Arguments are those of the optimizer's own method.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]

        def reduce(given: list[Any]) -> list[Any]:
            return reduced_but_local(given, variables, names_of(variables), self._how, self._local)

        if self._aggregation is None:
            return list(zip(reduce(gradients), variables, strict=True))
        return list(zip(self._aggregation.compute(gradients, reduce), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Update variables, as the optimizer's own method does.

        With `backward_passes_per_step` above 1, only in those steps in which gradients have been
        reduced; `global_step` counts every one.
        """
        pairs = list(grads_and_vars)

        def update() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation is None:
            return update()

        def count() -> Any:
            return tf.no_op() if global_step is None else tf.group(global_step.assign_add(1))

        return self._aggregation.apply([gradient for gradient, _ in pairs], update, count)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which gradients are reduced."""
        return self._how.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether gradients that are not reduced are divided by the number of ranks."""
        return self._how.scale_local_gradients


def DistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int | None = None,
) -> Any:
    """Return an optimizer that steps with the gradients of all ranks.

    A Keras optimizer goes to `blinkrun.tf.keras.DistributedOptimizer`. One of
    ``tf.compat.v1.train`` is wrapped here: what is returned shares its state, is an instance of
    its class, and reduces in ``compute_gradients``.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or tf.compat.v1.train.Optimizer
        An optimizer.
    name : str, optional
        What the names of the reductions begin with. Default: "Distributed" and the class.
    use_locking : bool
        Accepted for Horovod scripts: `optimizer` has its own.
    device_dense, device_sparse : str
        Accepted for Horovod scripts; collectives run on the CPU.
    compression : Compression
        `Compression.none`, `.fp16`, `.bf16`, or a class with ``compress`` and ``decompress``.
    sparse_as_dense : bool
        Whether sparse gradients (`tf.IndexedSlices`) become dense before they are reduced.
    backward_passes_per_step : int
        Passes whose gradients are added up on each rank before they are reduced and applied.
    op : default Average
        `Average`, `Sum`, or `Adasum`, for ``tf.compat.v1`` only, where it combines what each
        rank's own step has made of the variables.
    gradient_predivide_factor : float
        With `Average`: divide by it before the sum, and by the rest of the size after.
    average_aggregated_gradients : bool
        Whether sums over passes are divided by `backward_passes_per_step`.
    num_groups : int
        Old name of `groups`.
    groups : int or list of lists of variables, optional
        Gradients that are reduced together: so many groups, or those of these variables.
    process_set : ProcessSet
        The ranks whose gradients are reduced; other ranks step with their own.
    scale_local_gradients : bool
        Whether gradients of `register_local_var` are divided by the number of ranks.
    bucket_bytes : int, optional
        Largest bucket. Environment variable ``BLINKRUN_BUCKET_BYTES`` otherwise, or 25 MiB.

    Raises
    ------
    UsageError
        If `optimizer` is of neither kind or wrapped already, or an argument is none of those
        above. A ValueError.
    NotInitializedError
        Before ``init()``.
    """
    groups = groups_of(num_groups, groups)
    if op == ADASUM and average_aggregated_gradients:
        raise UsageError("average_aggregated_gradients does not go with op=Adasum")
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_keras(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            bucket_bytes=bucket_bytes,
        )
    ranks = engine.current().world.size
    if isinstance(optimizer, DistributedMixin | AdasumMixin):
        raise UsageError("this optimizer is wrapped by DistributedOptimizer already")
    label = name or f"Distributed{type(optimizer).__name__}"
    how = How(
        f"{label}.{next(_numbers[tuple(process_set.ranks or range(ranks))])}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        bucket_bytes=bucket_bytes,
        groups=groups,
        scale_local_gradients=scale_local_gradients,
    )
    passes = checked_passes(backward_passes_per_step)
    mixin = AdasumMixin if op == ADASUM else DistributedMixin
    wrapped = object.__new__(_distributed_class(type(optimizer), mixin))
    wrapped.__dict__ = optimizer.__dict__
    wrapped._optimizer, wrapped._how = optimizer, how
    if op == ADASUM:
        wrapped._window = Window(passes, label)
        return wrapped
    wrapped._local, wrapped._aggregation = {}, None
    if passes > 1:
        wrapped._aggregation = Aggregation(
            passes,
            average=average_aggregated_gradients,
            sparse_as_dense=sparse_as_dense,
            name=label,
        )
    return wrapped


def _of_keras(optimizer: Any, **options: Any) -> Any:
    if not hasattr(optimizer, "apply_gradients"):
        raise UsageError(
            "DistributedOptimizer wraps an optimizer of Keras or of tf.compat.v1.train, got "
            f"{type(optimizer).__name__}"
        )
    if options["op"] == ADASUM:
        raise UsageError(
            "op=Adasum is for optimizers of tf.compat.v1.train; Keras' reduce by Average or Sum"
        )
    from blinkrun.tf import keras  # noqa: PLC0415 - needs Keras

    return keras.DistributedOptimizer(optimizer, **options)


@functools.cache
def _distributed_class(base: type, mixin: type) -> type:
    """Return the class over `base` that reduces before it steps."""
    slots = ("_aggregation", "_how", "_local", "_optimizer", "_window")
    return type(base.__name__, (mixin, base), {"__slots__": slots, "__module__": base.__module__})
