"""What waits for all other ranks, eagerly and as ops of a graph.

In a graph these run after the collectives that were added to it before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from blinkrun.adapter import waiting
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.engine import engine
from blinkrun.engine.handle import Handle
from blinkrun.engine.request import Kind, Request
from blinkrun.tf import graph
from blinkrun.tf.graph_runs import OP
from blinkrun.tf.ops_given import public
from blinkrun.tf.ops_names import place_of_op

_NUMBER = tf.TensorSpec((), tf.int32)


class _Barrier(NamedTuple):
    """A barrier under way."""

    handle: Handle

    def wait(self) -> list[np.ndarray[Any, Any]]:
        """Return when all have come."""
        self.handle.wait()
        return [np.zeros((), np.int32)]


class _Join(NamedTuple):
    """A join: said when it is waited for, in a thread of its own."""

    def wait(self) -> list[np.ndarray[Any, Any]]:
        """Return the rank that says so last."""
        return [np.array(waiting.join(), np.int32)]


@public
def barrier(process_set: ProcessSet = global_process_set) -> tf.Operation | None:
    """Return when every rank of the process set has called it; in a graph, an op that does so."""
    if tf.executing_eagerly():
        waiting.barrier(process_set)
        return None

    number = number_of(process_set)
    where: list[str] = []  # known when the op is there

    def start(_: Sequence[Any]) -> _Barrier:
        running = engine.current()
        name = running.next_name("barrier", number)
        request = Request(name, Kind.BARRIER, process_set=number, where=where[0])
        return _Barrier(running.submit(request, ()))

    op = _in_order(start, "barrier").op
    where.append(place_of_op(op))
    return op


@public
def join() -> tf.Tensor:
    """Say that this rank has no more data, and return the rank that said so last.

    Until every rank has joined, this rank takes part in the others' allreduces with neutral
    elements (zeros for sums) without being asked; averages still divide by the number of all
    ranks. Allgather, broadcast, alltoall and reducescatter fail for the others meanwhile. In a
    graph it does so when that runs.

    Returns
    -------
    tf.Tensor
        An int32 scalar.
    """
    if tf.executing_eagerly():
        return tf.constant(waiting.join(), tf.int32)
    return _in_order(lambda _: _Join(), "join")


def _in_order(start: Callable[[Sequence[Any]], Any], name: str) -> tf.Tensor:
    """Return the number that a call gives when all calls before it in the graph are through."""
    built = tf.compat.v1.get_default_graph()
    before = [op for op in built.get_operations() if op.type == OP]
    with tf.control_dependencies(before):
        return graph.call(start, [], [_NUMBER], name)[0]
