"""What each rank does for test_tf_tape.py: gradients of tapes, eagerly and in graphs."""

import hashlib
import os
import threading
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink
from blinkrun.errors import BlinkrunError
from blinkrun.tf import reduce

ROWS = 4  # of each rank's batch


def digest(arrays):
    data = hashlib.sha256()
    for array in arrays:
        data.update(np.asarray(array).tobytes())
    return data.hexdigest()


def weights():
    rng = np.random.default_rng(7)
    shapes = [(5, 16), (16,), (16, 3), (3,), ()]
    return [
        tf.Variable(rng.normal(size=shape).astype(np.float32), name=f"v{n}")
        for n, shape in enumerate(shapes)
    ]


def batch(rank, step=0):
    rng = np.random.default_rng(1000 * step + rank)
    return rng.normal(size=(ROWS, 5)).astype(np.float32)


def joined(step=0):
    return np.concatenate([batch(rank, step) for rank in range(blink.size())])


def loss_of(variables, x):
    w, b, w2, b2, scale = variables
    hidden = tf.nn.relu(tf.matmul(x, w) + b)
    return tf.reduce_mean(tf.square(tf.matmul(hidden, w2) + b2 - scale))


def own_gradients(variables, x):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, x)
    return tape.gradient(loss, variables)


def all_gradients(variables, x, **options):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, x)
    return blink.DistributedGradientTape(tape, **options).gradient(loss, variables)


def close(found, wanted, tolerance=1e-5):
    for pair in zip(found, wanted, strict=True):
        one, other = (np.asarray(each, np.float64) for each in pair)
        assert one.shape == other.shape
        assert np.allclose(one, other, rtol=tolerance, atol=tolerance), abs(one - other).max()
    return True


@contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


VARIANTS = {
    "usual": {},
    "sum": {"op": blink.Sum},
    "predivided": {"gradient_predivide_factor": 2.0},
    "fp16": {"compression": blink.Compression.fp16},
    "bf16": {"compression": blink.Compression.bf16},
    "small_buckets": {"bucket_bytes": 64},
    "two_groups": {"groups": 2},
    "many_groups": {"groups": 99},
}
LOOSE = {"fp16": 2e-3, "bf16": 2e-2}


def tape_gradients_in_all_ways():
    variables = weights()
    wanted = own_gradients(variables, joined())
    digests = {}
    for name, options in VARIANTS.items():
        times = blink.size() if name == "sum" else 1
        for overlap in ("off", "on") if "bucket" in name else ("off",):
            with environment(BLINKRUN_OVERLAP=overlap):
                ways = [
                    lambda x, o=options: all_gradients(variables, x, **o),
                    tf.function(lambda x, o=options: all_gradients(variables, x, **o)),
                ]
                for way in ways:
                    for _ in range(2):
                        found = way(tf.constant(batch(blink.rank())))
                        close(found, [times * each for each in wanted], LOOSE.get(name, 1e-5))
                        digests.setdefault(name, set()).add(digest(found))
    return {name: sorted(found) for name, found in digests.items()}


def tape_training_in_a_function():
    variables, alone = weights(), weights()

    @tf.function
    def step(x):
        for variable, gradient in zip(variables, all_gradients(variables, x), strict=True):
            variable.assign_sub(0.02 * gradient)

    for number in range(10):
        step(tf.constant(batch(blink.rank(), number)))
        gradients = own_gradients(alone, joined(number))
        for variable, gradient in zip(alone, gradients, strict=True):
            variable.assign_sub(0.02 * gradient)
    close(variables, alone)
    return digest(variables)


def tape_sources_of_every_form():
    w, x = tf.Variable([1.0, 2.0]), tf.constant(float(blink.rank()))
    unused = tf.Variable(1.0)
    mean = (blink.size() - 1) / 2
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(w) * x + x * x
    tape = blink.DistributedGradientTape(tape)
    assert isinstance(tape, tf.GradientTape)
    assert type(tape).__name__ == "GradientTape"
    single = tape.gradient(loss, w)
    nested = tape.gradient(loss, {"a": [w, {"b": unused}], "c": (x,)})
    assert nested["a"][1]["b"] is None
    zeros = tape.gradient(loss, [unused], unconnected_gradients="zero")
    scaled = tape.gradient(loss, [w], output_gradients=tf.constant(2.0))
    generic = tape.gradient(loss, [w], None, True)
    close([single, nested["a"][0], zeros[0]], [[mean] * 2, [mean] * 2, 0.0])
    close([nested["c"][0], scaled[0], generic[0]], [3 + 2 * mean, [2 * mean] * 2, [mean] * 2])


def tape_that_is_wrapped_early_or_late():
    w = tf.Variable(3.0)
    mine = float(blink.rank() + 1)
    mean = (blink.size() + 1) / 2
    plain = tf.GradientTape()
    before = blink.DistributedGradientTape(plain)
    with before:
        loss = w * mine
    early = before.gradient(loss, w)
    with tf.GradientTape() as tape:
        inside = blink.DistributedGradientTape(tape).gradient(w * mine, w)
    with tf.GradientTape(persistent=True) as tape:
        loss = w * mine
    own = tape.gradient(loss, w)
    late = blink.DistributedGradientTape(tape).gradient(loss, w)
    close([early, inside, own, late], [mean, mean, mine, mean])


def tape_sparse_gradients():
    rank, size = blink.rank(), blink.size()
    table = tf.Variable(tf.ones((6, 2)))
    rows = tf.constant([rank, 1, 1])

    def gradient(**options):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) * float(rank + 1))
        return blink.DistributedGradientTape(tape, **options).gradient(loss, table)

    wanted = np.zeros((6, 2))
    for each in range(size):
        for row in (each, 1, 1):
            wanted[row] += (each + 1) / size
    for way in (gradient, tf.function(gradient)):
        sparse = way()
        assert isinstance(sparse, tf.IndexedSlices)
        assert sparse.indices.shape[0] == 3 * size
        close([tf.convert_to_tensor(sparse)], [wanted])
        dense = way(sparse_as_dense=True)
        assert isinstance(dense, tf.Tensor)
        close([dense], [wanted])
        close([tf.convert_to_tensor(way(op=blink.Sum))], [wanted * size])


def tape_sparse_training():
    table = tf.Variable(tf.reshape(tf.range(12.0), (6, 2)))
    out = tf.Variable([[1.0], [2.0]])

    @tf.function(reduce_retracing=True)
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.gather(table, rows), out)))
        found = blink.DistributedGradientTape(tape).gradient(loss, [table, out])
        table.scatter_sub(tf.IndexedSlices(0.01 * found[0].values, found[0].indices))
        out.assign_sub(0.01 * found[1])

    for number in range(6):
        step(tf.range(blink.rank() + 1 + number % 2))  # as many rows as it likes
    return digest([table, out])


def tape_local_sources():
    size, mine = blink.size(), float(blink.rank() + 1)
    mean = (size + 1) / 2
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    other = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    x = tf.constant([[mine]])
    dense(x), other(x)

    for scaled in (True, False):
        tape = blink.PartialDistributedGradientTape(
            tf.GradientTape(), local_layers=other, scale_local_gradients=scaled
        )
        with tape:
            loss = tf.reduce_sum(dense(x) + other(x))
        sources = [*dense.trainable_variables, *other.trainable_variables]
        own, shared = tape.get_local_and_global_gradients(loss, sources)
        assert own[0][0] is sources[1]
        assert shared[0][0] is sources[0]
        close([own[0][1], shared[0][1]], [[[mine / (size if scaled else 1)]], [[mean]]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(dense(x))
    tape = blink.DistributedGradientTape(tape)
    tape.register_local_source(dense.trainable_variables[0])
    (found,) = tape.gradient(loss, dense.trainable_variables)
    close([found], [[[mine / size]]])
    try:
        blink.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])
    except ValueError as err:
        return str(err)
    return None


def tape_groups_of_variables():
    variables = weights()
    groups = [[variables[0], variables[3]], [variables[1]]]
    wanted = own_gradients(variables, joined())
    close(all_gradients(variables, batch(blink.rank()), groups=groups), wanted)
    plan = next(reversed(reduce._plans._kept.values())) if blink.size() > 1 else None
    return None if plan is None else sorted(plan.buckets)


def tape_dtypes():
    size, mine = blink.size(), blink.rank() + 1
    total = size * (size + 1) / 2
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128):
        w = tf.Variable(tf.ones((3, 2), dtype))
        s = tf.Variable(tf.ones((), dtype))

        def gradient(w=w, s=s, dtype=dtype):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * s * tf.cast(mine, dtype))
            return blink.DistributedGradientTape(tape, op=blink.Sum).gradient(loss, [w, s])

        for way in (gradient, tf.function(gradient)):
            found = way()
            assert [each.dtype for each in found] == [dtype, dtype]
            assert (found[0].numpy() == total).all()
            assert found[1].numpy() == 6 * total


def tape_shapes_that_a_graph_does_not_know():
    size = blink.size()

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 2])])
    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            loss = tf.reduce_sum(x * x) + tf.reduce_sum(y) * float(blink.rank())
        return blink.DistributedGradientTape(tape).gradient(loss, [x, y])

    for shape in ((2, 3), (4,), ()):
        found = gradient(tf.fill(shape, float(blink.rank())), tf.ones((3, 2)))
        close(found, [np.full(shape, size - 1.0), np.full((3, 2), (size - 1) / 2)])


def tape_two_in_one_graph():
    """Ranks run the two reductions in different orders."""
    a, b = tf.Variable(1.0), tf.Variable([1.0, 2.0])
    mine = float(blink.rank() + 1)

    @tf.function
    def step():
        with tf.GradientTape() as first:
            loss_a = a * mine
        with tf.GradientTape() as second:
            loss_b = tf.reduce_sum(b) * mine
        late = [loss_a] if blink.rank() % 2 else []
        early = blink.DistributedGradientTape(first).gradient(loss_a, a)
        with tf.control_dependencies(late):
            other = blink.DistributedGradientTape(second).gradient(loss_b, b)
        return early, other

    mean = (blink.size() + 1) / 2
    for _ in range(3):
        close(step(), [mean, [mean, mean]])


def tape_in_two_threads():
    """Each thread has a name of its own; ranks start them in different orders."""
    found = {}

    def run(number):
        w = tf.Variable(tf.ones(100 + number))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w) * float(blink.rank() + number)
            tape = blink.DistributedGradientTape(tape, name=f"model{number}")
            return tape.gradient(loss, w)

        found[number] = [float(step()[0]) for _ in range(20)]

    numbers = (0, 1) if blink.rank() % 2 else (1, 0)
    threads = [threading.Thread(target=run, args=(number,)) for number in numbers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    mean = (blink.size() - 1) / 2
    assert found == {0: [mean] * 20, 1: [mean + 1] * 20}


def tape_in_loops_and_branches():
    w = tf.Variable(1.0)
    mine = float(blink.rank() + 1)

    @tf.function
    def loop(n, twice):
        total = tf.constant(0.0)
        for _ in tf.range(n):
            with tf.GradientTape() as tape:
                loss = w * mine
            total += blink.DistributedGradientTape(tape).gradient(loss, w)
            if twice:
                with tf.GradientTape() as tape:
                    loss = 2 * w * mine
                total += blink.DistributedGradientTape(tape).gradient(loss, w)
        return total

    mean = (blink.size() + 1) / 2
    found = [loop(3, tf.constant(False)), loop(2, tf.constant(True))]
    close(found, [3 * mean, 6 * mean])


def tape_retraced_by_some_ranks():
    w = tf.Variable(tf.ones((2, 1)))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, w))
        return blink.DistributedGradientTape(tape).gradient(loss, w)

    for number in range(4):
        rows = 3 + (number if blink.rank() == 0 else 0)
        close([step(tf.ones((rows, 2)))], [np.ones((2, 1))])
    return step.experimental_get_tracing_count()


def tape_process_sets():
    rank, size = blink.rank(), blink.size()
    if size == 1:
        return
    evens = blink.add_process_set(range(0, size, 2))
    w = tf.Variable(1.0)

    def gradient():
        with tf.GradientTape() as tape:
            loss = w * float(rank)
        return blink.DistributedGradientTape(tape, process_set=evens).gradient(loss, w)

    wanted = rank if rank % 2 else np.mean(range(0, size, 2))
    close([gradient(), tf.function(gradient)()], [wanted, wanted])
    blink.remove_process_set(evens)


def tape_steps_of_uneven_number():
    rank, size = blink.rank(), blink.size()
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w)
        return blink.DistributedGradientTape(tape).gradient(loss, w)

    found = [float(gradient()[0]) for _ in range(rank + 1)]
    assert blink.join() in range(size)
    return found


def tape_jacobians():
    w = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        y = w * w * float(blink.rank() + 1)
    tape = blink.DistributedGradientTape(tape)
    found = tape.jacobian(y, w, experimental_use_pfor=False)
    close([found], [np.diag([2.0, 4.0]) * (blink.rank() + 1)])


def tape_results_stay_what_they_are():
    """Memory of results is used again, but not while anybody looks at it."""
    w = tf.Variable(tf.ones(50_000))

    def gradient(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * factor
        return blink.DistributedGradientTape(tape).gradient(loss, w)

    for way in (gradient, tf.function(gradient)):
        kept = [way(tf.constant(float(n))) for n in range(4)]
        part = way(tf.constant(9.0))[10:20]
        for n in range(4):
            way(tf.constant(-1.0 - n))
        assert all((each.numpy() == n).all() for n, each in enumerate(kept))
        assert (part.numpy() == 9.0).all()


def tape_in_a_train_step_of_keras():
    class Model(tf.keras.Sequential):
        def train_step(self, given):
            x, y = given
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            tape = blink.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def train(data, rows):
        tf.keras.utils.set_random_seed(3)
        model = Model([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
        model.build((None, 5))
        model.compile(tf.keras.optimizers.Adam(0.01), "mse")
        model.fit(data, data[:, :1], batch_size=rows, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    size = blink.size()
    mine = np.concatenate([batch(blink.rank(), step) for step in range(3)])
    everyone = np.concatenate([batch(r, step) for step in range(3) for r in range(size)])
    found = train(mine, ROWS)
    wanted = train_alone(lambda: train(everyone, ROWS * size))
    close(found, wanted, 1e-4)
    return digest(found)


def train_alone(run):
    """Call `run` with tapes that are not wrapped."""
    wrap = blink.DistributedGradientTape
    blink.DistributedGradientTape = lambda tape: tape
    try:
        return run()
    finally:
        blink.DistributedGradientTape = wrap


def tape_where_xla_compiles():
    w = tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            loss = w * w
        return blink.DistributedGradientTape(tape).gradient(loss, w)

    return raised(step) if blink.size() > 1 else float(step())


def tape_adasum():
    size = blink.size()
    if size & (size - 1):
        return
    w, v = tf.Variable([1.0, 1.0]), tf.Variable([0.0] * size)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w) + v[blink.rank()]
    found = blink.DistributedGradientTape(tape, op=blink.Adasum).gradient(loss, [w, v])
    close([found[0], tf.convert_to_tensor(found[1])], [[1.0, 1.0], [1.0] * size])


# ---- what goes wrong ---------------------------------------------------------------------------


def raised(call):
    try:
        call()
    except Exception as err:
        lines = [line for line in str(err).splitlines() if "rank" in line or "gradient" in line]
        return [
            isinstance(err, tf.errors.OpError),
            type(err).__name__,
            str(err) if isinstance(err, BlinkrunError) else " ".join(lines),
        ]
    return None


def gradient_of(variables):
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(each) for each in variables])
    return blink.DistributedGradientTape(tape).gradient(loss, variables)


def tape_ranks_that_differ():
    """On the last rank something is not as on the others; after each error all go on."""
    size, is_odd = blink.size(), blink.rank() == blink.size() - 1
    if size == 1:
        return None
    w = tf.Variable(tf.ones((2, 4 if is_odd else 3)), name="kernel")
    v = tf.Variable(tf.ones(2), name="bias")
    late = tf.Variable(tf.ones(2), name="late")
    told = {}
    told["shape"] = raised(lambda: gradient_of([v, w]))
    told["shape in a graph"] = raised(tf.function(lambda: gradient_of([v, w])))
    told["number"] = raised(lambda: gradient_of([v, late] if is_odd else [v]))
    told["name"] = raised(lambda: gradient_of([late] if is_odd else [v]))
    told["order"] = raised(lambda: gradient_of([late, v] if is_odd else [v, late]))

    def none():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) if is_odd else tf.reduce_sum(v) + tf.reduce_sum(late)
        return blink.DistributedGradientTape(tape).gradient(loss, [v, late])

    told["none"] = raised(none)
    told["none in a graph"] = raised(tf.function(none))

    def op():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v)
        options = {"op": blink.Sum} if is_odd else {}
        return blink.DistributedGradientTape(tape, **options).gradient(loss, v)

    told["op"] = raised(op)

    def sparse():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(v, [0]) if is_odd else v)
        return blink.DistributedGradientTape(tape).gradient(loss, v)

    told["sparse"] = raised(sparse)

    def many():
        variables = [v, w, *[late] * (2 if is_odd else 0)]
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in variables])
        return blink.DistributedGradientTape(tape, bucket_bytes=16).gradient(loss, variables)

    with environment(BLINKRUN_OVERLAP="on"):
        function = tf.function(many)
        told["buckets in a graph"] = raised(function)
        told["buckets again in a graph"] = raised(function)
    close(gradient_of([v]), [np.ones(2)])
    close(tf.function(lambda: gradient_of([v]))(), [np.ones(2)])
    return told


def tape_usage():
    tape = tf.GradientTape()
    told = {}
    make = blink.DistributedGradientTape
    told["twice"] = raised(lambda: make(make(tape)))
    told["no tape"] = raised(lambda: make(3))
    told["op"] = raised(lambda: make(tape, op=blink.Max))
    told["predivide"] = raised(lambda: make(tape, gradient_predivide_factor=2.0, op=blink.Sum))
    told["groups"] = raised(lambda: make(tape, groups=0))
    told["compression"] = raised(lambda: make(tape, compression=3))
    told["process set"] = raised(lambda: make(tape, process_set=[0, 1]))
    told["bucket"] = raised(lambda: make(tape, bucket_bytes=0))
    return told


CASES = [name for name in list(globals()) if name.startswith("tape_")]
