"""Names of ``horovod.tensorflow.mpi_ops`` that begin with an underscore, which some scripts use.

They differ from those without in their order of arguments and in their default, `Sum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from blinkrun.adapter.operations import Sum
from blinkrun.adapter.process_sets import ProcessSet, global_process_set
from blinkrun.tf import ops
from blinkrun.tf.ops_given import public

__all__ = [
    "_allreduce",
    "_allreduce_cond",
    "_grouped_allreduce",
    "_grouped_allreduce_cond",
    "_grouped_reducescatter",
    "_reducescatter",
]


def _allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return `tensor` reduced over all ranks; see `blinkrun.tf.allreduce`."""
    return ops.allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def _grouped_allreduce(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Return tensors reduced over all ranks in one call; see `blinkrun.tf.grouped_allreduce`."""
    return ops.grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        name=name,
    )


def _reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Return this rank's rows of a reduction; see `blinkrun.tf.reducescatter`."""
    return ops.reducescatter(
        tensor,
        op=op,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _grouped_reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Return this rank's rows of several reductions; see `blinkrun.tf.grouped_reducescatter`."""
    return ops.grouped_reducescatter(
        tensors,
        op=op,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


@public
def _allreduce_cond(
    tensor: Any, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any
) -> Any:
    """Return `tensor` reduced over the ranks of a set; as it is on others, and if it is alone."""
    if not _is_shared(process_set):
        return tensor
    return ops.allreduce(tensor, *args, process_set=process_set, **kwargs)


@public
def _grouped_allreduce_cond(
    tensors: Sequence[Any],
    *args: Any,
    process_set: ProcessSet = global_process_set,
    **kwargs: Any,
) -> Any:
    """Return tensors reduced over the ranks of a set; as they are on others, and if it is alone."""
    if not _is_shared(process_set):
        return tensors
    return ops.grouped_allreduce(tensors, *args, process_set=process_set, **kwargs)


def _is_shared(process_set: ProcessSet) -> bool:
    return bool(process_set.included()) and (process_set.size() or 0) > 1
