"""`DistributedOptimizer` for Keras: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from blinkrun.adapter.operations import Average
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine import engine
from blinkrun.errors import UsageError
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.compression import Compression
from blinkrun.tf.keras.settings import Settings


def DistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int | None = None,
) -> Any:
    """Return `optimizer`, made to step with the gradients of all ranks.

    Every rank of the process set calls it.
    """
    del device_dense, device_sparse
    if num_groups:
        warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    engine.current()
    settings = Settings(
        name=name,
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
    return wrapped(optimizer, settings)


def wrapped(optimizer: Any, settings: Settings) -> Any:
    """Return an optimizer of any Keras, which is wrapped now.

    Raises
    ------
    UsageError
        If it is none, or is wrapped already.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(optimizer, keras.optimizers.Optimizer):
        from blinkrun.tf.keras import wrapped as ways  # noqa: PLC0415

        backend.name()  # says so if it is another one
        _check_accumulation(optimizer, settings)
    else:
        if not any(kind.__module__.startswith("tf_keras.") for kind in type(optimizer).__mro__):
            raise UsageError(_refusal(optimizer))
        from blinkrun.tf.keras import legacy as ways  # noqa: PLC0415

        if not ways.is_optimizer(optimizer):
            raise UsageError(_refusal(optimizer))
    if ways.is_distributed(optimizer):
        raise UsageError("this optimizer is wrapped by DistributedOptimizer already")
    return ways.wrap(optimizer, settings)


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer of any Keras reduces gradients, or the one inside of it does."""
    while optimizer is not None:
        if hasattr(type(optimizer), "_blink_settings"):
            return True
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False


def _check_accumulation(optimizer: Any, settings: Settings) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if settings.backward_passes_per_step > 1 and inner.gradient_accumulation_steps:
        raise UsageError(
            f"backward_passes_per_step={settings.backward_passes_per_step} and the optimizer's "
            f"gradient_accumulation_steps={inner.gradient_accumulation_steps} do the same; give one"
        )


def _refusal(optimizer: Any) -> str:
    """Return the line that says why something is no optimizer that can be wrapped."""
    if isinstance(optimizer, type):
        return (
            f"DistributedOptimizer wraps an optimizer, got the class {optimizer.__name__}; call it"
        )
    if isinstance(optimizer, str):
        return (
            f"DistributedOptimizer wraps an optimizer, got the name '{optimizer}'; give "
            f"keras.optimizers.get('{optimizer}')"
        )
    kind = type(optimizer)
    return (
        f"DistributedOptimizer of blinkrun.tf.keras wraps optimizers of keras and tf_keras, got a "
        f"{kind.__module__}.{kind.__qualname__}"
    )
