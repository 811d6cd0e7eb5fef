"""Models, data and comparisons that the cases of Keras optimizers share, for either backend."""

import contextlib
import hashlib
import warnings

import keras
import numpy as np

import blinkrun.tf.keras as blink
from blinkrun.engine import engine
from blinkrun.tf.keras import backend

FEATURES, TARGETS = 5, 3


def for_size(cases, one=(), three=()):
    """Return the cases for this job: all under torch's backend, where they are quick."""
    if backend.name() == "torch":
        return cases
    return list(one if blink.size() == 1 else three)


def mlp(seed=1, **first):
    """A model with the same weights on all ranks."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="relu", **first),
            keras.layers.Dense(TARGETS),
        ]
    )


def batches(steps=4, batch=4, seed=0):
    """Samples and targets of this rank and of the joined batches; other samples on each rank."""
    rng = np.random.default_rng(seed)
    shape = (steps, blink.size(), batch)
    inputs = rng.normal(size=(*shape, FEATURES)).astype("float32")
    targets = rng.normal(size=(*shape, TARGETS)).astype("float32")
    mine = [each[:, blink.rank()].reshape(steps * batch, -1) for each in (inputs, targets)]
    joined = [each.reshape(steps * blink.size() * batch, -1) for each in (inputs, targets)]
    return mine, joined


def fit(model, data, batch, **options):
    """Train for one epoch, in order."""
    options = {"epochs": 1, "verbose": 0, "shuffle": False, "batch_size": batch, **options}
    with no_warnings_of("__array__ implementation"):  # of Keras' own, on torch
        return model.fit(*data, **options)


def digest(model):
    """Bits of the weights, in short."""
    values = backend.host_values(model.variables)
    return hashlib.sha256(b"".join(each.tobytes() for each in values)).hexdigest()[:16]


def distance(one, other):
    """The largest difference between weights of two models."""
    pairs = zip(
        backend.host_values(one.variables), backend.host_values(other.variables), strict=True
    )
    return max(float(np.abs(a.astype("float64") - b.astype("float64")).max()) for a, b in pairs)


def train_alone(model, optimizer, data, batch, loss="mse"):
    """Train with plain Keras, by a loop that traces nothing: that would take most of the time."""
    function = keras.losses.get(loss)
    inputs, targets = data

    def scaled(x, y):
        return optimizer.scale_loss(keras.ops.mean(function(y, model(x))))

    for start in range(0, len(inputs), batch):
        x, y = inputs[start : start + batch], targets[start : start + batch]
        variables = model.trainable_variables
        gradients = gradients_of(lambda x=x, y=y: scaled(x, y), variables)
        with no_warnings_of("__array__ implementation"):
            optimizer.apply(gradients, variables)


def gradients_of(loss, variables):
    """Gradients of what a function without arguments computes."""
    if backend.name() == "torch":
        for each in variables:
            each.value.grad = None
        loss().backward()
        return [each.value.grad for each in variables]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, variables)


def compared(
    make,
    make_model=mlp,
    wrap=None,
    make_alone=None,
    batch=4,
    loss="mse",
    by_fit=False,
    **compiled,
):
    """Train distributed and, on the joined batches, alone: weights, and how far they are apart.

    Parameters
    ----------
    make : callable
        Makes an optimizer.
    wrap : callable, optional
        Makes of it a distributed one.
    make_alone : callable, optional
        Makes the optimizer of one process, if it is another one.
    by_fit : bool
        Whether one process trains by `fit` too.
    """
    mine, joined = batches(batch=batch)
    ours, alone = make_model(), make_model()
    start = backend.host_values(ours.variables)
    if backend.name() == "torch":
        compiled.pop("run_eagerly", None)
    ours.compile((wrap or blink.DistributedOptimizer)(make()), loss, **compiled)
    fit(ours, mine, batch)
    if by_fit:
        alone.compile((make_alone or make)(), loss)
        fit(alone, joined, batch * blink.size())
    else:
        train_alone(alone, (make_alone or make)(), joined, batch * blink.size(), loss)
    return outcome(ours, alone, start)


def outcome(ours, alone, start):
    """What a test looks at: weights, how far from those of one process, how far from the start."""
    after = backend.host_values(ours.variables)
    moved = max(float(np.abs(a - b).max()) for a, b in zip(after, start, strict=True))
    return {"weights": digest(ours), "off": distance(ours, alone), "moved": moved}


def raised(call):
    """Kinds and text of what `call` raises."""
    try:
        call()
    except Exception as err:
        kinds = [each.__name__ for each in type(err).__mro__]
        return {"kinds": kinds, "text": str(err)}
    return None


@contextlib.contextmanager
def no_warnings_of(text):
    """Let a warning of Keras pass."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=text)
        yield


@contextlib.contextmanager
def policy(name):
    """Make layers of a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def requests_of(call):
    """How many requests the engine gets while `call` runs."""
    before = engine.current().stats.requests
    call()
    return engine.current().stats.requests - before
