"""Learning rates that follow the epochs, and what momentum makes of their changes."""

import contextlib
import io

import numpy as np
from keras_callbacks_parts import history_of, listed, make_data, make_model, numbers, raised

import blinkrun.tf as blink
from blinkrun.tf import versions
from blinkrun.tf.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback
from blinkrun.tf.keras.callbacks.learning_rate import scale_momentum
from blinkrun.tf.keras.state import build_optimizer, keras

CASES = [
    "rates_by_batch",
    "the_longest_epoch_counts",
    "momentum_is_corrected",
    "what_momentum_is_corrected",
    "rates_that_cannot_be_set",
]


def rates_of(callback, steps=2):
    """The rate of each batch of four epochs, those in the logs, and what is printed."""
    model = make_model(keras.optimizers.SGD(0.5))
    callbacks = listed([callback], model, steps=steps)
    callbacks.on_train_begin()
    rates, logged = [], []
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for epoch in range(4):
            callbacks.on_epoch_begin(epoch)
            for batch in range(steps):
                callbacks.on_train_batch_begin(batch)
                rates.append(float(model.optimizer.learning_rate.numpy()))
            callbacks.on_epoch_end(epoch, {"loss": 1.0})
            logged.append(float(model.history.history["lr"][-1]))
    return [rates, logged, out.getvalue()]


def rates_by_batch():
    """Four epochs of two batches."""
    schedule = LearningRateScheduleCallback
    return {
        "warmup": rates_of(LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)),
        "staircase": rates_of(schedule(1.0, lambda epoch: epoch + 1, start_epoch=1, end_epoch=3)),
        "smooth": rates_of(schedule(1.0, lambda epoch: epoch + 1, staircase=False)),
        "power": rates_of(schedule(1.0, 0.5, start_epoch=1)),
    }


def the_longest_epoch_counts():
    """Rank r has 2 + r batches an epoch."""
    schedule = LearningRateScheduleCallback(1.0, lambda epoch: epoch + 1, staircase=False)
    return rates_of(schedule, steps=2 + blink.rank())[0]


def momentum_is_corrected():
    """A weight whose gradient is 1 at each step, at rates of 1, 1, 2, 2."""
    found = {}
    for corrected in (True, False):
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        model.compile(optimizer, loss=lambda truth, given: given)  # a graph, in which it is fixed
        schedule = LearningRateScheduleCallback(
            1.0, lambda epoch: epoch + 1, momentum_correction=corrected
        )
        ones = np.ones((2, 1), "float32")
        history_of(model, ones, ones, batch_size=1, epochs=2, callbacks=[schedule])
        found[str(corrected)] = numbers(model.weights)[0][0][0]
    return found


def what_momentum_is_corrected():
    """Slots of 1 before, for optimizers that carry the rate along and for others."""
    places = [keras.optimizers]
    if versions.is_legacy():
        places.append(keras.optimizers.legacy)
    found = {}
    for place in places:
        optimizers = {
            "SGD": place.SGD(0.1, momentum=0.9),
            "plain SGD": place.SGD(0.1),
            "RMSprop": place.RMSprop(0.1, momentum=0.9),
            "Adam": place.Adam(0.1),
        }
        for name, optimizer in optimizers.items():
            model = make_model(optimizer)
            build_optimizer(model)
            variables = optimizer.variables
            variables = list(variables() if callable(variables) else variables)
            slots = [each for each in variables if len(each.shape)]
            for each in slots:
                each.assign(each * 0 + 1)
            scale_momentum(model, 2.0)
            found.setdefault(name, []).append(sorted({np.max(each) for each in numbers(slots)}))
    return found


def rates_that_cannot_be_set():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = make_model(keras.optimizers.SGD(schedule))

    def begin(**arguments):  # a generator has no number of batches
        callback = LearningRateWarmupCallback(0.1, **arguments)
        return lambda: begun(listed([callback], make_model(), steps=None))

    def begun(callbacks):
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(0)
        callbacks.on_train_batch_begin(0)

    return {
        "schedule": raised(
            lambda: history_of(model, *make_data(0), callbacks=[LearningRateWarmupCallback(0.1)])
        ),
        "none": raised(lambda: LearningRateScheduleCallback(None, 1.0)),
        "steps": raised(begin()),
        "steps given": raised(begin(steps_per_epoch=3)),
    }
