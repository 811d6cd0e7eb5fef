"""allgather and broadcast: every rank gets what others have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.engine.request import Kind
from blinkrun.errors import UsageError
from blinkrun.tf import autograd
from blinkrun.tf.call import Call, run
from blinkrun.tf.ops_given import group_given, public, tensor_given, tensors_given


@public
def allgather(
    tensor: tf.Tensor | tf.Variable,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the tensors of all ranks joined along the first dimension, in rank order.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable, or what a tensor can be made of
        Dtype and all dimensions but the first are the same on every rank; the first may differ,
        also be 0. A scalar counts as a vector of one element.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set; in a
        graph one that is made of the names of graph and scope.
    ignore_name_scope : bool
        Leave the name scope out of the name of a call in a graph.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    tf.errors.FailedPreconditionError
        Also a MismatchError: dtype or a dimension other than the first differs; on every rank, and
        work goes on.
    tf.errors.InvalidArgumentError
        If the tensor or the process set cannot be used.
    """
    call = Call(Kind.ALLGATHER, name, process_set)
    tensors = [tensor_given(tensor, call)]
    return autograd.allgather(call.settled(ignore_name_scope=ignore_name_scope), tensors)[0]


@public
def grouped_allgather(
    tensors: Sequence[tf.Tensor | tf.Variable],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Return several tensors gathered as by `allgather`, in one call: all complete together."""
    call = Call(Kind.ALLGATHER, name, process_set)
    given = tensors_given(group_given(tensors, call), call)
    if not given:
        return []
    return autograd.allgather(call.settled(ignore_name_scope=ignore_name_scope), given)


@public
def broadcast(
    tensor: tf.Tensor | tf.Variable,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the values that `tensor` has on `root_rank`; `tensor` is not changed.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable, or what a tensor can be made of
        Same shape and dtype on every rank; any dtype of numbers.
    root_rank : int
        A rank of the job, also where a process set is given, to which it must belong.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set; in a
        graph one that is made of the names of graph and scope.
    ignore_name_scope : bool
        Leave the name scope out of the name of a call in a graph.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    tf.errors.FailedPreconditionError
        Also a MismatchError: ranks disagree about shape, dtype or root; on every rank, and work
        goes on.
    tf.errors.InvalidArgumentError
        If the root is no rank of the process set, or the tensor or the process set cannot be used.
    """
    call = _from_root(root_rank, name, process_set)
    tensors = [tensor_given(tensor, call)]
    return autograd.broadcast(call.settled(ignore_name_scope=ignore_name_scope), tensors)[0]


@public
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Give variables the values that they have on `root_rank`, all in one call.

    Parameters
    ----------
    variables : sequence of tf.Variable
        As many on every rank, in the same order and of the same shapes and dtypes. Keras' variables
        and those of ``tf.compat.v1`` graphs do as well.
    root_rank, name, process_set
        Those of `broadcast`.

    Returns
    -------
    list of tf.Tensor
        The new values. In a ``tf.compat.v1`` graph the variables change when these are computed.
    """
    call = _from_root(root_rank, name, process_set)
    given = [variables] if hasattr(variables, "assign") else group_given(variables, call)
    for variable in given:
        if not hasattr(variable, "assign"):
            raise UsageError(f"{call.called}: {type(variable).__name__} is no variable")
    if not given:
        return []
    values = run(call.settled(), tensors_given(given, call))
    return [_assigned(*each) for each in zip(given, values, strict=True)]


def _assigned(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Return the value of a variable after it has got it."""
    if tf.as_dtype(variable.dtype).base_dtype != variable.dtype:
        return tf.compat.v1.assign(variable, value)  # a reference, as TensorFlow 1 has them
    done = variable.assign(value)
    with tf.control_dependencies([] if tf.executing_eagerly() or done is None else [done]):
        return tf.identity(variable)


def _from_root(root_rank: int, name: str | None, process_set: ProcessSet) -> Call:
    return Call(Kind.BROADCAST, name, process_set, root=checked_root(root_rank, process_set))
