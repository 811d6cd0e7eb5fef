"""Calls of the engine as ops of a graph. Each case returns what the test looks at."""

import gc
import os
import tempfile
import threading
import time
import weakref

import ml_dtypes
import numpy as np
import tensorflow as tf

import blinkrun
import blinkrun.tf as blink
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import MismatchError, NotSupportedError, UsageError
from blinkrun.tf import capi, graph, graph_runs, threads, xla
from blinkrun.tf.arrays import aligned_empty
from blinkrun.tf.graph_waiter import waiter

CASES = (
    "opposite_order_in_a_function",
    "opposite_order_in_branches_and_loops",
    "a_chain_against_a_chain",
    "unused_equal_and_constant_calls_run",
    "iterations_keep_their_order",
    "functions_in_functions_and_gradients",
    "memory_is_shared_both_ways",
    "memory_is_kept_as_long_as_it_is_used",
    "kinds_of_elements",
    "shapes_that_are_not_known",
    "kinds_of_errors",
    "errors_in_a_session",
    "a_mismatch_is_told_to_all_and_over",
    "a_failure_ends_what_is_under_way",
    "a_failure_leaves_nothing_to_the_engine",
    "results_that_were_not_promised",
    "runs_at_the_same_time",
    "nothing_stays_behind",
    "saved_functions",
    "compiled_by_xla",
    "without_a_graph",
    "threads_that_run_ops",
)


class Done:
    """A call that is through at once."""

    def __init__(self, results):
        self.results = results

    def add_done_callback(self, call):
        call()

    def wait(self):
        return self.results


class Reduction:
    """A sum over all ranks, under way."""

    def __init__(self, name, array):
        self.result = aligned_empty(array.shape, array.dtype)
        source, target = view_of(array), view_of(self.result)
        request = Request(name, Kind.ALLREDUCE, (Member(source.dtype, source.shape),))
        self.handle = engine.current().submit(request, [Part(source, target)])

    def wait(self):
        self.handle.wait()
        return [self.result]


def view_of(array):
    from blinkrun.buffers import view

    return view(array, "a case")


def total(x, name):
    """Return the sum over all ranks, in a graph."""
    return graph.call(lambda arrays: Reduction(name, arrays[0]), [x], [spec_of(x)], name)[0]


def local(x, function, name="local"):
    """Return what `function` makes of an array, in a graph, without any other rank."""
    return graph.call(lambda arrays: Done([function(arrays[0])]), [x], [spec_of(x)], name)[0]


def spec_of(x):
    return tf.TensorSpec(x.shape, x.dtype)


def raised(function, *arguments):
    """Return the names of the classes of what is raised, and the lines of its text."""
    try:
        function(*arguments)
    except Exception as err:
        names = [kind.__name__ for kind in type(err).__mro__]
        return names, [line.strip() for line in str(err).splitlines()]
    return [], []


# ---- order -------------------------------------------------------------------------------------


def opposite_order_in_a_function():
    """Each call needs a thread for its input, which one that blocks in a call would hold."""
    names = "abcdef" if blink.rank() % 2 else "fedcba"

    @tf.function
    def calls(x):
        found = {}
        for name in names:
            y = tf.numpy_function(np.copy, [x], tf.float32, stateful=False)
            y.set_shape([3])
            found[name] = total(y * (1 + ord(name) - ord("a")), f"opposite.{name}")
        return found

    found = [calls(tf.ones(3)) for _ in range(3)][-1]
    return [found[name].numpy().tolist() for name in "abcdef"]


def opposite_order_in_branches_and_loops():
    calls = ["a", "b"] if blink.rank() % 2 else ["b", "a"]

    def both(x):
        return tf.add_n([total(x, f"branch.{name}") for name in calls])

    @tf.function
    def branch(x, yes):
        return tf.cond(yes, lambda: both(x), lambda: x)

    @tf.function
    def loop(x):
        for _ in tf.range(4):
            x = both(x) / (2.0 * blink.size())
        return x

    x, yes, no = tf.ones(3), tf.constant(True), tf.constant(False)
    return [each.numpy().tolist() for each in (branch(x, yes), branch(x, no), loop(x))]


def a_chain_against_a_chain():
    """On even ranks a, and c after b; on odd ones b, and c, and a after c."""

    @tf.function
    def even(x):
        a = total(x, "chain.a")
        b = total(x, "chain.b")
        return a, b, total(b, "chain.c")

    @tf.function
    def odd(x):
        b = total(x, "chain.b")
        c = total(b, "chain.c")
        return total(x + 0 * c, "chain.a"), b, c

    found = (odd if blink.rank() % 2 else even)(tf.ones(2))
    return [each.numpy().tolist() for each in found]


def unused_equal_and_constant_calls_run():
    runs = {"unused": 0, "equal": 0, "constant": 0}

    def count(kind):
        def start(arrays):
            runs[kind] += 1
            return Done([arrays[0]])

        return start

    @tf.function
    def function(x):
        graph.call(count("unused"), [x], [spec_of(x)], "unused")
        start = count("equal")
        one = graph.call(start, [x], [spec_of(x)], "equal")[0]
        two = graph.call(start, [x], [spec_of(x)], "equal")[0]
        constant = tf.constant([1.0, 2.0])
        three = graph.call(count("constant"), [constant], [spec_of(constant)], "constant")[0]
        return one + two + three

    counts = []
    for _ in range(3):
        function(tf.ones(2))
        counts.append(dict(runs))
    return counts


def iterations_keep_their_order():
    @tf.function
    def loop(numbers):
        found = tf.TensorArray(tf.float32, size=20)
        for step in tf.range(20):
            found = found.write(step, total(numbers[step], "iteration"))
        return found.stack()

    return loop(tf.range(20, dtype=tf.float32)).numpy().tolist()


def functions_in_functions_and_gradients():
    @tf.custom_gradient
    def summed(x):
        return total(x, "inner"), lambda dy: total(dy, "inner.gradient")

    inner = tf.function(summed)

    @tf.function
    def outer(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(inner(x) * inner(x))
        return y, tape.gradient(y, x)

    with tf.GradientTape() as tape:
        x = tf.Variable([1.0, 2.0])
        y = tf.reduce_sum(inner(x))
    retraced = [inner(tf.ones(size)).numpy().tolist() for size in (1, 2, 3)]
    answers = [*outer(tf.constant([1.0, 2.0])), tape.gradient(y, x)]
    return [each.numpy().tolist() for each in answers], retraced


# ---- memory ------------------------------------------------------------------------------------


def address(array):
    return array.__array_interface__["data"][0]


def memory_is_shared_both_ways():
    seen = []
    result = aligned_empty((1000,), np.dtype(np.float32))
    result[:] = 7

    def start(arrays):
        seen.append((address(arrays[0]), arrays[0].flags.writeable, arrays[0].sum()))
        return Done([result])

    @tf.function
    def function(x):
        return graph.call(start, [x], [spec_of(x)], "shared")[0]

    x = tf.random.uniform([1000])
    y = function(x)
    (there, is_writable, summed) = seen[0]
    return {
        "input": there == address(x._numpy()),
        "writable": is_writable,
        "value": bool(np.isclose(summed, np.sum(x.numpy()))),
        "result": address(y._numpy()) == address(result),
    }


def memory_is_kept_as_long_as_it_is_used():
    given, taken = [], []

    def start(arrays):
        result = aligned_empty((5,), np.dtype(np.float32))
        result[:] = arrays[0] + 1
        given.append(weakref.ref(result.base))
        taken.append(weakref.ref(arrays[0]))
        return Done([result])

    @tf.function
    def function(x):
        return graph.call(start, [x], [spec_of(x)], "kept")[0]

    kept = function(tf.ones(5))
    others = [function(tf.fill([5], float(i))) for i in range(20)]
    variable = tf.Variable(tf.zeros(5))
    variable.assign(function(tf.fill([5], 41.0)))
    variable.assign_add(tf.ones(5))
    del others
    capi.reclaim()
    while_used = (given[0]() is not None, [each() for each in given[1:-1]].count(None))
    values = kept.numpy().tolist(), variable.numpy().tolist()
    del kept
    capi.reclaim()
    return [*while_used, given[0]() is None, [each() for each in taken].count(None), *values]


KINDS = (
    *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    *(tf.as_dtype(ml_dtypes.float8_e5m2), tf.as_dtype(ml_dtypes.float8_e4m3fn)),
)


def kinds_of_elements():
    wrong = []

    def twice(array):
        return np.concatenate([array, array]) if array.ndim else array

    for dtype in KINDS:
        for shape in ((), (2, 0, 3), (5,)):
            values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(
                dtype.as_numpy_dtype
            )

            @tf.function
            def function(x):
                spec = tf.TensorSpec(
                    [2 * x.shape[0], *x.shape[1:]] if x.shape.rank else [], x.dtype
                )
                start = lambda arrays: Done([twice(arrays[0])])  # noqa: E731
                return graph.call(start, [x], [spec], "kind")[0]

            found = function(tf.constant(values, dtype)).numpy()
            if found.dtype != values.dtype or found.tolist() != twice(values).tolist():
                wrong.append([dtype.name, list(shape), str(found)])
    strings = raised(tf.function(lambda x: local(x, lambda a: a)), tf.constant(["a"]))
    return wrong, strings[0][0], strings[1][-1]


def shapes_that_are_not_known():
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def any_rank(x):
        y = local(x, lambda array: array * 2)
        return y, y.shape.rank is None

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def any_size(x):
        return local(x, lambda array: array * 2).shape.as_list()

    found = [any_rank(tf.ones(shape)) for shape in ((), (3,), (2, 2))]
    return [[y.shape.as_list(), bool(unknown)] for y, unknown in found], [
        None if size is None else int(size) for size in any_size(tf.ones((3, 2)))
    ]


# ---- errors ------------------------------------------------------------------------------------

ERRORS = {
    "mismatch": lambda: MismatchError("rank 1: x differs; call it alike"),
    "usage": lambda: UsageError("splits are wrong; give others"),
    "absent": lambda: NotSupportedError("no such reduction"),
    "type": lambda: TypeError("no number"),
    "other": lambda: OSError("broken"),
    "tensorflows": lambda: tf.errors.OutOfRangeError(None, None, "too far"),
}


def failing(kind, late):
    class Late(Done):
        def wait(self):
            raise ERRORS[kind]()

    def start(arrays):
        if not late:
            raise ERRORS[kind]()
        return Late([])

    @tf.function
    def function(x):
        return graph.call(start, [x], [spec_of(x)], "failing")[0]

    return function


def kinds_of_errors():
    found = {}
    for kind in ERRORS:
        for late in (False, True):
            names, lines = raised(failing(kind, late), tf.ones(2))
            found[f"{kind} {'late' if late else 'early'}"] = [names[0], lines[-2]]
    return found


def errors_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        good = local(x, lambda array: array + 1)

        def start(arrays):
            raise MismatchError("rank 1: x differs")

        bad = graph.call(start, [x], [spec_of(x)], "bad")[0]
        names, lines = raised(session.run, bad, {x: [1.0, 2.0]})
        return names[0], "rank 1: x differs" in lines, session.run(good, {x: [1.0, 2.0]}).tolist()


def a_mismatch_is_told_to_all_and_over():
    @tf.function(reduce_retracing=True)
    def function(x):
        return total(x, "mismatch") if blink.size() > 1 else local(x, np.negative)

    def fails():
        if blink.size() == 1:
            raise tf.errors.FailedPreconditionError(None, None, "alone")
        function(tf.ones(3 + blink.rank()))

    answers = []
    for _ in range(2):
        names, lines = raised(fails)
        said = [line for line in lines if line.startswith("rank ")]
        answers.append([names[0], said, function(tf.ones(2)).numpy().tolist()])
    return answers


def a_failure_ends_what_is_under_way():
    """The other call is one that no other rank ever makes."""
    names = ("fails", "other")
    begun = []

    class Never:
        def add_done_callback(self, call):
            begun.append(call)

        def wait(self):
            return [np.zeros(2, np.float32)]

    def fails(arrays):
        for _ in range(500):
            if begun:
                raise MismatchError("rank 0: they differ")
            time.sleep(0.01)
        raise AssertionError("the other call was not begun")

    @tf.function
    def function(x):
        other = graph.call(lambda arrays: Never(), [x], [spec_of(x)], names[1])[0]
        y = tf.numpy_function(lambda a: a, [x], tf.float32)  # later than the other
        y.set_shape([2])
        return other, graph.call(fails, [y], [spec_of(y)], names[0])[0]

    begun_s = time.monotonic()
    kinds, lines = raised(function, tf.ones(2))
    took_s = time.monotonic() - begun_s
    for call in begun:
        call()  # late: its run is over
    return kinds[0], "rank 0: they differ" in lines, took_s < 5


def a_failure_leaves_nothing_to_the_engine():
    """Rank 0 has begun a sum when another call fails everywhere; no other rank begins it."""
    step = tf.Variable(0)
    log = []

    def slow(arrays):
        for _ in range(300 * (blink.rank() == 0)):
            if log:
                break
            time.sleep(0.01)
        time.sleep(0.2)  # others fail first, or have begun
        raise MismatchError("they differ")

    def sum_of(arrays):
        log.append("begun")
        return Reduction("left", arrays[0])

    def begin(x):
        return graph.call(sum_of, [x], [spec_of(x)], "left")[0]

    @tf.function
    def function(x):
        if step == 0:
            mine = begin(x) if blink.rank() == 0 else x
            return mine + graph.call(slow, [x], [spec_of(x)], "slow")[0]
        return begin(x)

    names, _ = raised(function, tf.ones(2))
    for _ in range(500):
        if not engine.current()._handles:
            break
        time.sleep(0.01)
    left = len(engine.current()._handles)
    blink.barrier()
    step.assign(1)
    return names[0], left, [function(tf.fill([2], float(i))).numpy().tolist() for i in range(3)]


def results_that_were_not_promised():
    def function_that_gives(results):
        start = lambda arrays: Done(results)  # noqa: E731
        spec = [tf.TensorSpec([2], tf.float32)]
        return tf.function(lambda x: graph.call(start, [x], spec, "promised")[0])

    found = []
    for results in ([np.zeros(3, np.float32)], [np.zeros(2, np.float64)], []):
        names, lines = raised(function_that_gives(results), tf.ones(2))
        found.append([names[0], next(line for line in lines if "internal error" in line)])
    return found


# ---- at the same time, and afterwards ------------------------------------------------------------


def runs_at_the_same_time():
    """Each of eight threads gets what is its own, from one function."""

    class Slow(Done):
        def __init__(self, results):
            super().__init__(results)
            self.timer = None

        def add_done_callback(self, call):
            self.timer = threading.Timer(0.01, call)
            self.timer.start()

    @tf.function
    def function(x):
        start = lambda arrays: Slow([arrays[0] * 2])  # noqa: E731
        return graph.call(start, [x], [spec_of(x)], "slow")[0]

    function(tf.ones(1))
    wrong = []

    def work(number):
        for step in range(10):
            value = float(100 * number + step)
            found = function(tf.fill([1], value)).numpy().tolist()
            if found != [2 * value]:
                wrong.append([value, found])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong


def nothing_stays_behind():
    gc.collect()
    before = set(graph_runs._sites)  # of earlier functions, which may go at any time

    def of_this():
        return len(set(graph_runs._sites) - before)

    def use():
        @tf.function
        def function(x):
            x = tf.cond(x[0] > 0, lambda: total(x, "behind"), lambda: x)
            return total(x, "behind")

        for size in (1, 2, 3):
            function(tf.ones(size))
        return function, of_this()

    function, while_used = use()
    del function
    deadline_s = time.monotonic() + 10  # a thread of TensorFlow may hold on to it for a moment
    while True:
        gc.collect()
        left = of_this()
        if not left or time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    return while_used, left, len(graph_runs._steps), waiter._under_way


def saved_functions():
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def __call__(self, x):
            return local(x, lambda array: array + 1)

    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(model, folder)
        here = tf.saved_model.load(folder)(tf.ones(2)).numpy().tolist()
        process, graph_runs._PROCESS = graph_runs._PROCESS, "another"
        try:
            names, lines = raised(tf.saved_model.load(folder), tf.ones(2))
        finally:
            graph_runs._PROCESS = process
    return here, names[0], any("another process has saved" in line for line in lines)


# ---- XLA ---------------------------------------------------------------------------------------


def compiled_by_xla():
    inner = tf.function(lambda x: local(x, lambda array: array + 1))
    outer = tf.function(lambda x: inner(x) * 2, jit_compile=True)
    branch = tf.function(
        lambda x: tf.cond(x[0] > 0, lambda: local(x, np.negative), lambda: x), jit_compile=True
    )
    straight = tf.function(lambda x: local(x, np.negative), jit_compile=True)
    x = tf.ones(2)
    refused = [
        [names[0], lines[-1]]
        for names, lines in (raised(function, x) for function in (straight, branch, outer))
    ]
    traced = tf.function(lambda x: local(x, lambda array: array + 1))
    traced(x)
    late = raised(tf.function(lambda x: traced(x) * 2, jit_compile=True), x)
    seen = []
    tf.function(lambda x: seen.append(xla.is_compiled_here()) or x)(x)
    tf.function(lambda x: seen.append(xla.is_compiled_here()) or x, jit_compile=True)(x)
    return refused, late[0][:1], [*seen, xla.is_compiled_here()], inner(x).numpy().tolist()


def without_a_graph():
    names, lines = raised(lambda: local(tf.ones(2), np.negative))
    return names[0], lines


def threads_that_run_ops():
    world = blinkrun.world()
    share = None if world.local_size == 1 else str(max(1, world.cores // world.local_size))
    return {
        "told": [os.environ.get(name) for name in (threads.INTRA, threads.INTER)],
        "share": share,
    }
