"""Training with wrapped Keras optimizers: the same weights on all ranks, and those of one process.

Every case trains on other samples on each rank. `compared` says what the weights are, and how far
they are from those of a plain optimizer on the joined batches.
"""

import keras
from keras_optimizer_parts import (
    FEATURES,
    TARGETS,
    batches,
    compared,
    digest,
    fit,
    for_size,
    mlp,
    no_warnings_of,
    outcome,
    requests_of,
    train_alone,
)

import blinkrun.tf.keras as blink
from blinkrun.tf.keras import backend

optimizers = keras.optimizers


def every_optimizer():
    """All classes that Keras has. One of them is not the same in a graph as out of it."""
    no_steps = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    found = {}
    for name, kind in sorted(vars(optimizers).items()):
        is_one = isinstance(kind, type) and issubclass(kind, optimizers.Optimizer)
        if is_one and name not in no_steps:
            found[name] = compared(lambda kind=kind: kind(0.01), linear, by_fit="Free" in name)
    return found


def several_optimizers_in_one():
    """Each variable has its own optimizer; one of them accumulates."""

    def make():
        adam, sgd = optimizers.Adam(0.1), optimizers.SGD(0.1, gradient_accumulation_steps=2)
        return optimizers.MultiOptimizer(lambda v: adam if v.name == "kernel" else sgd)

    return compared(make, linear) if hasattr(optimizers, "MultiOptimizer") else None


def unwrapped():
    """What comes out without blinkrun: the control of all other cases."""
    return compared(lambda: optimizers.SGD(0.1), wrap=lambda optimizer: optimizer)


def linear():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(TARGETS)])


def options_of_optimizers():
    """What Keras does with gradients once they are applied, which are those of all ranks."""
    schedule = optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    makes = {
        "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.05),
        "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.05),
        "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.01),
        "ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
        "weight_decay": lambda: optimizers.AdamW(0.1, weight_decay=0.1),
        "schedule": lambda: optimizers.SGD(schedule, momentum=0.9),
        "loss_scale_factor": lambda: optimizers.SGD(0.1, loss_scale_factor=8.0),
    }
    return {name: compared(make, linear) for name, make in makes.items()}


def arguments():
    """What `DistributedOptimizer` may be asked for."""
    asked = {
        "bf16": {"compression": blink.Compression.bf16},
        "fp16": {"compression": blink.Compression.fp16},
        "predivide": {"gradient_predivide_factor": 4.0},
        "groups": {"groups": 2},
        "buckets": {"bucket_bytes": 64},
        "named": {"name": "mine"},
    }
    return {
        name: compared(
            lambda: optimizers.SGD(0.1),
            linear,
            lambda optimizer, given=given: blink.DistributedOptimizer(optimizer, **given),
            run_eagerly=True,
        )
        for name, given in asked.items()
    }


def groups_of_variables():
    kernels = []

    def make_model():
        model = mlp()
        kernels.append([v for v in model.trainable_variables if v.name == "kernel"])
        return model

    def wrap(optimizer):
        return blink.DistributedOptimizer(optimizer, groups=kernels[:1])

    return compared(lambda: optimizers.SGD(0.1), make_model, wrap)


def op_sum():
    """With a loss that is a sum, sums of gradients are what one process has."""
    return compared(
        lambda: optimizers.SGD(0.01),
        linear,
        lambda optimizer: blink.DistributedOptimizer(optimizer, op=blink.Sum),
        loss=keras.losses.MeanSquaredError(reduction="sum"),
    )


def accumulation():
    """Keras adds up gradients, which are reduced once for all of them."""
    make = optimizers.Adam
    result = compared(lambda: make(0.1, gradient_accumulation_steps=2, clipnorm=0.1), linear)
    model = linear()
    model.compile(blink.DistributedOptimizer(make(0.1, gradient_accumulation_steps=2)), "mse")
    mine, _ = batches()
    fit(model, mine, 4)
    result["requests"] = requests_of(lambda: fit(model, mine, 4))
    return result


def passes():
    """Gradients added up by `backward_passes_per_step`, as Keras does it if they are averaged."""
    result = compared(
        lambda: optimizers.Adam(0.1),
        linear,
        lambda optimizer: blink.DistributedOptimizer(
            optimizer, backward_passes_per_step=2, average_aggregated_gradients=True
        ),
        lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    )
    model = linear()
    wrapped = blink.DistributedOptimizer(optimizers.SGD(0.1), backward_passes_per_step=2)
    model.compile(wrapped, "mse")
    mine, _ = batches()
    fit(model, [each[:12] for each in mine], 4)
    result["iterations"] = int(backend.host_values([wrapped.iterations])[0])
    result["variables"] = len(wrapped.variables)  # iterations and rate: no sums are saved
    return result


def passes_without_average():
    """Sums of two passes are twice their mean."""
    return compared(
        lambda: optimizers.SGD(0.1),
        linear,
        lambda optimizer: blink.DistributedOptimizer(optimizer, backward_passes_per_step=2),
        lambda: optimizers.SGD(0.2, gradient_accumulation_steps=2),
    )


def frozen_layers():
    def make():
        model = mlp()
        model.layers[0].trainable = False
        return model

    return compared(lambda: optimizers.Adam(0.1), make)


def gradients_that_are_none():
    """A layer whose output does not reach the loss."""

    def make():
        keras.utils.set_random_seed(1)
        given = keras.Input((FEATURES,))
        used, unused = keras.layers.Dense(TARGETS)(given), keras.layers.Dense(2)(given)
        return keras.Model(given, [used, unused])

    mine, joined = batches()
    ours, alone = make(), make()
    with no_warnings_of("Gradients do not exist"):
        for model, data, batch in ((ours, mine, 4), (alone, joined, 4 * blink.size())):
            wrapped = optimizers.Adam(0.1)
            if model is ours:
                wrapped = blink.DistributedOptimizer(wrapped)
            model.compile(wrapped, loss=["mse", None])
            fit(model, data, batch)
    return outcome(ours, alone, backend.host_values(make().variables))


def partial_batches():
    """One rank alone has a last batch of another size, and traces its graph again for it."""
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    mine, _ = batches(steps=3)
    count = 10 if blink.rank() == 0 else 12
    fit(model, [each[:count] for each in mine], 4, epochs=2)
    return digest(model)


def models_made_before():
    """A rank that has made other models has other names of layers."""
    for _ in range(blink.rank()):
        mlp()
    return compared(lambda: optimizers.SGD(0.1))


def loops_of_ones_own():
    """`train_on_batch`, and `apply` by hand, with and without variables."""
    mine, joined = batches()
    model, alone = linear(), linear()
    start = backend.host_values(model.variables)
    wrapped = blink.DistributedOptimizer(optimizers.Adam(0.1))
    model.compile(wrapped, "mse")
    for first in range(0, 16, 4):
        model.train_on_batch(*[each[first : first + 4] for each in mine])
    train_alone(alone, optimizers.Adam(0.1), joined, 4 * blink.size())
    result = outcome(model, alone, start)
    ones = [keras.ops.ones(v.shape) * (blink.rank() + 1.0) for v in model.trainable_variables]
    before = backend.host_values([model.trainable_variables[0]])[0]
    sgd = blink.DistributedOptimizer(optimizers.SGD(1.0))
    sgd.build(model.trainable_variables)
    sgd.apply(ones)
    sgd.apply_gradients(zip(ones, model.trainable_variables, strict=True))
    after = backend.host_values([model.trainable_variables[0]])[0]
    reduced = sgd.reduce_gradients(ones[:1], model.trainable_variables[:1])
    result["steps"] = float((before - after).mean())
    result["reduced"] = float(keras.ops.mean(reduced[0]))
    return result


def two_optimizers():
    """A model with a train_step of its own, which trains two parts by two optimizers."""
    mine, _ = batches(steps=2)
    first, second = linear(), mlp()
    one = blink.DistributedOptimizer(optimizers.SGD(0.1))
    other = blink.DistributedOptimizer(optimizers.Adam(0.1))
    for model, optimizer in ((first, one), (second, other)):
        model.compile(optimizer, "mse")
    for start in (0, 4):
        for model in (first, second):
            model.train_on_batch(*[each[start : start + 4] for each in mine])
    return [digest(first), digest(second)]


def one_optimizer_for_two_models():
    """Keras refuses to train another model with an optimizer that has been built."""
    mine, _ = batches(steps=1)
    optimizer = blink.DistributedOptimizer(optimizers.SGD(0.1))
    first, second = linear(), mlp()
    first.compile(optimizer, "mse")
    first.train_on_batch(*mine)
    second.compile(optimizer, "mse")
    try:
        second.train_on_batch(*mine)
    except ValueError as err:
        return str(err)
    return None


def a_set_of_ranks():
    """Ranks of a process set train together, others by themselves."""
    if blink.size() < 3:
        return None
    some = blink.add_process_set([0, 2])
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1), process_set=some), "mse")
    mine, _ = batches()
    fit(model, mine, 4)
    blink.remove_process_set(some)
    return digest(model)


def layers_of_ones_own():
    """Gradients of local layers are not reduced, and divided by the number of ranks."""
    model = mlp()
    before = backend.host_values(model.layers[0].trainable_variables)
    wrapped = blink.PartialDistributedOptimizer(optimizers.SGD(1.0), local_layers=model.layers[0])
    ones = [keras.ops.ones(v.shape) * (blink.rank() + 1.0) for v in model.trainable_variables]
    wrapped.apply(ones, model.trainable_variables)
    after = backend.host_values(model.layers[0].trainable_variables)
    return {
        "local": float((before[0] - after[0]).mean()),
        "shared": digest(model.layers[1]),
    }


def learning_rate():
    """The learning rate of a wrapped optimizer is set as ever."""
    optimizer = blink.DistributedOptimizer(optimizers.SGD(0.1))
    optimizer.learning_rate = 0.5
    rates = [float(backend.host_values([optimizer.learning_rate])[0])]
    optimizer.learning_rate.assign(0.25)
    rates.append(float(backend.host_values([optimizer.learning_rate])[0]))
    scheduled = blink.DistributedOptimizer(
        optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    )
    rates.append(float(scheduled.learning_rate))
    return rates


ALL = [
    "every_optimizer",
    "several_optimizers_in_one",
    "unwrapped",
    "options_of_optimizers",
    "arguments",
    "groups_of_variables",
    "op_sum",
    "accumulation",
    "passes",
    "passes_without_average",
    "frozen_layers",
    "gradients_that_are_none",
    "partial_batches",
    "models_made_before",
    "loops_of_ones_own",
    "two_optimizers",
    "one_optimizer_for_two_models",
    "a_set_of_ranks",
    "layers_of_ones_own",
    "learning_rate",
]
ONE = ["accumulation", "passes", "loops_of_ones_own", "learning_rate"]
THREE = [
    "several_optimizers_in_one",
    "unwrapped",
    "groups_of_variables",
    "accumulation",
    "passes",
    "passes_without_average",
    "frozen_layers",
    "gradients_that_are_none",
    "partial_batches",
    "models_made_before",
    "loops_of_ones_own",
    "two_optimizers",
    "one_optimizer_for_two_models",
    "a_set_of_ranks",
    "layers_of_ones_own",
]
CASES = for_size(ALL, ONE, THREE)
