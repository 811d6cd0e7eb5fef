"""Configurations, copies and files of wrapped optimizers."""

import copy
import json
import os
import pickle
import tempfile
import zipfile

import keras
from keras_optimizer_parts import batches, digest, fit, for_size, mlp, no_warnings_of

import blinkrun.tf.keras as blink
from blinkrun.tf.keras import backend

optimizers = keras.optimizers


def own_class(optimizer):
    """The class over which that of a wrapped optimizer is made."""
    return [each.__name__ for each in type(optimizer).__mro__ if "Mixin" not in each.__name__]


def trained(optimizer=None):
    model = mlp()
    wrapped = blink.DistributedOptimizer(optimizer or optimizers.Adam(0.1))
    model.compile(wrapped, keras.losses.MeanSquaredError())
    fit(model, batches(steps=2)[0], 4)
    return model


def classes():
    """What a wrapped optimizer is, besides."""
    plain = optimizers.Adam(0.1)
    kind = type(plain)
    wrapped = blink.DistributedOptimizer(plain)
    return {
        "same object": wrapped is plain,
        "isinstance": isinstance(wrapped, optimizers.Adam) and isinstance(wrapped, kind),
        "names": [type(wrapped).__name__, type(wrapped).__module__] == ["Adam", kind.__module__],
        "recognised": [blink.is_distributed(wrapped), blink.is_distributed(optimizers.SGD())],
        "serialized": keras.saving.serialize_keras_object(wrapped)
        == {
            **keras.saving.serialize_keras_object(optimizers.Adam(0.1)),
            "config": wrapped.get_config(),
        },
        "got": optimizers.get(wrapped) is wrapped,
    }


def configurations():
    """Of an instance, and of its class, come wrapped optimizers of the same configuration."""
    wrapped = blink.DistributedOptimizer(optimizers.Adam(0.1, clipnorm=1.0), op=blink.Sum)
    config = wrapped.get_config()
    copies = [wrapped.from_config(config), type(wrapped).from_config(config)]
    plain = optimizers.Adam.from_config(config)
    return {
        "same": [each.get_config() == config for each in (*copies, plain)],
        "wrapped": [blink.is_distributed(each) for each in (*copies, plain)],
        "kept": [each._blink.settings.op == blink.Sum for each in copies],
    }


def copies():
    """Copies and pickles of an optimizer stay wrapped; Keras lets them begin anew."""
    wrapped = blink.DistributedOptimizer(optimizers.SGD(0.1), backward_passes_per_step=2)
    made = [copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]
    return [
        [blink.is_distributed(each), each._blink.settings.backward_passes_per_step] for each in made
    ]


def files():
    """A model is loaded with blinkrun and without, and goes on as it would have."""
    result = {}
    model = trained()
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("keras", "h5"):
            path = os.path.join(folder, f"model.{ending}")
            with no_warnings_of("You are saving your model"):
                model.save(path)
            plain = keras.saving.load_model(path)
            ours = blink.load_model(path)
            counts = backend.host_values([plain.optimizer.iterations, ours.optimizer.iterations])
            fit(ours, batches(steps=1, seed=1)[0], 4)
            result[ending] = {
                "plain": own_class(plain.optimizer) == own_class(optimizers.Adam()),
                "wrapped": blink.is_distributed(ours.optimizer),
                "counts": [int(each) for each in counts],
                "after": digest(ours),
            }
        text = zipfile.ZipFile(os.path.join(folder, "model.keras")).read("config.json").decode()
        result["names blinkrun"] = "blink" in text
        result["class"] = json.loads(text)["compile_config"]["optimizer"]["class_name"]
    fit(model, batches(steps=1, seed=1)[0], 4)
    result["without a file"] = digest(model)
    return result


def weights_only():
    model = trained()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "all.weights.h5")
        model.save_weights(path)
        other = mlp(seed=2)
        other.compile(blink.DistributedOptimizer(optimizers.Adam(0.1)), "mse")
        other.optimizer.build(other.trainable_variables)
        other.load_weights(path)
    return digest(model) == digest(other)


def loaded_with_loss_scale():
    """The optimizer inside of a LossScaleOptimizer is found."""
    model = trained(optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = blink.load_model(path, compression=blink.Compression.bf16)
    fit(loaded, batches(steps=1)[0], 4)
    return [own_class(loaded.optimizer)[0], blink.is_distributed(loaded.optimizer), digest(loaded)]


class OwnOptimizer(optimizers.SGD):
    """An optimizer that Keras does not know."""


def optimizers_of_ones_own():
    """Classes of one's own are named, or made by a function that wraps them."""
    model = trained(OwnOptimizer(0.1))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        by_class = blink.load_model(path, custom_optimizers=[OwnOptimizer])
        by_name = blink.load_model(path, custom_objects={"OwnOptimizer": OwnOptimizer})
        for loaded in (by_class, by_name):
            fit(loaded, batches(steps=1)[0], 4)
            found.append([own_class(loaded.optimizer)[0], digest(loaded)])
    return found


def models_without_optimizer():
    model = mlp()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return getattr(blink.load_model(path), "optimizer", None) is None


def rank_0_loads():
    """What one rank loads and others build has other names of layers, and trains together."""
    model = trained()
    if blink.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            model = blink.load_model(path)
    else:
        model = mlp()
        model.compile(blink.DistributedOptimizer(optimizers.Adam(0.1)), "mse")
        model.optimizer.build(model.trainable_variables)
    blink.broadcast_variables([*model.variables, *model.optimizer.variables], root_rank=0)
    fit(model, batches(steps=2)[0], 4)
    return digest(model)


ALL = [
    "classes",
    "configurations",
    "copies",
    "files",
    "weights_only",
    "loaded_with_loss_scale",
    "optimizers_of_ones_own",
    "models_without_optimizer",
    "rank_0_loads",
]
ONE = ["classes", "configurations", "copies", "files"]
THREE = ["weights_only", "rank_0_loads"]
CASES = for_size(ALL, ONE, THREE)
