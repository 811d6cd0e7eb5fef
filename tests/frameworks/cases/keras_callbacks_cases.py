"""Weights, optimizers and metrics of one rank on all, when training begins."""

import numpy as np
from keras_callbacks_parts import (
    ALIKE,
    digest,
    history_of,
    iterations,
    make_data,
    make_model,
    numbers,
    raised,
)

import blinkrun.tf as blink
from blinkrun.adapter.objects import allgather_object
from blinkrun.tf.keras import DistributedOptimizer
from blinkrun.tf.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from blinkrun.tf.keras.state import keras

CASES = [
    "broadcast_precedes_the_first_step",
    "optimizers_are_broadcast",
    "a_model_that_is_built_on_one_rank_only",
    "each_fit_begins_alike",
    "seeds_stay_apart",
    "local_variables_stay",
    "training_keeps_weights_equal",
    "without_the_callback_weights_differ",
    "what_does_not_fit_together",
    "bad_arguments",
    "one_set_trains",
]
SEVERAL_RANKS = [
    "broadcast_precedes_the_first_step",
    "optimizers_are_broadcast",
    "training_keeps_weights_equal",
    "what_does_not_fit_together",
]
TENSORFLOW_ONLY = ["a_model_that_is_built_on_one_rank_only"]  # torch's are built before they train


class Branching(keras.Model):
    """Looks at its values, so that nobody can build it from shapes."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        assert float(np.asarray(inputs).sum()) > 0
        return self.dense(inputs)


class Shapeless(Branching):
    """Runs in a graph, but refuses symbols."""

    def call(self, inputs):
        assert not isinstance(inputs, getattr(keras, "KerasTensor", ()))
        return self.dense(inputs[:, : int(inputs.shape[1])])

    def compute_output_spec(self, *args, **kwargs):
        raise NotImplementedError("this model has no symbolic call")


def broadcast_precedes_the_first_step():
    """Losses on the same data, with a rate of 0: they tell the weights of the first step."""
    root = blink.size() - 1
    models = {
        "built": make_model(run_eagerly=False),
        "unbuilt": make_model(built=False, run_eagerly=False),
        "eager": make_model(),
        "eager unbuilt": make_model(built=False),
        "two steps at once": make_model(
            built=False, run_eagerly=False, steps_per_execution=steps_at_once()
        ),
    }
    if not is_torch():
        for name, kind in (("branching", Branching), ("shapeless", Shapeless)):
            models[name] = kind()
            models[name].compile("sgd", "mse", run_eagerly=kind is Branching)
            models[name].optimizer.learning_rate = 0.0
    found = {}
    for name, model in models.items():
        callback = BroadcastGlobalVariablesCallback(root)
        losses = history_of(model, *make_data(0), batch_size=4, callbacks=[callback])["loss"]
        found[name] = [losses, digest(model.weights)]
    return found


def is_torch():
    return keras.backend.backend() == "torch"


def steps_at_once():
    return 1 if is_torch() else 2


def optimizers_are_broadcast():
    """Rank 0 has trained before; the others begin."""
    found = {}
    for name in ("Adam", "SGD"):
        model = make_model(getattr(keras.optimizers, name)(0.1 * (1 + blink.rank())))
        if blink.rank() == 0:
            history_of(model, *make_data(0), batch_size=4, epochs=2)
        model.optimizer.learning_rate = 0.01 * (1 + blink.rank())
        callbacks = [BroadcastGlobalVariablesCallback(0)]
        history_of(
            model, *make_data(1), batch_size=4, initial_epoch=2, epochs=3, callbacks=callbacks
        )
        rate = np.asarray(model.optimizer.learning_rate.numpy()).tolist()
        variables = model.optimizer.variables
        variables = variables() if callable(variables) else variables
        found[name] = [iterations(model), rate, digest(variables), digest(model.weights)]
    return found


def a_model_that_is_built_on_one_rank_only():
    model = make_model(built=blink.rank() == 0, run_eagerly=False)
    losses = history_of(model, *make_data(0), callbacks=[BroadcastGlobalVariablesCallback(0)])
    return [losses["loss"], digest(model.weights)]


def each_fit_begins_alike():
    model = make_model()
    callbacks = [BroadcastGlobalVariablesCallback(0)]
    digests = []
    for epoch in range(2):
        model.set_weights([each + blink.rank() + epoch for each in model.get_weights()])
        apart = digest(model.weights)
        history_of(model, *make_data(0), initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks)
        digests.append([apart, digest(model.weights)])
    return digests


def seeds_stay_apart():
    keras.utils.set_random_seed(blink.rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    history_of(model, *make_data(0), callbacks=[BroadcastGlobalVariablesCallback(0)])
    generator = model.layers[0].seed_generator
    return [digest(model.weights), numbers([generator.state])]


def local_variables_stay():
    model = make_model()
    kernel, *others = model.weights
    before = digest([kernel]), digest(others)
    callback = BroadcastGlobalVariablesCallback(0, local_variables=kernel)
    callback.register_local_var(others[-1])
    history_of(model, *make_data(0), callbacks=[callback])
    return [before[0], digest([kernel]), before[1], digest(others[:-1]), digest(others)]


def training_keeps_weights_equal():
    """Different data and weights on each rank, in every way to make an optimizer."""
    found = {}
    for name, arguments in {
        "SGD": {"momentum": 0.9},
        "Adam": {},
    }.items():
        optimizer = DistributedOptimizer(getattr(keras.optimizers, name)(0.05, **arguments))
        model = make_model(optimizer, built=name == "Adam", run_eagerly=name == "Adam")
        callbacks = [
            LearningRateWarmupCallback(0.05, warmup_epochs=2),
            BroadcastGlobalVariablesCallback(0),
            MetricAverageCallback(),
        ]
        data = make_data(blink.rank())
        history = history_of(
            model, *data, batch_size=4, epochs=3, callbacks=callbacks, validation_data=data
        )
        found[name] = [digest(model.weights), history]
    return found


def without_the_callback_weights_differ():
    model = make_model(DistributedOptimizer(keras.optimizers.SGD(0.05)))
    history_of(model, *make_data(blink.rank()), batch_size=4)
    return digest(model.weights)


def what_does_not_fit_together():
    rank, data = blink.rank(), make_data(0)
    broadcast = BroadcastGlobalVariablesCallback(0)

    def fit(model, callbacks, **arguments):
        return raised(
            lambda: model.fit(*data, **{**ALIKE, "epochs": 3, **arguments}, callbacks=callbacks)
        )

    extra = [MetricAverageCallback()] if rank else []
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2 + rank)])
    other.compile("sgd", "mse", run_eagerly=True)
    return {
        "epochs": fit(make_model(), [broadcast], initial_epoch=rank),
        "callbacks": fit(make_model(), [broadcast, *extra]),
        "models": fit(other, [broadcast]),
        "optimizers": fit(make_model(keras.optimizers.SGD(0.1, momentum=0.5 * rank)), [broadcast]),
        "afterwards": fit(make_model(), [broadcast]),
    }


def bad_arguments():
    model, data = make_model(), make_data(0)

    def fit(callback):
        return raised(lambda: model.fit(*data, **ALIKE, callbacks=[callback]))

    return {
        "root": fit(BroadcastGlobalVariablesCallback(blink.size())),
        "local": raised(lambda: BroadcastGlobalVariablesCallback(0, local_variables=[3])),
        "unregistered": fit(MetricAverageCallback(process_set=blink.ProcessSet([0]))),
    }


def one_set_trains():
    """Ranks 0 and 1 are alike afterwards, others as they were."""
    if blink.size() < 3:
        return None
    some = blink.add_process_set([0, 1])
    model = make_model()
    before = digest(model.weights)
    callbacks = [
        BroadcastGlobalVariablesCallback(1, process_set=some),
        MetricAverageCallback(process_set=some),
    ]
    history = history_of(model, *make_data(blink.rank()), callbacks=callbacks)
    blink.remove_process_set(some)
    after = digest(model.weights)
    return [before, after, history["loss"], allgather_object(after)]
