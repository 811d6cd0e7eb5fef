"""Wrapped optimizers of tf_keras, of both families, in a job with ``TF_USE_LEGACY_KERAS=1``."""

import copy
import hashlib
import os
import tempfile
import warnings

import numpy as np
import tensorflow as tf
import tf_keras as keras

import blinkrun.tf as blink
import blinkrun.tf.keras as blink_keras

optimizers, legacy = keras.optimizers, keras.optimizers.legacy
FAMILIES = {"new": optimizers, "legacy": legacy}


def mlp(seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    )


def batches(steps=4, batch=4):
    """Samples and targets of this rank, and of the joined batches."""
    rng = np.random.default_rng(0)
    shape = (steps, blink.size(), batch)
    made = [rng.normal(size=(*shape, n)).astype("float32") for n in (5, 3)]
    mine = [each[:, blink.rank()].reshape(steps * batch, -1) for each in made]
    return mine, [each.reshape(steps * blink.size() * batch, -1) for each in made]


def fit(model, data, batch=4):
    return model.fit(*data, batch_size=batch, epochs=1, verbose=0, shuffle=False)


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()[:16]


def distance(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def compared(make, wrap=blink_keras.DistributedOptimizer, make_alone=None, **compiled):
    """Weights after distributed training, and how far they are from those of one process."""
    mine, joined = batches()
    ours, alone = mlp(), mlp()
    ours.compile(wrap(make()), "mse", **compiled)
    fit(ours, mine)
    alone.compile((make_alone or make)(), "mse", run_eagerly=True)
    fit(alone, joined, 4 * blink.size())
    return {"weights": digest(ours), "off": distance(ours, alone), "moved": distance(ours, mlp())}


def every_legacy_optimizer():
    found = {}
    for family, module in FAMILIES.items():
        for name, kind in sorted(vars(module).items()):
            is_one = isinstance(kind, type) and issubclass(kind, module.Optimizer)
            if is_one and name != "Optimizer":
                found[f"{family} {name}"] = compared(lambda kind=kind: kind(0.01), run_eagerly=True)
    return found


def legacy_in_a_graph():
    """What ``fit`` does by default."""
    return {
        name: compared(lambda module=module: module.SGD(0.1, momentum=0.9, clipnorm=0.1))
        for name, module in FAMILIES.items()
    }


def legacy_unwrapped():
    return compared(lambda: optimizers.SGD(0.1), lambda optimizer: optimizer, run_eagerly=True)


def legacy_passes():
    result = {}
    for name, module in FAMILIES.items():

        def wrap(optimizer):
            return blink_keras.DistributedOptimizer(
                optimizer, backward_passes_per_step=2, average_aggregated_gradients=True
            )

        ours, halves = mlp(), mlp()
        wrapped = wrap(module.SGD(0.1))
        ours.compile(wrapped, "mse")
        mine, joined = batches()
        fit(ours, mine)
        start = [each.reshape(2, 2, blink.size(), 4, -1) for each in joined]
        halves.compile(module.SGD(0.1), "mse", run_eagerly=True)
        fit(halves, [each.reshape(len(joined[0]), -1) for each in start], 8 * blink.size())
        counter = int(wrapped._agg_helper.counter.numpy())
        result[name] = {
            "weights": digest(ours),
            "off": distance(ours, halves),
            "moved": distance(ours, mlp()),
            "counts": [int(wrapped.iterations.numpy()), counter],
        }
    return result


def legacy_loss_scale():
    """One rank's gradients overflow; all leave the step out and halve their scales."""
    around = keras.mixed_precision.LossScaleOptimizer
    result = {}
    for name, module in FAMILIES.items():
        for place in ("outside", "inside"):
            model = mlp()
            if place == "outside":
                optimizer = blink_keras.DistributedOptimizer(
                    around(module.SGD(0.1), initial_scale=8.0)
                )
            else:
                optimizer = around(
                    blink_keras.DistributedOptimizer(module.SGD(0.1)), initial_scale=8.0
                )
            model.compile(optimizer, "mse")
            mine, _ = batches(steps=3)
            if blink.rank() == blink.size() - 1:
                mine[1][4] = np.inf
            fit(model, mine)
            finite = all(bool(np.isfinite(each).all()) for each in model.get_weights())
            result[f"{name} {place}"] = [digest(model), float(optimizer.loss_scale), finite]
    return result


def legacy_loops():
    """Gradients that a tape has made are reduced when they are applied, others but once."""
    result = {}
    for name, module in FAMILIES.items():
        variable = tf.Variable([0.0])
        optimizer = blink_keras.DistributedOptimizer(module.SGD(1.0), op=blink.Sum)
        grad = tf.constant([blink.rank() + 1.0])
        optimizer.apply_gradients([(grad, variable)])
        values = [float(variable[0])]
        skip = (
            {"skip_gradients_aggregation": True}
            if name == "new"
            else {"experimental_aggregate_gradients": False}
        )
        optimizer.apply_gradients([(tf.constant([1.0]), variable)], **skip)
        values.append(float(variable[0]))

        def loss(variable=variable):
            return (blink.rank() + 1.0) * variable[0]

        optimizer.minimize(loss, [variable])
        values.append(float(variable[0]))
        pairs = optimizer._compute_gradients(loss, [variable])
        optimizer.apply_gradients(pairs)
        values.append(float(variable[0]))
        pairs = optimizer.aggregate_gradients([(grad, variable)])
        values.append(float(pairs[0][0][0]))
        result[name] = values
    return result


def legacy_local_variables():
    result = {}
    for name, module in FAMILIES.items():
        model = mlp()
        optimizer = blink_keras.PartialDistributedOptimizer(
            module.SGD(1.0), local_layers=[model.layers[0]]
        )
        ones = [tf.ones(v.shape) * (blink.rank() + 1.0) for v in model.trainable_variables]
        before = model.layers[0].get_weights()[0]
        optimizer.apply_gradients(zip(ones, model.trainable_variables, strict=True))
        moved = before - model.layers[0].get_weights()[0]
        result[name] = [float(moved.mean()), digest(model.layers[1])]
    return result


def legacy_sparse():
    """Embeddings; with `sparse_as_dense` and with passes."""
    result = {}
    for name, module in FAMILIES.items():
        for kwargs in (
            {},
            {"sparse_as_dense": True},
            {"sparse_as_dense": True, "backward_passes_per_step": 2},
        ):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Embedding(20, 4, input_length=3)])
            optimizer = blink_keras.DistributedOptimizer(module.RMSprop(0.01), **kwargs)
            model.compile(optimizer, "mse", run_eagerly=True)
            rng = np.random.default_rng(blink.rank())
            tokens, targets = rng.integers(20, size=(8, 3)), rng.normal(size=(8, 3, 4))
            for _ in range(3):
                model.train_on_batch(tokens, targets)
            result[f"{name} {len(kwargs)}"] = digest(model)
    return result


def legacy_classes():
    """isinstance, configurations, copies, and what is refused."""
    result = {}
    for name, module in FAMILIES.items():
        wrapped = blink_keras.DistributedOptimizer(module.Adam(0.1))
        config = wrapped.get_config()
        made = [wrapped.from_config(config), type(wrapped).from_config(config)]
        serialized = optimizers.serialize(wrapped)
        plain = optimizers.serialize(module.Adam.from_config(config))
        try:
            blink_keras.DistributedOptimizer(wrapped)
            twice = None
        except ValueError as err:
            twice = str(err)
        result[name] = {
            "isinstance": isinstance(wrapped, module.Adam),
            "configs": [each.get_config() == config for each in made],
            "wrapped": [blink_keras.is_distributed(each) for each in (*made, copy.copy(wrapped))],
            "serialized": serialized == plain,
            "twice": twice,
        }
    return result


def legacy_files():
    """Models are loaded with blinkrun and without."""
    result = {}
    for name, module in FAMILIES.items():
        model = mlp()
        model.compile(blink_keras.DistributedOptimizer(module.Adam(0.1)), "mse")
        mine, _ = batches(steps=2)
        fit(model, mine)
        with tempfile.TemporaryDirectory() as folder:
            # Of the legacy family the newer format does not keep the state.
            path = os.path.join(folder, "model.keras" if name == "new" else "model.h5")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="You are saving your model")
                model.save(path)
            plain = keras.models.load_model(path)
            ours = blink_keras.load_model(path, legacy_opts=name == "legacy")
        result[name] = {
            "plain": [
                blink_keras.is_distributed(plain.optimizer),
                isinstance(plain.optimizer, module.Adam),
            ],
            "ours": [blink_keras.is_distributed(ours.optimizer), int(ours.optimizer.iterations)],
        }
        fit(ours, mine)
        fit(model, mine)
        result[name]["after"] = [digest(ours), digest(model)]
    return result


def legacy_xla():
    model = mlp()
    optimizer = blink_keras.DistributedOptimizer(optimizers.SGD(0.1))
    model.compile(optimizer, "mse", jit_compile=True)
    try:
        fit(model, batches(steps=1)[0])
    except Exception as err:
        return str(err).strip().splitlines()[-1]
    return None


def modern_keras_beside():
    """An optimizer of Keras 3 is recognised by its class, whatever tf.keras is."""
    import keras as modern

    wrapped = blink_keras.DistributedOptimizer(modern.optimizers.SGD(1.0))
    variable = modern.Variable(np.zeros(1, "float32"))
    wrapped.apply([tf.constant([blink.rank() + 1.0])], [variable])
    return float(variable.numpy()[0])


CASES = [
    "every_legacy_optimizer",
    "legacy_in_a_graph",
    "legacy_unwrapped",
    "legacy_passes",
    "legacy_loss_scale",
    "legacy_loops",
    "legacy_local_variables",
    "legacy_sparse",
    "legacy_classes",
    "legacy_files",
    "legacy_xla",
    "modern_keras_beside",
]
