"""Calls of the engine from inside a ``tf.function``.

A call is one op. It begins when its inputs are there, never blocks a thread of TensorFlow, and is
ordered by nothing but its inputs: so ranks whose graphs run their ops in different orders offer all
that they can to the engine, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from blinkrun.errors import UsageError
from blinkrun.tf import threads, xla
from blinkrun.tf.errors import translated
from blinkrun.tf.graph_runs import OP, Site, Start, Started

__all__ = ["Start", "Started", "call"]

threads.pin_device()  # `init` may have come before TensorFlow was imported


@tf.autograph.experimental.do_not_convert
@translated()
def call(
    start: Start, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], name: str
) -> list[tf.Tensor]:
    """Return the tensors that a call of the engine gives, at every run of the graph.

    The op runs whether or not its results are used, and once for each run. Of several calls none
    waits for another, unless it takes what the other gives.

    Parameters
    ----------
    start : callable
        Begins the call on read-only numpy views of the inputs, one call after the other or several
        at once, and returns without waiting for other ranks. The views stay valid and unchanged
        while they are referred to.
    inputs : sequence of tf.Tensor
        What it is given.
    outputs : sequence of tf.TensorSpec
        Dtypes of the results, and what is known of their shapes. Results that start at a multiple
        of 64 bytes are taken without a copy, and must not be written to anymore.
    name : str
        Of the op.

    Raises
    ------
    UsageError
        Outside of graphs, and where XLA compiles.
    InvalidBufferError
        If an input or output has a dtype that is no number.

    Notes
    -----
    What `start` or `wait` raises becomes the error of the function, with its text: a
    `tf.errors.FailedPreconditionError` for a CollectiveError, an `InvalidArgumentError` for other
    ValueErrors and TypeErrors, an `UnimplementedError` for a NotImplementedError. Other calls of
    the same run then end as cancelled, though the engine still waits for other ranks to make them.
    """
    if tf.executing_eagerly():
        raise UsageError(f"{name}: a call of a graph outside of any; call it in a tf.function")
    xla.refuse(name)
    inputs = [tf.convert_to_tensor(each) for each in inputs]
    site = Site(start, inputs, outputs, name)
    graph = tf.compat.v1.get_default_graph()
    with tf.device("/device:CPU:0"):
        op = graph.create_op(
            OP,
            inputs,
            [spec.dtype for spec in outputs],
            name=name,
            attrs={
                "Tin": _type_list([each.dtype for each in inputs]),
                "Tout": _type_list([spec.dtype for spec in outputs]),
                "token": tf.compat.v1.AttrValue(s=site.token.encode()),
            },
        )
    _keep(site, graph)
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(op)
    for result, spec in zip(op.outputs, outputs, strict=True):
        result.set_shape(spec.shape)
    return list(op.outputs)


def _type_list(dtypes: Sequence[tf.DType]) -> Any:
    values = tf.compat.v1.AttrValue.ListValue(type=[each.as_datatype_enum for each in dtypes])
    return tf.compat.v1.AttrValue(list=values)


def _keep(site: Site, graph: Any) -> None:
    """Let `site` live as long as any of the graphs that it is in."""
    is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    while graph is not None:
        outer = getattr(graph, "outer_graph", None)
        if outer is None and is_eager:
            return  # the graph that is there outside of all functions, for ever
        if not hasattr(graph, "_blinkrun_calls"):
            graph._blinkrun_calls = []
        graph._blinkrun_calls.append(site)
        graph = outer
