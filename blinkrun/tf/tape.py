"""`DistributedGradientTape`: a tape that gives the gradients of all ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.errors import UsageError
from blinkrun.tf.compression import Compression
from blinkrun.tf.how import How, identity
from blinkrun.tf.reduce import reduced_but_local
from blinkrun.tf.variable_names import names_of
from blinkrun.types import Op

_OWNER = "DistributedGradientTape"
_NO_ZEROS = tf.UnconnectedGradients.NONE


class DistributedTapeMixin:
    """What `DistributedGradientTape` puts in front of a tape's own class."""

    __slots__ = ()

    _how: How
    _plain: Any
    _local: dict[int, Any]

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients of a variable on this rank: they are not reduced.

        They are divided by the number of ranks if `scale_local_gradients` was given.
        """
        self._local[identity(source)] = source  # which keeps the identity its own

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = _NO_ZEROS,
        use_generic_names: bool = False,
    ) -> Any:
        """Return the gradients of `target`, reduced over the ranks; every rank calls it.

        Arguments and result are those of ``tf.GradientTape.gradient``; `sources` may be nested. A
        gradient that is None must be so on all ranks.

        Parameters
        ----------
        use_generic_names : bool
            Accepted for Horovod scripts, there fourth of the arguments: names do not depend on it.

        Raises
        ------
        MismatchError
            If ranks differ in variables, shapes or arguments; names ranks and the first difference.
        """
        if isinstance(unconnected_gradients, bool):
            unconnected_gradients = _NO_ZEROS
        gradients = self._plain.gradient(target, sources, output_gradients, unconnected_gradients)
        variables = tf.nest.flatten(sources)
        results = reduced_but_local(
            tf.nest.flatten(gradients), variables, names_of(variables), self._how, self._local
        )
        return tf.nest.pack_sequence_as(sources, results)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[Any],
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return (source, gradient) of the sources of this rank alone, and of all others."""
        gradients = self.gradient(target, sources, output_gradients)
        pairs = list(zip(sources, gradients, strict=True))
        own = [pair for pair in pairs if identity(pair[0]) in self._local]
        return own, [pair for pair in pairs if identity(pair[0]) not in self._local]

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's own jacobian, as the tape's own class does."""
        return self._plain.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's own jacobians, as the tape's own class does."""
        return self._plain.batch_jacobian(*args, **kwargs)


def DistributedGradientTape(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int | None = None,
    name: str = _OWNER,
) -> Any:
    """Return a tape whose ``gradient()`` gives the gradients of all ranks.

    It shares what `gradtape` has recorded and stays an instance of its class; `gradtape` itself
    keeps giving this rank's gradients. Works with persistent tapes, before, in and after the
    ``with`` block, eagerly and in a ``tf.function``, and waits for other ranks in ``gradient()``.

    Parameters
    ----------
    gradtape : tf.GradientTape
        A tape.
    device_dense, device_sparse : str
        Accepted for Horovod scripts; collectives run on the CPU.
    compression : Compression
        `Compression.none`, `.fp16`, `.bf16`, or a class with ``compress`` and ``decompress``.
    sparse_as_dense : bool
        Whether sparse gradients (`tf.IndexedSlices`) become dense before they are reduced. Else
        indices and values of all ranks are gathered.
    op : default Average
        `Average`, `Sum` or `Adasum`.
    gradient_predivide_factor : float
        With `Average`: divide by it before the sum, and by the rest of the size after.
    num_groups : int
        Old name of `groups`.
    groups : int or list of lists of variables, optional
        Gradients that are reduced together, whatever their size: so many groups, or those of these
        variables.
    process_set : ProcessSet
        The ranks whose gradients are reduced; other ranks keep their own.
    scale_local_gradients : bool
        Whether gradients of `register_local_source` are divided by the number of ranks.
    bucket_bytes : int, optional
        Largest bucket. Environment variable ``BLINKRUN_BUCKET_BYTES`` otherwise, or 25 MiB.
    name : str
        What the names of the reductions begin with, the same on all ranks. Tapes that several
        threads use at the same time need different ones.

    Raises
    ------
    UsageError
        If `gradtape` is no tape or is wrapped already, or an argument is none of those above. A
        ValueError.
    """
    if isinstance(gradtape, DistributedTapeMixin):
        raise UsageError("this tape is wrapped by DistributedGradientTape already")
    if not isinstance(gradtape, tf.GradientTape):
        raise UsageError(
            f"DistributedGradientTape wraps a tf.GradientTape, got {type(gradtape).__name__}"
        )
    how = How(
        name,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        bucket_bytes=bucket_bytes,
        groups=groups_of(num_groups, groups),
        scale_local_gradients=scale_local_gradients,
    )
    tape = object.__new__(_distributed_class(type(gradtape)))
    tape.__dict__ = gradtape.__dict__
    tape._how, tape._plain, tape._local = how, gradtape, {}
    return tape


def PartialDistributedGradientTape(  # noqa: N802, PLR0913, PLR0917 - Horovod's name and order
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    bucket_bytes: int | None = None,
    name: str = _OWNER,
) -> Any:
    """Return a `DistributedGradientTape` that leaves the variables of some layers to this rank.

    Parameters
    ----------
    local_layers : layer or collection of layers, optional
        Whose gradients are not reduced.

    The others are those of `DistributedGradientTape`.

    Raises
    ------
    ValueError
        If `local_layers` has anything but layers.
    """
    layers = _layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        bucket_bytes=bucket_bytes,
        name=name,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def groups_of(num_groups: int, groups: Any) -> Any:
    """Return what the arguments `num_groups` and `groups` mean together."""
    if num_groups:
        warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=3)
        return num_groups if groups is None else groups
    return groups


def _layers(given: Any) -> list[Any]:
    if given is None:
        return []
    layers = [given] if isinstance(given, tf.keras.layers.Layer) else list(given)
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise UsageError("All local layers must be of tf.keras.layers.Layer type.")
    return layers


@functools.cache
def _distributed_class(base: type) -> type:
    """Return the class over `base` that reduces gradients."""
    fields = {"__slots__": ("_how", "_local", "_plain"), "__module__": base.__module__}
    return type(base.__name__, (DistributedTapeMixin, base), fields)
