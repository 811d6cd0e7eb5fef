"""The ends of epochs: averages, decisions, different numbers of batches, who shows progress."""

import contextlib
import io
import math

import numpy as np
from keras_callbacks_parts import (
    digest,
    history_of,
    iterations,
    listed,
    make_data,
    make_model,
    raised,
)

import blinkrun.tf as blink
from blinkrun.tf.keras import DistributedOptimizer
from blinkrun.tf.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    JoinCallback,
    MetricAverageCallback,
)
from blinkrun.tf.keras.state import keras

CASES = [
    "averages_come_before_all_others",
    "decisions_are_alike_wherever_the_callback_stands",
    "metrics_of_every_kind",
    "metrics_of_different_shapes",
    "a_fit_stops_at_one_epoch_on_all_ranks",
    "all_stop_when_one_does",
    "ranks_with_fewer_batches_wait",
    "join_alone_is_enough",
    "local_variables_stay_local_when_epochs_differ",
    "progress_is_shown_once",
]


class Seen(keras.callbacks.Callback):
    """Notes what it is told at the ends of epochs."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))


def averages_come_before_all_others():
    model, seen = make_model(), Seen()
    callbacks = listed([seen, MetricAverageCallback()], model)
    callbacks.on_train_begin()
    logs = {"loss": float(blink.rank()), "acc": 1.0}
    if blink.rank() == 0:
        logs = dict(reversed(logs.items()))
    callbacks.on_epoch_end(0, logs)
    return [seen.logs, {name: list(each) for name, each in model.history.history.items()}]


def decisions_are_alike_wherever_the_callback_stands():
    """Rank 0 alone would go on, the others would stop and have a lower rate after an epoch."""
    model = make_model(keras.optimizers.SGD(1.0))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, mode="min")
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, mode="min")
    callbacks = listed([stop, plateau, MetricAverageCallback()], model)
    callbacks.on_train_begin()
    model.stop_training = False
    decided = []
    for epoch in range(5):
        mine = 10 - epoch if blink.rank() == 0 else 10 + (0.1 if epoch < 2 else 2) * epoch
        callbacks.on_epoch_begin(epoch)
        callbacks.on_epoch_end(epoch, {"val_loss": float(mine)})
        rate = float(model.optimizer.learning_rate.numpy())
        decided.append([bool(model.stop_training), rate])
    return decided


def metrics_of_every_kind():
    seen, rank = Seen(), blink.rank()
    callbacks = listed([MetricAverageCallback(), seen], make_model())
    callbacks.on_train_begin()
    logs = {
        "loss": np.float32(rank),
        "nan": math.nan if rank == 0 else 1.0,
        "inf": -math.inf if rank == 0 else 1.0,
        "table": np.array([rank, 1], np.int64),
        "text": f"of rank {rank}",
    }
    if rank == 0:
        logs["val_loss"] = 7.0
    callbacks.on_epoch_end(0, logs)
    got = seen.logs[0]
    return {
        name: each.tolist() if hasattr(each, "tolist") else repr(each) for name, each in got.items()
    }


def metrics_of_different_shapes():
    callbacks = listed([MetricAverageCallback()], make_model())
    callbacks.on_train_begin()
    return raised(lambda: callbacks.on_epoch_end(0, {"table": np.zeros(2 + blink.rank())}))


class Validated(keras.callbacks.Callback):
    """Notes the losses that this rank had in validation."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_test_end(self, logs=None):
        self.losses.append(float(logs["loss"]))


def a_fit_stops_at_one_epoch_on_all_ranks():
    """Rank 0 validates what it learns, the others the opposite."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.02)), "mse")
    own = Validated()
    inputs, sums = make_data(10 + blink.rank())
    history = history_of(
        model,
        *make_data(blink.rank()),
        batch_size=4,
        epochs=6,
        validation_data=(inputs, sums if blink.rank() == 0 else -sums),
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=0, mode="min"),
            own,
            MetricAverageCallback(),
            BroadcastGlobalVariablesCallback(0),
        ],
    )
    return [own.losses, history["val_loss"], digest(model.weights)]


class StopsHere(keras.callbacks.Callback):
    """Stops in the second epoch, in the middle of it or at its end."""

    def __init__(self, hook):
        super().__init__()
        self.epoch = 0
        setattr(self, hook, self.stop)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def stop(self, number, logs=None):
        if self.epoch == 1:
            self.model.stop_training = True


def all_stop_when_one_does():
    found = {}
    for hook in ("on_train_batch_end", "on_epoch_end"):
        model = make_model(DistributedOptimizer(keras.optimizers.SGD(0.1)))
        callbacks = [BroadcastGlobalVariablesCallback(0)]
        if blink.rank() == blink.size() - 1:
            callbacks.append(StopsHere(hook))
        data = make_data(blink.rank())
        history = history_of(model, *data, batch_size=4, epochs=5, callbacks=callbacks)
        found[hook] = [len(history["loss"]), digest(model.weights)]
    return found


def uneven(callbacks, optimizer, *, run_eagerly):
    """Rank r has 2 + r batches; validation, on the same data everywhere, tells the weights."""
    model = make_model(DistributedOptimizer(optimizer), seed=0, run_eagerly=run_eagerly)
    data = make_data(blink.rank(), size=8 + 4 * blink.rank())
    history = history_of(
        model,
        *data,
        batch_size=4,
        epochs=2,
        validation_data=make_data(9),
        callbacks=callbacks,
    )
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    state = digest(variables), digest(model.weights)
    return [iterations(model), history["val_loss"], *state]


def ranks_with_fewer_batches_wait():
    callbacks = [BroadcastGlobalVariablesCallback(0)]
    return uneven(callbacks, keras.optimizers.Adam(0.05), run_eagerly=False)


def join_alone_is_enough():
    return uneven([JoinCallback()], keras.optimizers.SGD(0.05, momentum=0.5), run_eagerly=True)


def local_variables_stay_local_when_epochs_differ():
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05))
    model = make_model(optimizer, seed=0)
    kernel, *others = model.weights
    optimizer.register_local_var(kernel)
    data = make_data(blink.rank(), size=8 + 4 * blink.rank())
    history_of(model, *data, batch_size=4, callbacks=[JoinCallback()])
    return [digest([kernel]), digest(others)]


def progress_is_shown_once():
    shown = {}
    own_bar = keras.callbacks.ProgbarLogger()
    for name, callbacks in {
        "one": [BroadcastGlobalVariablesCallback(0)],
        "own": [own_bar, BroadcastGlobalVariablesCallback(0)],
    }.items():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            history_of(make_model(), *make_data(0), verbose=2, epochs=2, callbacks=callbacks)
        shown[name] = "Epoch 2/2" in out.getvalue()
    return shown
