"""SyncBatchNormalization on parts of a batch, against BatchNormalization on the whole."""

import functools

import numpy as np
import tensorflow as tf

import blinkrun.tf as blink

CASES = (
    "batch_norm_of_joined_batches",
    "batch_norm_of_uneven_batches",
    "batch_norm_in_a_graph",
    "batch_norm_with_a_mask",
    "batch_norm_in_evaluation",
    "batch_norm_of_narrow_types",
    "batch_norm_while_a_rank_has_joined",
    "batch_norm_in_a_model",
    "batch_norm_refusals",
)

CHANNELS = 3
ROWS = 12
Plain = tf.keras.layers.BatchNormalization
if "tf_keras" in Plain.__module__:  # whose fused kernel has another moving variance
    Plain = functools.partial(Plain, fused=False)


def rows_of(rank, size, uneven):
    """Which rows of a batch a rank has; unevenly: the last has none, the one before the rest."""
    if not uneven or size == 1:
        return slice(rank, ROWS, size)
    if rank == size - 1:
        return slice(ROWS, ROWS)
    return slice(5 * rank, ROWS if rank == size - 2 else 5 * rank + 5)


def far(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    return float(np.abs(a - b).max()) if a.size else 0.0


def step(layer, inputs, pull, wrap, mask=None):
    """Return outputs, and the gradients of inputs, gamma and beta."""

    def run(inputs, pull):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True, **({} if mask is None else {"mask": mask}))
            loss = tf.reduce_sum(outputs * pull)
        return outputs, *tape.gradient(loss, [inputs, *layer.trainable_weights])

    return wrap(run)(tf.constant(inputs), tf.constant(pull))


def compare(shape, *, uneven=False, wrap=lambda run: run, mask=None, steps=2, **options):
    """Return how far outputs, gradients and moving statistics are from Keras' own."""
    random = np.random.default_rng(7)
    axis = options.get("axis", -1) % (len(shape) + 2)
    whole_shape = [ROWS, *shape]
    whole_shape.insert(axis, CHANNELS)
    whole = (random.normal(size=whole_shape) * 2 + 5).astype(np.float32)
    start = random.normal(size=(2, CHANNELS)).astype(np.float32)
    layers = Plain(**options), blink.SyncBatchNormalization(**options)
    for layer in layers:
        layer.build(whole.shape)
        for weight, value in zip(layer.trainable_weights, start, strict=False):
            weight.assign(value)
    mine = rows_of(blink.rank(), blink.size(), uneven)
    distances = {}
    for number in range(steps):
        inputs = whole * (1 + number)
        pull = np.linspace(-1, 1, inputs.size, dtype=np.float32).reshape(inputs.shape)
        marks = (None, None) if mask is None else (mask, mask[mine])
        want = step(layers[0], inputs, pull, wrap, marks[0])
        got = step(layers[1], inputs[mine], pull[mine], wrap, marks[1])
        found = {"outputs": far(want[0][mine], got[0]), "gradients": far(want[1][mine], got[1])}
        for place, each in enumerate(got[2:]):
            joined = blink.allreduce(each, op=blink.Sum)
            found[f"weight {place}"] = far(want[2 + place], joined)
        weights = zip(layers[0].weights, layers[1].weights, strict=True)
        found["weights"] = max(far(*each) for each in weights)
        distances = {name: max(distances.get(name, 0), value) for name, value in found.items()}
    return distances


def batch_norm_of_joined_batches():
    return [
        compare(()),
        compare((4,)),
        compare((4,), axis=1),
        compare((2, 3), axis=1, momentum=0.7, epsilon=0.1),
        compare((2, 2), center=False),
        compare((2, 1, 2), scale=False, center=False),
    ]


def batch_norm_of_uneven_batches():
    return [compare((), uneven=True), compare((2, 3), uneven=True)]


def batch_norm_in_a_graph():
    return [compare((2, 3), uneven=True, axis=1, wrap=tf.function, steps=1)]


def batch_norm_with_a_mask():
    mask = np.random.default_rng(3).random((ROWS, 4)) < 0.6
    return [compare((4,), mask=mask)]


def batch_norm_in_evaluation():
    """Takes moving statistics, and only the last rank calls it; a frozen layer does as well."""
    layer, plain = blink.SyncBatchNormalization(), Plain()
    inputs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    layer(inputs, training=True)
    plain.build(inputs.shape)
    plain.set_weights(layer.get_weights())
    if blink.rank() < blink.size() - 1:
        return 0.0
    moved = far(plain(inputs), layer(inputs))
    layer.trainable = plain.trainable = False
    return max(moved, far(plain(inputs, training=True), layer(inputs, training=True)))


def batch_norm_of_narrow_types():
    found = {}
    whole = np.random.default_rng(9).normal(size=(ROWS, 2, CHANNELS)).astype(np.float32)
    want = Plain()(whole, training=True)
    mine = rows_of(blink.rank(), blink.size(), uneven=False)
    for dtype in ("float16", "bfloat16", "float64", "mixed_float16"):
        got = blink.SyncBatchNormalization(dtype=dtype)(whole[mine], training=True)
        found[dtype] = [got.dtype.name, far(want[mine], tf.cast(got, tf.float32))]
    return found


def batch_norm_while_a_rank_has_joined():
    """Its part of the batch is missing: the statistics are those of the others."""
    size, rank = blink.size(), blink.rank()
    whole = np.random.default_rng(11).normal(size=(ROWS, CHANNELS)).astype(np.float32)
    layer = blink.SyncBatchNormalization()
    layer.build(whole.shape)
    distance = 0.0
    if rank or size == 1:
        others = np.concatenate([whole[r::size] for r in range(size > 1, size)])
        start = sum(len(whole[r::size]) for r in range(1, rank))
        got = layer(whole[rank::size], training=True)
        distance = far(Plain()(others, training=True)[start : start + len(got)], got)
    blink.join()
    return distance


def batch_norm_in_a_model():
    """Two layers in a model that is saved, loaded and cloned."""
    keras = tf.keras
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            blink.SyncBatchNormalization(),
            keras.layers.Dense(3),
            blink.SyncBatchNormalization(momentum=0.5),
        ]
    )
    inputs = np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
    model(inputs[blink.rank() :: blink.size()], training=True)
    again = model.__class__.from_config(model.get_config())
    again.set_weights(model.get_weights())
    names = [type(layer).__name__ for layer in again.layers if "normal" in layer.name]
    return [names, again.layers[-1].momentum, far(model(inputs), again(inputs))]


def batch_norm_refusals():
    try:
        blink.SyncBatchNormalization(fused=True)
    except ValueError as err:
        return str(err)
    return ""
