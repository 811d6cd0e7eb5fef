"""Variables and objects from one rank to all; the place of this rank as ops."""

import ml_dtypes
import numpy as np
import tensorflow as tf

import blinkrun
import blinkrun.tf as blink
from blinkrun.tf.compression import Compressor

CASES = (
    "variables_of_all_dtypes",
    "variables_in_a_function",
    "variables_of_a_keras_model",
    "variables_in_a_session",
    "variables_of_a_set",
    "variables_that_are_many",
    "variables_that_differ",
    "variables_refused",
    "variables_take_one_request",
    "variables_keep_other_tensors",
    "objects_of_one_and_of_all",
    "objects_in_a_graph",
    "sizes_as_ops",
    "waiting_in_a_function",
    "names_of_this_process_in_a_function",
    "compressors",
)

DTYPES = (
    *(np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.bool_),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.complex64, np.complex128),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)
V1 = tf.compat.v1


def refused(call):
    try:
        call()
    except Exception as err:
        line = str(err).splitlines()[-1] if str(err) else ""
        return [[each.__name__ for each in type(err).__mro__], line, str(err)]
    return [[], "", ""]


def make(value):
    """Variables of all dtypes and of shapes with nothing, one and many values."""
    made = [tf.Variable(np.full((3, 2), value, dtype)) for dtype in DTYPES]
    made.append(tf.Variable(tf.bitcast(np.full(5, value, np.int8), tf.qint8)))
    made.append(tf.Variable(np.full((), value, np.float32)))
    made.append(tf.Variable(np.full((0, 3), value, np.float32)))
    made.append(tf.Variable(np.full((700, 1000), value, np.float32)))  # travels alone
    return made


def plain(variable):
    value = variable.read_value()
    value = tf.bitcast(value, tf.int8) if value.dtype == tf.qint8 else value
    return sorted({str(each) for each in value.numpy().astype(np.complex128).flatten()})


def all_values(variables):
    return sorted({tuple(plain(each)) for each in variables})


def variables_of_all_dtypes():
    last = blink.size() - 1
    made = make(blink.rank() + 1)
    shapes = [(each.dtype, each.shape) for each in made]
    answer = blink.broadcast_variables(made, last)
    kept = shapes == [(each.dtype, each.shape) for each in made]
    inplace = make(blink.rank() + 1)
    blink.broadcast_variables(inplace, root_rank=last, inplace=True)
    return [answer is None, kept, all_values(made), all_values(inplace)]


def variables_in_a_function():
    """At every run anew."""
    last = blink.size() - 1
    made = [each for each in make(blink.rank() + 1) if "float8" not in each.dtype.name]

    @tf.function
    def start():
        blink.broadcast_variables(made, last)

    start()
    first = all_values(made)
    made[0].assign(tf.zeros_like(made[0]) + blink.rank() + 2)
    start()
    return [first, plain(made[0])]


def variables_of_a_keras_model():
    keras = tf.keras
    keras.utils.set_random_seed(blink.rank())
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    )
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    for each in model.optimizer.variables:
        each.assign(each + blink.rank())
    variables = [*model.variables, *model.optimizer.variables]
    before = [each.numpy() for each in variables]
    blink.broadcast_variables(variables, 0)
    after = [each.numpy() for each in variables]
    same = [np.array_equal(*each) for each in zip(before, after, strict=True)]
    everyone = blink.allgather_object(b"".join(each.tobytes() for each in after))
    return [all(same), len(set(everyone)) == 1]


def variables_in_a_session():
    last = blink.size() - 1
    value = float(blink.rank() + 1)
    with tf.Graph().as_default():
        made = [
            V1.get_variable(f"w{kind}", initializer=tf.fill([3], value), use_resource=kind)
            for kind in (True, False)
        ]
        done = blink.broadcast_global_variables(last)
        hook = blink.BroadcastGlobalVariablesHook(0)
        start = V1.global_variables_initializer()
        with V1.Session() as session:
            session.run(start)
            session.run(done)
            found = [each.tolist() for each in session.run(made)]
        with V1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            hooked = [each.tolist() for each in session.run(made)]
    return [type(done).__name__, found, hooked]


def variables_of_a_set():
    """Two sets of ranks broadcast under way at the same time; others keep their own."""
    if blink.size() < 3:
        return [float(blink.rank())]
    pair = blink.add_process_set([0, 2])
    made = tf.Variable([float(blink.rank())])
    if pair.included():
        blink.broadcast_variables([made], root_rank=2, process_set=pair)
    blink.remove_process_set(pair)
    return made.numpy().tolist()


def variables_that_are_many():
    made = [tf.Variable(np.full(number % 7, blink.rank())) for number in range(600)]
    blink.broadcast_variables(iter(made), blink.size() - 1)
    return all(np.all(each.numpy() == blink.size() - 1) for each in made)


def variables_that_differ():
    """Everyone is told the first difference, eagerly and in a graph; then all goes on."""
    rank = blink.rank()
    other = rank == blink.size() - 1 and rank > 0
    kept = tf.Variable(tf.fill([2], float(rank)), name="kept")
    shape = tf.Variable(tf.zeros([4 if other else 3]), name="kernel")
    dtype = tf.Variable([1 if other else 1.0], name="scale")

    @tf.function
    def traced():
        blink.broadcast_variables([kept, shape], 0)

    found = [
        refused(lambda: blink.broadcast_variables([kept, shape], 0)),
        refused(lambda: blink.broadcast_variables([kept, dtype], 0)),
        refused(lambda: blink.broadcast_variables([kept] * (1 + other), 0)),
        refused(traced),
    ]
    untouched = kept.numpy().tolist() == [float(rank)] * 2
    blink.broadcast_variables([kept], 0)
    return [found, untouched or blink.size() == 1, kept.numpy().tolist()]


def variables_refused():
    text = tf.Variable("words", name="text")
    made = tf.Variable(1.0)
    return [
        refused(lambda: blink.broadcast_variables([tf.constant(1.0)], 0)),
        refused(lambda: blink.broadcast_variables([text], 0)),
        refused(lambda: blink.broadcast_variables(tf.Variable(1.0), 0)),
        refused(lambda: blink.broadcast_variables([tf.Variable(1.0)], blink.size())),
        refused(lambda: blink.broadcast_global_variables(0)),
        refused(tf.function(lambda: blink.broadcast_variables([made], 0), jit_compile=True)),
        refused(tf.function(blink.barrier, jit_compile=True)),
    ]


def variables_take_one_request():
    from blinkrun.engine import engine

    made = [tf.Variable(float(number)) for number in range(30)]
    made += [tf.Variable(tf.zeros([300_000 + number])) for number in range(2)]
    before = engine.current().stats.requests
    blink.broadcast_variables(made, 0)
    return engine.current().stats.requests - before


def variables_keep_other_tensors():
    """A tensor that a variable was made from, or read into, is not changed under its owner."""
    found = []
    for wrap in (lambda run: run, tf.function):
        given = tf.constant([float(blink.rank())] * 4)
        made = tf.Variable(given)
        read = made.read_value()
        wrap(lambda made=made: blink.broadcast_variables([made], blink.size() - 1, inplace=True))()
        after = made.read_value()
        made.assign_add(tf.ones(4))  # in place
        found.append([each.numpy().tolist() for each in (given, read, after, made)])
    return found


def objects_of_one_and_of_all():
    rank, last = blink.rank(), blink.size() - 1
    mine = {"rank": rank, "values": np.arange(rank)}
    root = blink.broadcast_object(mine, root_rank=last, name="settings")
    again = blink.broadcast_object_fn(root_rank=last)
    everyone = blink.allgather_object(rank * "x")
    return [root["rank"], len(root["values"]), again(rank), again(rank + 1), everyone]


def objects_in_a_graph():
    """They need no session, and work while a graph is built."""
    with tf.Graph().as_default(), V1.Session() as session:
        last = blink.size() - 1
        return [
            blink.broadcast_object(blink.rank(), last, session=session),
            blink.allgather_object(blink.rank(), session),
        ]


def sizes_as_ops():
    """Values are those of the time at which the graph runs."""

    def sizes(number):
        return [
            blink.size_op(),
            blink.rank_op(name="me"),
            blink.local_size_op(),
            blink.local_rank_op(),
            blink.process_set_included_op(),
            blink.process_set_included_op(number),
        ]

    eager = [int(each) for each in sizes(1000)]
    dtypes = sorted({each.dtype.name for each in sizes(1000)})
    later = blink.add_process_set([0]) if blink.size() > 1 else None
    number = later.process_set_id if later else 1000
    traced = tf.function(lambda: sizes(number))
    during = [int(each) for each in traced()]
    if later:
        blink.remove_process_set(later)
    after = [int(each) for each in traced()]
    with tf.Graph().as_default(), V1.Session() as session:
        in_session = [int(each) for each in session.run(sizes(1000))]
    compiled = tf.function(lambda: blink.rank_op() + blink.size_op(), jit_compile=True)
    unknown = refused(lambda: blink.size_op(1000))
    return [eager, dtypes, during, after, in_session, int(compiled()), unknown[1]]


def waiting_in_a_function():
    """They wait when the function runs, after what comes before them."""
    rank, size = blink.rank(), blink.size()

    @tf.function
    def wait(value):
        total = blink.allreduce(value, op=blink.Sum)
        blink.barrier()
        blink.allreduce(value, op=blink.Max, name="unused")
        return total, blink.join()

    wait.get_concrete_function(tf.TensorSpec((), tf.float32))  # tracing must not wait
    total, last = wait(tf.constant(rank + 1.0))
    blink.barrier()
    eager = blink.join()
    return [float(total), 0 <= int(last) < size, last.dtype.name, 0 <= int(eager) < size, rank]


def names_of_this_process_in_a_function():
    @tf.function
    def look():
        return tf.constant([blink.rank(), blink.size(), blink.local_rank(), blink.cross_size()])

    return look().numpy().tolist()


class Halved(Compressor):
    @staticmethod
    def compress(tensor):
        return tensor / 2, "context"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "context"
        return tensor * 2


def compressors():
    found = {}
    values = tf.constant([1.0, 2.5, -3.0])
    for name in ("none", "fp16", "bf16"):
        compressor = getattr(blink.Compression, name)
        for dtype in (tf.float64, tf.float32, tf.bfloat16, tf.float16, tf.int32, tf.complex64):
            packed, context = compressor.compress(tf.cast(values, dtype))
            back = compressor.decompress(packed, context)
            found[f"{name} {dtype.name}"] = [packed.dtype.name, back.dtype.name]
        slices = tf.IndexedSlices(values, tf.constant([0, 1, 2]))
        packed, context = compressor.compress(slices)
        found[f"{name} slices"] = compressor.decompress(packed, context) is slices
    mine = tf.fill([4], float(blink.rank() + 1))
    sums = [
        blink.allreduce(mine, op=blink.Sum, compression=each).numpy().tolist()
        for each in (blink.Compression.fp16, blink.Compression.bf16, Halved)
    ]
    return [found, sums, blinkrun.size()]
