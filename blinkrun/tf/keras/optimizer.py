"""`DistributedOptimizer` for Keras: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import blinkrun
from blinkrun.adapter.operations import Average
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.engine import engine
from blinkrun.errors import NotInitializedError, UsageError
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

    Every rank of the process set calls it. It is the object that was given, whose class is now made
    over the one that it had: ``isinstance``, ``get_config``, variables, learning rate and its
    schedules work as before, what the optimizer has learned so far stays, and Keras saves it as
    what it was.

    In ``model.fit``, in a ``train_step`` of one's own and in ``apply`` or ``apply_gradients`` of
    any loop, gradients are reduced first: clipping, weight decay, moving averages and the check of
    a LossScaleOptimizer see what all ranks have together. On one rank nothing is added.

    Parameters
    ----------
    optimizer : optimizer of keras or tf_keras
        A LossScaleOptimizer too, around one that is wrapped or not.
    name : str, optional
        What the names of collectives begin with; ``Distributed`` and its class otherwise.
    device_dense, device_sparse : str
        Accepted for Horovod scripts: tensors are reduced where they are.
    compression : compressor, default Compression.none
        How gradients travel: `Compression.fp16` and `Compression.bf16` halve the bytes of float32.
    sparse_as_dense : bool, default False
        Whether sparse gradients, of embeddings, are reduced as dense ones; otherwise indices and
        values of all ranks are gathered.
    gradient_predivide_factor : float, default 1.0
        With `Average`: gradients are divided by it before they are added up, and the sum is
        multiplied by it over the number of ranks. For narrow types whose sums could overflow.
    op : default Average
        `Average` steps as one process does on the joined batch, if the loss is a mean over it;
        `Sum` if it is a sum.
    backward_passes_per_step : int, default 1
        Calls of `apply` whose gradients are added up here before they are reduced and applied.
        Together they are one iteration; of tf_keras optimizers each is one, as under Horovod.
        Keras' own ``gradient_accumulation_steps`` does the same, and its gradients are reduced
        once, too.
    average_aggregated_gradients : bool, default False
        Whether the sum over these passes is divided by their number.
    num_groups : int
        Horovod's old name for a number of `groups`.
    groups : int or list of lists of variables, optional
        Gradients that are reduced together.
    process_set : ProcessSet
        Ranks among which gradients are reduced. On other ranks `optimizer` steps by itself.
    scale_local_gradients : bool, default True
        Whether gradients of variables that were given to ``register_local_var`` are divided by the
        number of ranks.
    bucket_bytes : int, optional
        Largest bucket; environment variable ``BLINKRUN_BUCKET_BYTES`` otherwise, or 25 MiB.

    Raises
    ------
    UsageError
        If it is no optimizer of Keras or is wrapped already, or if an argument is none of those
        above. A ValueError.
    NotInitializedError
        Before ``init()``.

    Notes
    -----
    Ranks that differ in variables, shapes or arguments are told so at the first step, by a
    MismatchError on all of them. A gradient that is None must be None on all ranks.

    XLA cannot run what reduces: ``jit_compile="auto"`` chooses to do without, and for
    ``jit_compile=True`` the first step says what to set.
    """
    del device_dense, device_sparse
    if num_groups:
        warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if not blinkrun.is_initialized():
        raise NotInitializedError("DistributedOptimizer")
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


def PartialDistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return `optimizer`, made to step with the gradients of all ranks but for some layers.

    Parameters
    ----------
    local_layers : layer or sequence of layers, optional
        Built ones, whose variables are this rank's own: their gradients are not reduced. The same
        on all ranks.

    Other arguments, and what is raised, are those of `DistributedOptimizer`.
    """
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, list | tuple) else [layers]
    for each in layers:
        if not hasattr(each, "trainable_weights"):
            raise UsageError(f"local_layers are layers of Keras, got {each!r}")
    result = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    wrapped_one = _wrapped_in(result)
    for layer in layers:
        for variable in layer.trainable_weights:
            wrapped_one.register_local_var(variable)
    return result


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


def _wrapped_in(optimizer: Any) -> Any:
    """Return what is wrapped: the optimizer, or the one inside of it."""
    while not hasattr(type(optimizer), "_blink_settings"):
        optimizer = optimizer.inner_optimizer
    return optimizer


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
