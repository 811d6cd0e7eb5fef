"""Small models and data that the cases of Keras' callbacks share, for either Keras and backend."""

import hashlib

import numpy as np

import blinkrun.tf as blink
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.state import keras

ALIKE = {"verbose": 0, "shuffle": False}


def make_model(optimizer=None, *, built=True, seed=None, run_eagerly=True, **compile_args):
    """A perceptron of a few weights, different on each rank unless there is a seed.

    It runs eagerly, which saves a second of tracing, where no graph is asked for.
    """
    keras.utils.set_random_seed(blink.rank() if seed is None else seed)
    layers = [keras.Input((3,))] if built else []
    layers += [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(
        optimizer or keras.optimizers.SGD(0.0), "mse", run_eagerly=run_eagerly, **compile_args
    )
    return model


def make_data(seed, size=16):
    """Samples and what they add up to."""
    inputs = np.random.RandomState(seed).rand(size, 3).astype("float32")
    return inputs, inputs.sum(1, keepdims=True)


def digest(variables):
    """Bits of the values, in short."""
    values = backend.host_values(variables)
    return hashlib.sha256(b"".join(each.tobytes() for each in values)).hexdigest()


def numbers(variables):
    """Values as lists."""
    return [each.tolist() for each in backend.host_values(variables)]


def history_of(model, *args, **kwargs):
    return model.fit(*args, **{**ALIKE, **kwargs}).history


def raised(call):
    """Kind and text of what `call` raises."""
    try:
        call()
    except Exception as err:
        return [type(err).__name__, str(err)]
    return None


def iterations(model):
    return int(backend.host_values([model.optimizer.iterations])[0])


def listed(callbacks, model, **params):
    """A list of callbacks as `fit` makes it, to be driven by hand."""
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        model=model,
        **{"verbose": 0, "epochs": 9, "steps": 4, **params},
    )
