"""Collectives on whatever a tensor of Keras' backend can be made of; they give tensors of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from blinkrun.adapter.operations import Average
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.errors import NotSupportedError
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.compression import Compression

if backend.name() == "torch":
    from blinkrun.tf.keras import on_torch as ops
else:
    from blinkrun.tf import ops


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's order
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Return `value` reduced over all ranks; every rank calls it, and it blocks.

    Parameters
    ----------
    value : array_like
        Of the same shape and dtype on all ranks.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call.
    average : bool, optional
        Deprecated; give `op`.
    prescale_factor, postscale_factor : float
        Factors before and after the reduction.
    op : optional
        `Average` (the default), `Sum`, `Min`, `Max` or `Product`.
    compression : compressor
        How it travels.
    """
    return ops.allreduce(
        _tensor(value),
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        op=op,
        compression=compression,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the values of all ranks, one below the other; every rank calls it, and it blocks.

    Parameters
    ----------
    value : array_like
        Ranks may have different lengths of the first dimension, not of others.
    """
    return ops.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of `root_rank`; every rank calls it, and it blocks."""
    return ops.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Return this rank's part of the rows of `value` reduced over all ranks.

    Parameters
    ----------
    value : array_like
        Of the same shape and dtype on all ranks. The first ranks get one row more if the rows
        cannot be divided evenly.
    """
    return ops.reducescatter(_tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that gives all global variables of a graph the values of `root_rank`.

    For graphs of ``tf.compat.v1``, which know their variables.

    Raises
    ------
    NotSupportedError, RuntimeError
        Eagerly, and on the torch backend: there the variables are to be given.
    """
    if backend.name() == "torch":
        raise NotSupportedError(
            "broadcast_global_variables is for graphs of tf.compat.v1; give the variables to "
            "broadcast_variables(model.variables, root_rank), or use "
            "callbacks.BroadcastGlobalVariablesCallback"
        )
    from blinkrun.tf import functions  # noqa: PLC0415

    return functions.broadcast_global_variables(root_rank)


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give variables of Keras the values of `root_rank`; every rank calls it, and it blocks.

    Parameters
    ----------
    variables : sequence of variables
        ``model.variables``, ``optimizer.variables``; of the same shapes and dtypes on all ranks.
    """
    variables = list(variables)
    names = [f"{number}" for number in range(len(variables))]
    arrays = backend.host_values(variables)
    values = backend.broadcast_arrays(arrays, names, root_rank, process_set)
    backend.assign(variables, values)


def _tensor(value: Any) -> Any:
    """Return a value as a tensor of the backend, or as the variable that it is."""
    value = backend.native(value)
    if backend.name() == "torch":
        return sys.modules["torch"].as_tensor(value)
    import tensorflow as tf  # noqa: PLC0415

    return value if isinstance(value, tf.Variable) else tf.convert_to_tensor(value)
