"""What goes wrong with collectives on TensorFlow tensors, and what is said then."""

import pickle
import warnings

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink
from blinkrun import errors

CASES = (
    "mismatches",
    "mismatches_in_graphs",
    "gradients_that_differ",
    "arguments_refused",
    "arguments_refused_in_graphs",
    "tensors_refused",
    "slices_refused",
    "errors_travel",
    "average_is_deprecated",
    "place_of_a_call",
)


TRACE = ("File ", "Graph execution error", "Detected at node", "[[{{node")


def told(call):
    """The class and text of the error of a call, and which of TensorFlow's it is."""
    try:
        call()
    except Exception as err:
        kinds = (
            tf.errors.FailedPreconditionError,
            tf.errors.InvalidArgumentError,
            NotImplementedError,
            tf.errors.UnimplementedError,
        )
        theirs = next((kind.__name__ for kind in kinds if isinstance(err, kind)), "none")
        lines = [line.strip() for line in str(err).splitlines()]
        lines = [line for line in lines if line and not line.startswith(TRACE)]
        return f"{theirs} | {type(err).__name__} | {' '.join(lines)}"
    return "no error"


def works():
    return float(blink.allreduce(tf.constant(1.0), op=blink.Sum, name="afterwards"))


def differing():
    """Calls that do not fit to those of other ranks, by what differs."""
    rank = blink.rank()
    ones = tf.ones([2, 2])
    return {
        "shape": lambda: blink.allreduce(tf.ones([2 + rank, 2]), name="t"),
        "dimensions": lambda: blink.allreduce(tf.ones([4] if rank else [2, 2]), name="t"),
        "dtype": lambda: blink.allreduce(tf.cast(ones, (tf.float32, tf.int32)[rank > 0]), name="t"),
        "wire": lambda: blink.allreduce(tf.cast(ones, (tf.int16, tf.uint16)[rank > 0]), name="t"),
        "op": lambda: blink.allreduce(ones, op=(blink.Sum, blink.Max)[rank > 0], name="t"),
        "factor": lambda: blink.allreduce(ones, prescale_factor=1.0 + rank, name="t"),
        "kind": lambda: (blink.allgather if rank else blink.allreduce)(ones, name="t"),
        "group": lambda: blink.grouped_allreduce([ones] * (1 + (rank > 0)), name="t"),
        "root": lambda: blink.broadcast(ones, min(rank, 1), name="t"),
        "rows": lambda: blink.allgather(tf.ones([2, 2 + rank]), name="t"),
        "columns": lambda: blink.alltoall(tf.ones([blink.size(), 2 + rank]), name="t"),
        "scattered": lambda: blink.reducescatter(tf.ones([6, 1 + rank]), name="t"),
    }


def mismatches():
    return {what: told(call) for what, call in differing().items()} | {"works": works()}


def mismatches_in_graphs():
    found = {what: told(tf.function(call)) for what, call in differing().items()}
    again = tf.function(lambda x: blink.allreduce(x, name="again"), reduce_retracing=True)
    first = told(lambda: again(tf.ones(3 + blink.rank())))
    then = again(tf.ones(3)).numpy().tolist()  # the same function goes on
    return found | {"first": first, "then": then, "works": works()}


def gradients_that_differ():
    """A gradient whose shape differs between ranks is named after the call that it is of."""
    x = tf.constant([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = blink.allreduce(x, name="weights")
    rows = tf.ones([2 + blink.rank(), 1])
    return {"shape": told(lambda: tape.gradient(y, x, rows)), "works": works()}


def arguments():
    """Arguments that one rank alone knows to be wrong; nothing is sent."""
    size, ones = blink.size(), tf.ones([blink.size(), 2])
    unknown = blink.ProcessSet([0])
    another = blink.ProcessSet([0])
    another.process_set_id = 77
    return {
        "op": lambda: blink.allreduce(ones, op="sum"),
        "scatter op": lambda: blink.reducescatter(ones, op=17),
        "root": lambda: blink.broadcast(ones, size),
        "negative": lambda: blink.broadcast(ones, -1),
        "rows": lambda: blink.alltoall(tf.ones([size + 1]), name="x"),
        "few": lambda: blink.alltoall(ones, [size] * (size + 1)),
        "sum": lambda: blink.alltoall(ones, [1] * (size - 1) + [2]),
        "below": lambda: blink.alltoall(ones, [-1] * size),
        "fractions": lambda: blink.alltoall(ones, tf.ones(size)),
        "table": lambda: blink.alltoall(ones, tf.ones([size, 1], tf.int32)),
        "words": lambda: blink.alltoall(ones, ["a"] * size),
        "scalar": lambda: blink.alltoall(tf.constant(1.0)),
        "scalar rows": lambda: blink.reducescatter(tf.constant(1.0)),
        "bytes": lambda: blink.allreduce(ones, name=b"x"),
        "not registered": lambda: blink.allreduce(ones, process_set=unknown),
        "unknown": lambda: blink.allreduce(ones, process_set=another),
        "number": lambda: blink.allreduce(ones, process_set=3),
        "one tensor": lambda: blink.grouped_allreduce(ones),
        "no variable": lambda: blink.broadcast_([ones], 0),
        "both": lambda: blink.allreduce(ones, average=True, op=blink.Sum),
        "adasum": lambda: blink.reducescatter(ones, op=blink.Adasum),
        "mixed": lambda: blink.grouped_allreduce([tf.constant(1, tf.uint64), 1.0]),
        "bool": lambda: blink.allreduce(tf.constant(True)),
        "bool factor": lambda: blink.allreduce(True, op=blink.Sum, prescale_factor=2.0),
        "complex": lambda: blink.allreduce(tf.complex(1.0, 1.0), op=blink.Max),
        "whole adasum": lambda: blink.allreduce(1, op=blink.Adasum),
    }


def arguments_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {what: told(call) for what, call in arguments().items()} | {"works": works()}


def arguments_refused_in_graphs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            what: told(tf.function(call, autograph=False)) for what, call in arguments().items()
        }
    size = blink.size()
    computed = tf.function(lambda s: blink.alltoall(tf.ones([size, 1]), s))
    found["computed"] = told(lambda: computed(tf.fill([size], 2)))
    unknown = tf.function(
        blink.reducescatter, autograph=False, input_signature=[tf.TensorSpec(None)]
    )
    found["later scalar"] = told(lambda: unknown(tf.constant(1.0)))
    return found | {"works": works()}


def tensors_refused():
    graph_tensor = []
    tf.function(lambda: graph_tensor.append(tf.constant([1.0]) + 1.0))()
    given = {
        "string": tf.constant(["a"]),
        "resource": tf.Variable([1.0]).handle,
        "ragged": tf.ragged.constant([[1], [1, 2]]),
        "sparse": tf.sparse.from_dense([[1, 0]]),
        "quantized": tf.bitcast(tf.constant([1], tf.int8), tf.qint8),
        "nothing": None,
        "object": object(),
        "of a graph": graph_tensor[0],
    }
    found = {what: told(lambda v=value: blink.allreduce(v)) for what, value in given.items()}
    found["gathered"] = told(lambda: blink.allgather(tf.constant(["a"])))
    found["in a graph"] = told(tf.function(lambda: blink.broadcast(tf.constant(["a"]), 0)))
    found["slices"] = told(lambda: blink.allgather(tf.IndexedSlices(tf.ones([1, 1]), [0])))
    return found | {"works": works()}


def slices_refused():
    slices = tf.IndexedSlices([tf.ones(1)], [0])
    return {
        "max": told(lambda: blink.allreduce(slices, op=blink.Max)),
        "adasum": told(lambda: blink.allreduce(slices, op=blink.Adasum)),
        "group": told(lambda: blink.grouped_allreduce([tf.ones(1), slices], op=blink.Product)),
        "factor": told(lambda: blink.allreduce(slices, prescale_factor=2.0)),
        "graph": told(tf.function(lambda: blink.allreduce(slices, op=blink.Min))),
        "works": works(),
    }


def errors_travel():
    """An error is the same after pickling, and is ours as well as TensorFlow's."""
    if blink.size() == 1:
        return []
    try:
        blink.allreduce(tf.ones(2 + blink.rank()), name="travels")
    except errors.MismatchError as err:
        copy = pickle.loads(pickle.dumps(err))
        checks = {
            "text": str(copy) == str(err) == err.message == copy.message,
            "kind": type(copy) is type(err),
            "calls": copy.calls == err.calls and set(err.calls) == set(range(blink.size())),
            "code": copy.error_code == err.error_code == tf.errors.FAILED_PRECONDITION,
            "horovod": isinstance(err, blink.HorovodInternalError),
            "no cause": err.__cause__ is None and err.__suppress_context__,
        }
        return [what for what, holds in checks.items() if not holds]
    return ["no error"]


def average_is_deprecated():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        summed = blink.allreduce(tf.ones(2), average=False)
        averaged = blink.grouped_allreduce([tf.ones(2)], average=True)[0]
    mine = [w for w in seen if "average= is deprecated" in str(w.message)]
    places = {w.filename.rpartition("/")[2] for w in mine}
    values = [float(summed[0]), float(averaged[0])]
    return [places == {"tf_ops_errors_cases.py"}, len(mine), values == [blink.size(), 1.0]]


def place_of_a_call():
    """Messages name the user's line, eagerly, in a graph, and in code that AutoGraph made."""
    if blink.size() == 1:
        return []

    @tf.function
    def converted(x):
        if tf.reduce_sum(x) > 0:  # made into a tf.cond
            x = blink.allreduce(x, name="converted")
        return x

    plain = tf.function(lambda x: blink.allreduce(x, name="plain"), autograph=False)
    calls = (lambda x: blink.allreduce(x, name="eager"), plain, converted)
    texts = [told(lambda call=call: call(np.ones(2 + blink.rank()))) for call in calls]
    return [text for text in texts if "tf_ops_errors_cases.py:" not in text]
