"""What each rank does for test_tf_gradients_v1.py: optimizers of tf.compat.v1.train."""

import hashlib

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink
from blinkrun.errors import BlinkrunError

v1 = tf.compat.v1


def digest(arrays):
    data = hashlib.sha256()
    for array in arrays:
        data.update(np.asarray(array).tobytes())
    return data.hexdigest()


def session_training(make, steps=4, sparse=False, **options):
    """Return the weights after some steps in a session, and those of the joined batch."""
    size = blink.size()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 3])
        rows = v1.placeholder(tf.int32, [None])
        start = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
        w = v1.get_variable("w", initializer=start, use_resource=True)
        table = v1.get_variable("table", initializer=np.ones((4, 1), np.float32), use_resource=True)
        found = tf.reduce_mean(tf.square(tf.matmul(x, w)))
        if sparse:
            found += tf.reduce_mean(tf.gather(table, rows))
        counter = v1.train.get_or_create_global_step()
        opt = make()
        if blink.size() and options.pop("wrapped", True):
            opt = blink.DistributedOptimizer(opt, **options)
        train = opt.minimize(found, global_step=counter)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for step in range(steps):
                feeds = [data(rank, step) for rank in range(size)]
                given = (
                    feeds[blink.rank()]
                    if isinstance(opt, (blink_classes()))
                    else (
                        np.concatenate([f[0] for f in feeds]),
                        np.concatenate([f[1] for f in feeds]),
                    )
                )
                session.run(train, {x: given[0], rows: given[1]})
            return session.run([w, table, counter])


def blink_classes():
    from blinkrun.tf.adasum import AdasumMixin
    from blinkrun.tf.optimizer import DistributedMixin

    return DistributedMixin, AdasumMixin


def data(rank, step):
    rng = np.random.default_rng(100 * step + rank)
    return rng.normal(size=(4, 3)).astype(np.float32), rng.integers(0, 4, 4).astype(np.int32)


def close(found, wanted, tolerance=1e-5):
    for pair in zip(found, wanted, strict=True):
        one, other = (np.asarray(each, np.float64) for each in pair)
        assert one.shape == other.shape
        assert np.allclose(one, other, rtol=tolerance, atol=tolerance), abs(one - other).max()


OPTIMIZERS = {
    "gradient descent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
}


def v1_sessions_equal_the_joined_batch():
    told = {}
    for name, make in OPTIMIZERS.items():
        for sparse in (False, True):
            found = session_training(make, sparse=sparse)
            if not (sparse and name == "adam" and blink.size() > 1):  # duplicates in sparse Adam
                close(found, session_training(make, sparse=sparse, wrapped=False))
            told[f"{name} {sparse}"] = digest(found)
    found = session_training(OPTIMIZERS["adam"], sparse=True, sparse_as_dense=True)
    told["as dense"] = digest(found)
    return told


def v1_passes_in_a_session():
    make = OPTIMIZERS["gradient descent"]
    told = {}
    for average in (False, True):
        options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
        found = session_training(make, steps=5, sparse=True, sparse_as_dense=True, **options)
        assert found[2] == 5
        told[average] = digest(found)
        two = aggregated_by_hand(average)
        close(found[:1], [two])
    return sorted(told.values())


def aggregated_by_hand(average):
    w = np.arange(6, dtype=np.float64).reshape(3, 2) / 10
    size = blink.size()
    for step in (0, 2):
        total = np.zeros_like(w)
        for rank in range(size):
            for each in (step, step + 1):
                x = data(rank, each)[0].astype(np.float64)
                total += 2 * x.T @ (x @ w) / (len(x) * 2) / size
        w = w - 0.1 * total / (2 if average else 1)
    return w


def v1_eagerly_and_in_functions():
    size, mine = blink.size(), float(blink.rank() + 1)
    mean = (size + 1) / 2
    for passes in (1, 3):
        plain = v1.train.GradientDescentOptimizer(1.0)
        opt = blink.DistributedOptimizer(plain, backward_passes_per_step=passes)
        assert isinstance(opt, v1.train.GradientDescentOptimizer)
        assert opt._optimizer is plain
        check_steps(opt, lambda step: step, mine, mean, passes)
        opt = blink.DistributedOptimizer(plain, backward_passes_per_step=passes)
        check_steps(opt, tf.function, mine, mean, passes)


def check_steps(opt, wrap, mine, mean, passes):
    w = tf.Variable(0.0)

    def step():
        opt.apply_gradients(opt.compute_gradients(lambda: w * mine, [w]))

    step, seen = wrap(step), []
    for _ in range(7):
        step()
        seen.append(float(w))
    close([seen], [[-mean * passes * ((n + 1) // passes) for n in range(7)]])


def v1_keras_optimizers_go_to_keras():
    w = tf.Variable([0.0, 0.0])
    opt = blink.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    assert isinstance(opt, tf.keras.optimizers.SGD)
    opt.apply_gradients([(tf.constant([1.0, 2.0]) * float(blink.rank() + 1), w)])
    mean = (blink.size() + 1) / 2
    close([w], [[-mean, -2 * mean]])


def v1_local_variables():
    size, mine = blink.size(), float(blink.rank() + 1)
    w, own = tf.Variable(0.0), tf.Variable(0.0)
    opt = blink.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    opt.register_local_var(own)
    opt.apply_gradients(opt.compute_gradients(lambda: (w + own) * mine, [w, own]))
    close([w, own], [-(size + 1) / 2, -mine / size])


def v1_adasum():
    size = blink.size()
    if size & (size - 1):
        return None
    told = []
    for passes in (1, 2):
        found = session_training(
            OPTIMIZERS["gradient descent"], op=blink.Adasum, backward_passes_per_step=passes
        )
        told.append(digest(found))
        w, total = tf.Variable(np.zeros(size, np.float32)), tf.Variable(1.0)
        opt = blink.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=blink.Adasum, backward_passes_per_step=passes
        )
        for _ in range(passes):  # orthogonal changes add up, equal ones count once
            opt.minimize(lambda w=w, total=total: w[blink.rank()] + total)
        close([w, total], [np.full(size, -passes), 1.0 - passes])
    return told


def raised(call):
    try:
        call()
    except BlinkrunError as err:
        return [type(err).__name__, str(err)]
    return None


def v1_usage():
    make = blink.DistributedOptimizer
    plain = v1.train.GradientDescentOptimizer(1.0)
    told = {
        "twice": raised(lambda: make(make(plain))),
        "adasum twice": raised(lambda: make(make(plain, op=blink.Adasum))),
        "class": raised(lambda: make(object())),
        "op": raised(lambda: make(plain, op=blink.Min)),
        "passes": raised(lambda: make(plain, backward_passes_per_step=0)),
        "average": raised(lambda: make(plain, op=blink.Adasum, average_aggregated_gradients=True)),
        "apply": raised(
            lambda: make(plain, backward_passes_per_step=2).apply_gradients([(None, None)])
        ),
    }
    table = tf.Variable(tf.ones((3, 1)))
    opt = make(plain, backward_passes_per_step=2)
    told["sparse"] = raised(lambda: opt.compute_gradients(lambda: tf.gather(table, [0]), [table]))
    return told


CASES = [name for name in list(globals()) if name.startswith("v1_")]
