"""Collectives in graphs: shapes, names, control flow, several threads, ranks that have joined.

Each case returns what went wrong: nothing, if it works.
"""

import contextlib
import threading

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink
from blinkrun.tf import call as calls

CASES = (
    "static_shapes",
    "unknown_shapes",
    "names_in_graphs",
    "names_after_unlike_traces",
    "one_name_twice",
    "one_function_twice",
    "loops_and_branches",
    "results_that_nobody_uses",
    "many_runs",
    "orders_that_differ",
    "threads_with_names",
    "graphs_in_threads",
    "joined_ranks",
    "sessions",
)


@contextlib.contextmanager
def names_recorded():
    """The names under which calls are made meanwhile."""
    names = []
    before = calls._new_request

    def recording(call, pieces, where):
        names.append(call.name)
        return before(call, pieces, where)

    calls._kept.clear()
    calls._new_request = recording
    try:
        yield names
    finally:
        calls._new_request = before


def static_shapes():
    """What is known of a shape when a graph is traced stays known."""
    size, rank = blink.size(), blink.rank()
    found = []

    @tf.function(autograph=False)
    def check(x, scalar):
        shapes = {
            "allreduce": (blink.allreduce(x).shape, [7, 2]),
            "broadcast": (blink.broadcast(x, 0).shape, [7, 2]),
            "allgather": (blink.allgather(x).shape, [None, 2]),
            "scalar": (blink.allgather(scalar).shape, [None]),
            "alltoall": (blink.alltoall(x, [7] + [0] * (size - 1))[0].shape, [None, 2]),
            "counts": (blink.alltoall(x, [7] + [0] * (size - 1))[1].shape, [size]),
            "scattered": (blink.reducescatter(x).shape, [7 // size + (rank < 7 % size), 2]),
        }
        for what, (got, want) in shapes.items():
            if got.as_list() != want:
                found.append(f"{what}: {got}")

    check(tf.ones([7, 2]), tf.constant(1.0))
    return found


def unknown_shapes():
    """Nothing is known when the graph is traced, not even the number of dimensions."""
    size = blink.size()
    found = []

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def everything(x):
        return (
            blink.allreduce(x, op=blink.Sum),
            blink.allgather(x),
            blink.broadcast(x, 0),
            blink.reducescatter(x, op=blink.Sum),
            blink.alltoall(x),
            *blink.grouped_allreduce([x, x + 1], op=blink.Sum),
        )

    for shape in ((size,), (size, 3), (2 * size, 1, 2)):
        x = np.ones(shape, np.float32)
        rest = shape[1:]
        wanted = (
            (shape, size),
            ((size * shape[0], *rest), 1),
            (shape, 1),
            ((shape[0] // size, *rest), size),
            (shape, 1),
            (shape, size),
            (shape, 2 * size),
        )
        for index, (got, (want, value)) in enumerate(zip(everything(x), wanted, strict=True)):
            if got.shape != want or not np.all(got.numpy() == value):
                found.append(f"result {index} of {shape}: {got}")

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(blink.allgather(x)) + tf.reduce_sum(blink.allreduce(x))
        return tape.gradient(y, x)

    for shape in ((), (3,), (2, 2)):
        got = gradient(np.ones(shape, np.float32))
        if got.shape != shape or not np.all(got.numpy() == 2):
            found.append(f"gradient of {shape}: {got}")
    return found


def names_in_graphs():
    """Made of the names of functions, scopes and calls, one unlike the other."""

    @tf.function(autograph=False)
    def inner(x):
        return blink.allreduce(x)

    @tf.function(autograph=False)
    def train(x):
        with tf.name_scope("layer"):
            y = blink.allreduce(x) + blink.allreduce(x)
            y += blink.allreduce(x, name="mine") + blink.allreduce(x, name="mine")
            y += blink.allreduce(x, name="bare", ignore_name_scope=True)
            y += inner(x)
        return tf.cond(y[0] > 0, lambda: blink.broadcast(y, 0), lambda: y)

    with names_recorded() as names:
        train(tf.ones(2))
    want = {
        "train/layer/allreduce",
        "train/layer/allreduce_1",
        "layer/mine",
        "layer/mine_1",
        "bare",
        "inner/allreduce",
        "train/cond_true/cond/broadcast",
    }
    return [] if set(names) == want and len(names) == len(want) else sorted(names)


def names_after_unlike_traces():
    """Ranks that have traced other things before, and other shapes, agree all the same."""
    for _ in range(3 * blink.rank()):
        other = tf.function(lambda: tf.cond(tf.constant(True), int, int), autograph=False)
        other()

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(x[0] > 0, lambda: blink.allreduce(x * x), lambda: x)
        return tape.gradient(y, x)

    within = tf.function(lambda x: step(x) + 1, autograph=False)
    if blink.rank() == 1:
        step.get_concrete_function(tf.TensorSpec([5]))
        within.get_concrete_function(tf.TensorSpec([2]))
    outer = []
    for shape in (2, 3):
        x = tf.ones(shape)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = blink.allreduce(tf.function(lambda x: blink.allreduce(x * 3))(x))
        outer.append(tape.gradient(y, x).numpy().tolist())
    steps = [step(tf.ones(shape)).numpy().tolist() for shape in (2, 3, 2)]
    steps.append(within(tf.ones(2)).numpy().tolist())
    want = [[2.0] * 2, [2.0] * 3, [2.0] * 2, [3.0] * 2], [[3.0] * 2, [3.0] * 3]
    return [] if (steps, outer) == want else [f"{steps}, {outer}"]


def one_name_twice():
    """Two calls of one name in one graph are two calls."""
    twice = tf.function(
        lambda x: (
            blink.allreduce(x, op=blink.Sum, name="same"),
            blink.allgather(x, name="same"),
            blink.allreduce(x + 1, op=blink.Sum, name="same"),
        ),
        autograph=False,
    )
    found = []
    for _ in range(5):
        one, all_, two = twice(tf.ones(1))
        got = [float(one[0]), all_.shape[0], float(two[0])]
        if got != [blink.size(), blink.size(), 2 * blink.size()]:
            found.append(str(got))
    return found


def one_function_twice():
    """A function that is called several times in a graph takes its turns, also when it fails."""
    inner = tf.function(lambda x: blink.allreduce(x, op=blink.Sum), autograph=False)
    chain = tf.function(lambda x: inner(inner(x)), autograph=False)
    beside = tf.function(
        lambda x: tf.stack([inner(x * (i + 1.0)) for i in range(6)]), autograph=False
    )
    size = blink.size()
    found = []
    if float(chain(tf.constant(1.0))) != size**2:
        found.append(f"chain: {chain(tf.constant(1.0))}")
    sums = sorted(beside(tf.constant(1.0)).numpy().tolist())
    if sums != [size * (i + 1.0) for i in range(6)]:
        found.append(f"beside: {sums}")
    return found


def loops_and_branches():
    size = blink.size()

    @tf.function
    def loop(x, steps):
        for i in tf.range(steps):
            if i % 2 == 0:
                x = blink.allreduce(x, op=blink.Sum)
            else:
                x = x / blink.allreduce(tf.constant(float(size)), op=blink.Max)
        return x

    @tf.function(autograph=False)
    def mapped(x):
        return tf.map_fn(lambda row: blink.allreduce(row, op=blink.Sum), x)

    found = []
    if loop(tf.ones(2), 10).numpy().tolist() != [1.0, 1.0]:
        found.append(f"loop: {loop(tf.ones(2), 10)}")
    if mapped(tf.ones([4, 2])).numpy().tolist() != [[float(size)] * 2] * 4:
        found.append(f"map: {mapped(tf.ones([4, 2]))}")
    return found


def results_that_nobody_uses():
    """A call runs on every rank, whether or not its result is used there."""

    @tf.function(autograph=False)
    def step(x):
        total = blink.allreduce(x, op=blink.Sum)
        return total if blink.rank() == 0 else x

    got = [float(step(tf.constant(1.0))) for _ in range(20)]
    want = float(blink.size() if blink.rank() == 0 else 1)
    return [] if got == [want] * 20 else [str(got)]


def many_runs():
    """What is kept from run to run is bounded, and every run gives its own result."""
    step = tf.function(lambda x: blink.allreduce(x, op=blink.Sum) + 0, autograph=False)
    kept = [step(tf.fill([100], float(i))) for i in range(200)]
    values = [float(t[7]) for t in kept]
    return [] if values == [blink.size() * float(i) for i in range(200)] else [str(values)]


def orders_that_differ():
    """Graphs of ranks that make the same calls in different orders meet by name."""

    def step(x):
        order = ["one", "two", "three"]
        order = order[blink.rank() % 3 :] + order[: blink.rank() % 3]
        got = {name: blink.allreduce(x * len(name), op=blink.Sum, name=name) for name in order}
        return [got[name] for name in ("one", "two", "three")]

    traced = tf.function(step, autograph=False)
    for _ in range(10):
        got = [float(t) for t in traced(tf.constant(1.0))]
        if got != [3.0 * blink.size(), 3.0 * blink.size(), 5.0 * blink.size()]:
            return [str(got)]
    return []


def in_threads(work, count=4):
    found = []

    def run(index):
        try:
            found.extend(work(index))
        except Exception as err:
            found.append(f"thread {index}: {err!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def threads_with_names():
    def work(index):
        found = []
        for step in range(25):
            value = tf.fill([index + 1], float(step + index))
            got = blink.allreduce(value, op=blink.Sum, name=f"thread.{index}")
            rows = blink.allgather(value, name=f"rows.{index}")
            if got.numpy().tolist() != [blink.size() * float(step + index)] * (index + 1):
                found.append(f"{index}, {step}: {got}")
            if rows.shape != [blink.size() * (index + 1)]:
                found.append(f"{index}, {step}: {rows}")
        return found

    return in_threads(work)


def graphs_in_threads():
    """One graph that runs in several threads at once: runs of one call take their turns."""
    step = tf.function(lambda x: blink.allreduce(x, op=blink.Sum), autograph=False)
    step(tf.constant(1.0))

    def work(index):
        got = [float(step(tf.constant(1.0))) for _ in range(25)]
        return [] if got == [float(blink.size())] * 25 else [f"{index}: {got}"]

    return in_threads(work)


def joined_ranks():
    """A rank without data gives zeros; gathers fail meanwhile, on all ranks that call them."""
    rank, size = blink.rank(), blink.size()
    if size == 1:
        return []
    found = []
    step = tf.function(lambda x: blink.allreduce(x, op=blink.Sum), autograph=False)
    step(tf.constant(1.0))
    if rank > 0:
        got = float(blink.allreduce(tf.constant(1.0), op=blink.Sum, name="left"))
        got_graph = float(step(tf.constant(1.0)))
        smallest = float(blink.allreduce(tf.constant(4.0), op=blink.Min, name="least"))
        if [got, got_graph, smallest] != [size - 1.0, size - 1.0, 4.0]:
            found.append(f"{got}, {got_graph}, {smallest}")
        try:
            blink.allgather(tf.ones(1), name="rows")
            found.append("allgather went on without a rank")
        except tf.errors.FailedPreconditionError as err:
            if "joined" not in str(err):
                found.append(str(err))
    last = int(blink.join())
    if not 0 <= last < size:
        found.append(f"last is {last}")
    return found


def sessions():
    """Graphs of TensorFlow 1 and their gradients."""
    size = blink.size()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2])
        total = blink.allreduce(x, op=blink.Sum)
        rows = blink.allgather(x)
        (gradient,) = tf.gradients(total, x, tf.ones([2]))
        slices = blink.allreduce(tf.IndexedSlices([x], [1]), op=blink.Sum)
        with tf.compat.v1.Session() as session:
            got = session.run([total, rows, gradient, slices.values], {x: [1.0, 2.0]})
    want = [[size, 2.0 * size], [1.0, 2.0] * size, [size, size], [[1.0, 2.0]] * size]
    return [] if [each.tolist() for each in got] == want else [str(got)]
