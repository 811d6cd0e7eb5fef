"""Wrapped optimizers in the ways in which Keras trains: few bits, graphs, XLA, embeddings."""

import types

import keras
import numpy as np
from keras_optimizer_parts import (
    FEATURES,
    TARGETS,
    batches,
    compared,
    digest,
    fit,
    for_size,
    gradients_of,
    mlp,
    outcome,
    policy,
    raised,
    requests_of,
    train_alone,
)

import blinkrun.tf.keras as blink
from blinkrun.tf.keras import backend

optimizers = keras.optimizers


def scaled(around, inside=None):
    """A LossScaleOptimizer that begins with a small scale, wrapped outside or inside."""
    sgd = optimizers.SGD(0.1)
    return around(optimizers.LossScaleOptimizer(inside(sgd) if inside else sgd, initial_scale=8.0))


def loss_scale_outside():
    return compared(lambda: scaled(lambda each: each))


def loss_scale_inside():
    return compared(
        lambda: scaled(lambda each: each),
        wrap=lambda _: scaled(lambda each: each, blink.DistributedOptimizer),
    )


def overflow_on_one_rank():
    """The last rank's gradients of the second batch are infinite: all ranks leave the step out."""
    result = {}
    for name in ("by compile", "outside", "inside"):
        with policy("mixed_float16" if name == "by compile" else "float32"):
            model = mlp()
        if name == "by compile":
            optimizer = blink.DistributedOptimizer(optimizers.SGD(0.01))
        elif name == "outside":
            optimizer = scaled(blink.DistributedOptimizer)
        else:
            optimizer = scaled(lambda each: each, blink.DistributedOptimizer)
        model.compile(optimizer, "mse")
        mine, _ = batches(steps=3)
        if blink.rank() == blink.size() - 1:
            mine[1][4] = np.inf
        fit(model, mine, 4)
        scale, count = backend.host_values([model.optimizer.dynamic_scale, optimizer.iterations])
        result[name] = [digest(model), float(scale), int(count), np.isfinite(weights(model))]
        result[name][3] = bool(result[name][3].all())
    return result


def weights(model):
    return np.concatenate([each.ravel() for each in backend.host_values(model.variables)])


def half_precision():
    """With few bits, one process on the joined batches is near."""
    result = {}
    for name in ("mixed_float16", "mixed_bfloat16", "bfloat16"):
        mine, joined = batches()
        with policy(name):
            ours, alone = mlp(), mlp()
        start = backend.host_values(ours.variables)
        ours.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
        alone.compile(optimizers.SGD(0.1), "mse")
        if name == "mixed_float16":  # few samples overflow sooner than many: none are to here
            ours.optimizer.initial_scale = alone.optimizer.initial_scale = 256.0
        fit(ours, mine, 4)
        fit(alone, joined, 4 * blink.size())
        result[name] = outcome(ours, alone, start)
    return result


def accumulation_with_loss_scale():
    def make():
        sgd = optimizers.SGD(0.1, gradient_accumulation_steps=2)
        return optimizers.LossScaleOptimizer(sgd, initial_scale=8.0)

    return compared(
        make,
        wrap=lambda optimizer: optimizers.LossScaleOptimizer(
            blink.DistributedOptimizer(optimizer.inner_optimizer), initial_scale=8.0
        ),
    )


def passes_with_loss_scale():
    """Passes are added up outside of the LossScaleOptimizer, wherever the wrapped one is."""

    def wrap(given):
        kwargs = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
        inner = blink.DistributedOptimizer(given.inner_optimizer, **kwargs)
        return optimizers.LossScaleOptimizer(inner, initial_scale=8.0)

    def make_alone():
        sgd = optimizers.SGD(0.1, gradient_accumulation_steps=2)
        return optimizers.LossScaleOptimizer(sgd, initial_scale=8.0)

    return compared(lambda: scaled(lambda each: each), mlp, wrap, make_alone)


def training_by_hand():
    """A train_step of one's own."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def call(self, inputs):
            return self.inner(inputs)

        def train_step(self, data):
            x, y = data
            variables = self.trainable_variables
            made = []

            def loss():
                made.append(keras.ops.mean(keras.losses.mean_squared_error(y, self(x))))
                return made[0]

            self.optimizer.apply(gradients_of(loss, variables), variables)
            return {"loss": made[0]}

    mine, joined = batches()
    model, alone = Own(), mlp()
    start = backend.host_values(alone.variables)
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)))
    fit(model, mine, 4)
    train_alone(alone, optimizers.SGD(0.1), joined, 4 * blink.size())
    return outcome(model.inner, alone, start)


def validation():
    """Looking at other samples between epochs changes nothing, and waits for nobody."""
    mine, _ = batches()
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse", metrics=["mae"])
    history = fit(model, mine, 4, epochs=2, validation_split=0.25).history
    if blink.rank() == 0:
        model.evaluate(*mine, verbose=0)
        model.predict(mine[0], verbose=0)
    return [digest(model), sorted(history)]


def ranks_with_fewer_batches():
    """A rank that has joined gives zeros; the others go on."""
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    mine, _ = batches()
    count = 8 if blink.rank() == 0 else 16
    fit(model, [each[:count] for each in mine], 4)
    last = blink.join()
    return [digest(model), last != 0, int(backend.host_values([model.optimizer.iterations])[0])]


# ---- on TensorFlow -----------------------------------------------------------------------------


def graph_modes():
    return {
        "eager": compared(lambda: optimizers.SGD(0.1), run_eagerly=True),
        "two steps": compared(lambda: optimizers.SGD(0.1), steps_per_execution=2),
    }


def embeddings():
    """Sparse gradients are gathered, or made dense."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 6, size=(2, blink.size(), 4, 3))
    targets = rng.normal(size=(2, blink.size(), 4, TARGETS)).astype("float32")
    mine = [each[:, blink.rank()].reshape(8, -1) for each in (tokens, targets)]
    joined = [each.reshape(8 * blink.size(), -1) for each in (tokens, targets)]

    def make():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(10, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(TARGETS),
            ]
        )

    kinds = {  # Keras' Adam does not do the same with sparse gradients as with dense ones
        "gathered": lambda: optimizers.Adam(0.1),
        "dense": lambda: optimizers.SGD(0.1),
        "clipped": lambda: optimizers.Adam(0.1, global_clipnorm=0.1),
    }
    result = {}
    for name, kind in kinds.items():
        ours, alone = make(), make()
        start = backend.host_values(ours.variables)
        wrapped = blink.DistributedOptimizer(kind(), sparse_as_dense=name == "dense")
        ours.compile(wrapped, "mse")
        fit(ours, mine, 4)
        train_alone(alone, kind(), joined, 4 * blink.size())
        result[name] = outcome(ours, alone, start)
    return result


def xla_is_refused():
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse", jit_compile=True)
    mine, _ = batches(steps=1)
    return raised(lambda: fit(model, mine, 4))


def xla_is_not_chosen():
    """On a machine with another device Keras would choose XLA."""
    import tensorflow as tf

    before = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda: [types.SimpleNamespace(device_type="GPU")]
    try:
        ours, half, alone = mlp(), mlp(), mlp()
        ours.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
        inner = blink.DistributedOptimizer(optimizers.SGD(0.1))
        half.compile(optimizers.LossScaleOptimizer(inner), "mse")
        alone.compile(optimizers.SGD(0.1), "mse")
    finally:
        tf.config.list_physical_devices = before
    return [ours.jit_compile, half.jit_compile, alone.jit_compile]


def float8():
    """Scales are overwritten by what is called their gradients."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4)])
    model.layers[0].quantize("float8")
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    mine, _ = batches(steps=2)
    fit(model, [mine[0], mine[0][:, :4]], 4)
    return digest(model)


def one_rank_adds_nothing():
    """On one rank the graph of a step has no op of blinkrun."""
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    mine, _ = batches(steps=2)
    return requests_of(lambda: fit(model, mine, 4))


ALL = [
    "loss_scale_outside",
    "loss_scale_inside",
    "overflow_on_one_rank",
    "half_precision",
    "accumulation_with_loss_scale",
    "passes_with_loss_scale",
    "training_by_hand",
    "validation",
    "ranks_with_fewer_batches",
    "graph_modes",
    "embeddings",
    "xla_is_refused",
    "xla_is_not_chosen",
    "float8",
    "one_rank_adds_nothing",
]
ONE = ["loss_scale_outside", "xla_is_refused", "xla_is_not_chosen", "one_rank_adds_nothing"]
THREE = [
    "loss_scale_inside",
    "overflow_on_one_rank",
    "half_precision",
    "accumulation_with_loss_scale",
    "passes_with_loss_scale",
    "training_by_hand",
    "ranks_with_fewer_batches",
    "graph_modes",
    "embeddings",
    "xla_is_refused",
    "xla_is_not_chosen",
    "float8",
]
CASES = for_size(ALL, ONE, THREE)
TENSORFLOW_ONLY = ["graph_modes", "embeddings", "xla_is_refused", "xla_is_not_chosen", "float8"]
