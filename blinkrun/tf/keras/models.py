"""Models that were saved, with their optimizers wrapped."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from blinkrun.engine import engine
from blinkrun.errors import UsageError
from blinkrun.tf import versions
from blinkrun.tf.keras.compression import Compression
from blinkrun.tf.keras.makers import with_makers
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
    known = with_makers(known, filepath)
    model = _keras().models.load_model(filepath, custom_objects=known)
    if not versions.is_legacy() and str(filepath).endswith((".h5", ".hdf5")):
        _restore_from_hdf5(model, filepath)
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


def _restore_from_hdf5(model: Any, filepath: Any) -> None:
    """Give a model from an HDF5 file an optimizer with the state that was saved.

    Keras 3 builds one for none of the model's variables, which cannot train it.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built or optimizer._trainable_variables:
        return
    import h5py  # noqa: PLC0415 - Keras has just used it

    made = type(optimizer).from_config(optimizer.get_config())
    made.build(model.trainable_variables)
    made.built = True
    with h5py.File(filepath, "r") as file:
        group = file["optimizer_weights"]
        names = [each.decode() if isinstance(each, bytes) else each for each in _names(group)]
        for variable, name in zip(made.variables, names, strict=True):
            variable.assign(group[name][()])
    model.optimizer = made


def _names(group: Any) -> list[Any]:
    """Return the names of weights in a group, which come in parts if they are many."""
    if "weight_names" in group.attrs:
        return list(group.attrs["weight_names"])
    parts = itertools.takewhile(
        group.attrs.__contains__, (f"weight_names{part}" for part in itertools.count())
    )
    return [name for part in parts for name in group.attrs[part]]


def _turn_off_xla(model: Any) -> None:
    """Have a model run without XLA, which was chosen when it was saved or loaded."""
    if getattr(model, "jit_compile", None):
        model.jit_compile = False
