"""Models that were saved, with their optimizers wrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blinkrun.engine import engine
from blinkrun.errors import UsageError
from blinkrun.tf import versions
from blinkrun.tf.keras.compression import Compression
from blinkrun.tf.keras.optimizer import DistributedOptimizer, is_distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Return a saved model whose optimizer is wrapped by `DistributedOptimizer`.

    Not collective: a rank may load what others build. The optimizer goes on with the state that
    was saved: iterations, learning rate, slots. Whether it was wrapped when the model was saved
    makes no difference.

    Parameters
    ----------
    filepath : path
        Of a model in a format that Keras loads.
    custom_optimizers : sequence of classes, optional
        Classes of optimizers that Keras does not know.
    custom_objects : mapping, optional
        Names of other classes and functions that Keras does not know. A function that makes an
        optimizer may wrap it.
    compression : compressor
        As for `DistributedOptimizer`.
    legacy_opts : bool
        Accepted for Horovod scripts: classes are recognised.
    **options
        Other arguments of `DistributedOptimizer`.

    Returns
    -------
    keras.Model
        Of the Keras in use. One that was saved without an optimizer has none.

    Raises
    ------
    NotInitializedError
        Before ``init()``.
    UsageError
        If `custom_optimizers` has anything but classes.
    """
    del legacy_opts
    engine.current()
    known = dict(custom_objects or {})
    for each in custom_optimizers or ():
        if not isinstance(each, type):
            raise UsageError(f"custom_optimizers are classes of optimizers, got {each!r}")
        known.setdefault(each.__name__, each)
    model = _keras().models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression, **options)
    if optimizer is not None and engine.current().world.size > 1:
        _turn_off_xla(model)
    return model


def _keras() -> Any:
    if versions.is_legacy():
        import tf_keras as keras  # noqa: PLC0415
    else:
        import keras  # noqa: PLC0415
    return keras


def _turn_off_xla(model: Any) -> None:
    """Have a model run without XLA, which was chosen when it was saved or loaded."""
    if getattr(model, "jit_compile", None):
        model.jit_compile = False
