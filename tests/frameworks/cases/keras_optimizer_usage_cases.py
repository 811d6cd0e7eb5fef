"""What is told to those who use wrapped optimizers, and the other names of blinkrun.tf.keras."""

import warnings

import keras
import numpy as np
from keras_optimizer_parts import batches, fit, mlp, raised

import blinkrun.tf.keras as blink
from blinkrun.tf.keras import backend

optimizers = keras.optimizers


def wrong_arguments_of_optimizers():
    """Of `DistributedOptimizer`."""
    given = {
        "op": {"op": blink.Max},
        "passes": {"backward_passes_per_step": 0},
        "predivide": {"gradient_predivide_factor": 0.0},
        "predivide with Sum": {"gradient_predivide_factor": 2.0, "op": blink.Sum},
        "groups": {"groups": "all"},
        "bucket_bytes": {"bucket_bytes": 0},
        "process_set": {"process_set": [0, 1]},
        "compression": {"compression": "fp16"},
    }
    return {
        name: raised(lambda each=each: blink.DistributedOptimizer(optimizers.SGD(), **each))
        for name, each in given.items()
    }


def not_optimizers():
    """What is no optimizer that can be wrapped."""
    wrapped = blink.DistributedOptimizer(optimizers.SGD())
    both = optimizers.SGD(gradient_accumulation_steps=2)
    around = optimizers.LossScaleOptimizer(blink.DistributedOptimizer(optimizers.SGD()))
    given = {
        "twice": lambda: blink.DistributedOptimizer(wrapped),
        "inside": lambda: blink.DistributedOptimizer(around),
        "class": lambda: blink.DistributedOptimizer(optimizers.SGD),
        "name": lambda: blink.DistributedOptimizer("adam"),
        "other": lambda: blink.DistributedOptimizer(np.ones(1)),
        "two ways": lambda: blink.DistributedOptimizer(both, backward_passes_per_step=2),
        "layers": lambda: blink.PartialDistributedOptimizer(optimizers.SGD(), local_layers=3),
        "classes": lambda: blink.load_model("no.keras", custom_optimizers=["SGD"]),
    }
    return {name: raised(call) for name, call in given.items()}


def parts_of_a_multi_optimizer():
    """Those of a MultiOptimizer inside a LossScaleOptimizer would come too late."""
    if not hasattr(optimizers, "MultiOptimizer"):
        return None
    part = blink.DistributedOptimizer(optimizers.SGD(0.1))
    around = optimizers.LossScaleOptimizer(optimizers.MultiOptimizer(lambda variable: part))
    variable = keras.Variable(np.ones(2, "float32"))
    return raised(lambda: around.apply([keras.ops.ones(2)], [variable]))


def a_variable_that_came_later():
    model = mlp()
    model.compile(blink.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    mine, _ = batches(steps=1)
    fit(model, mine, 4)
    late = keras.Variable(np.ones(2, "float32"), name="late")
    return raised(lambda: model.optimizer.apply([keras.ops.ones(2)], [late]))


def too_few_gradients():
    optimizer = blink.DistributedOptimizer(optimizers.SGD(0.1))
    variable = keras.Variable(np.ones(2, "float32"), name="w")
    return [
        raised(lambda: optimizer.apply([], [variable])),
        raised(lambda: optimizer.apply([keras.ops.ones(2)], [variable, variable])),
        raised(lambda: optimizer.apply([keras.ops.ones(2)])),
    ]


def ranks_that_differ():
    """In shapes, in variables, in arguments, in which gradients there are."""
    last = blink.rank() == blink.size() - 1

    def step(shape, name="w", gradients=1, **kwargs):
        optimizer = blink.DistributedOptimizer(optimizers.SGD(0.1), **kwargs)
        variables = [keras.Variable(np.ones(shape, "float32"), name=f"{name}{i}") for i in range(2)]
        grads = [keras.ops.ones(shape), keras.ops.ones(shape) if gradients == 2 else None]
        return raised(lambda: optimizer.apply(grads, variables))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Gradients do not exist")
        return {
            "shape": step((3,) if last else (2,)),
            "name": step((2,), "v" if last else "w"),
            "argument": step((2,), op=blink.Sum if last else blink.Average),
            "absent": step((2,), gradients=2 if last else 1),
            "after": step((2,)),
        }


def values():
    """Collectives on whatever makes a tensor."""
    rank = blink.rank()
    variable = keras.Variable(np.full((2,), rank, "float32"), trainable=False)
    results = {
        "average": blink.allreduce(np.arange(3.0) + rank),
        "number": blink.allreduce(float(rank), op=blink.Sum),
        "variable": blink.allreduce(variable, op=blink.Max),
        "scaled": blink.allreduce([1.0, 2.0], op=blink.Sum, prescale_factor=2.0),
        "compressed": blink.allreduce([1.0, 2.0], compression=blink.Compression.fp16),
        "gathered": blink.allgather(np.full((rank + 1, 1), rank)),
        "from the last": blink.broadcast([rank, 7], root_rank=blink.size() - 1),
        "scattered": blink.reducescatter(np.ones((blink.size() + 1, 2), "float32"), op=blink.Sum),
    }
    return {name: np.asarray(each).tolist() for name, each in results.items()}


def variables_of_all_kinds():
    """`broadcast_variables` takes variables of any dtype."""
    made = [
        keras.Variable(np.full((2,), blink.rank()), dtype=dtype, trainable=False)
        for dtype in ("float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8")
    ]
    blink.broadcast_variables(made, root_rank=blink.size() - 1)
    return [backend.host_values([each])[0].astype("float64").tolist() for each in made]


def bad_values():
    return {
        "global": raised(lambda: blink.broadcast_global_variables(0)),
        "root": raised(lambda: blink.broadcast([1.0], root_rank=blink.size())),
        "elastic": raised(lambda: blink.elastic),
        "nothing": raised(lambda: blink.nothing),
    }


def names():
    """All names are there."""
    return [name for name in blink.__all__ if not hasattr(blink, name)]


CASES = [
    "wrong_arguments_of_optimizers",
    "not_optimizers",
    "parts_of_a_multi_optimizer",
    "a_variable_that_came_later",
    "too_few_gradients",
    "ranks_that_differ",
    "values",
    "variables_of_all_kinds",
    "bad_values",
    "names",
]
