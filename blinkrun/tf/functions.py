"""Give every rank what one rank has: variables, and Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from blinkrun.adapter import objects
from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.errors import NotSupportedError
from blinkrun.tf.ops_given import public
from blinkrun.tf.variables import Sending, checked, plain


@public
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Give all variables the values that they have on `root_rank`. Collective; blocks.

    Variables are told apart by their order, names do not matter. All of them take one message,
    and small ones travel together.

    Parameters
    ----------
    variables : iterable of variables
        Those of TensorFlow, Keras 3 (on its TensorFlow backend) or tf_keras, of any dtype but
        strings; as many, of the same shapes and dtypes, on every rank.
    root_rank : int
        The rank whose values count, as a rank of the job.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    inplace : bool, default False
        Accepted for Horovod scripts: each variable takes over the memory in which its value came.

    Returns
    -------
    tf.Operation or None
        The operation that does it, in a graph of TensorFlow 1; else it is done, or, in a
        ``tf.function``, will be whenever that runs.

    Raises
    ------
    MismatchError
        If a rank has other variables; on every rank, and nothing is changed.
    UsageError
        If an item is no variable, or one of strings; if there is no rank `root_rank`.
    """
    given = [plain(each) for each in checked(variables)]
    root = checked_root(root_rank, process_set)
    sending = Sending(given, root, process_set)
    if tf.executing_eagerly():
        sending.run()
        return None
    done = sending.build()
    return None if tf.inside_function() else done


@public
def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Return the operation that broadcasts all global variables of a graph of TensorFlow 1.

    Raises
    ------
    NotSupportedError
        In eager code and in a ``tf.function``, which have no global variables. It is a
        RuntimeError.
    """
    if tf.executing_eagerly() or tf.inside_function():
        raise NotSupportedError(
            "broadcast_global_variables is for graphs of TensorFlow 1; "
            "call broadcast_variables(model.variables, root_rank) instead"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables when a session of TensorFlow 1 is made.

    Parameters
    ----------
    root_rank : int
        The rank whose values count.
    device : str
        Accepted for Horovod scripts: values travel through the memory of the host.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: tf.Operation | None = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self.bcast_op)


@public
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank` on every rank; it is pickled, so keep it small.

    It is Python's work, done when this is called: in a ``tf.function``, when that is traced.

    Parameters
    ----------
    obj : any picklable object
        What `root_rank` sends; ignored on other ranks. What pickle refuses (lambdas, local
        classes) goes through cloudpickle, where that is installed.
    root_rank : int, default 0
        The rank that sends, as a rank of the job.
    session : optional
        Accepted for Horovod scripts: no session is needed.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function of an object that does what `broadcast_object` does."""

    @public
    def broadcast(obj: Any) -> Any:
        return objects.broadcast_object(obj, root_rank, name, process_set)

    return broadcast


@public
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks in rank order, on every rank; they are pickled.

    Parameters
    ----------
    obj : any picklable object
        What this rank gives; keep it small.
    session : optional
        Accepted for Horovod scripts: no session is needed.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    """
    return objects.allgather_object(obj, name, process_set)
