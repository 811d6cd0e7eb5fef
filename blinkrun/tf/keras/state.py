"""What of a model all ranks must have alike: weights, optimizers' state, metrics' state.

The states of seed generators are left out on purpose: ranks that drew the same dropout masks for
their different samples would train on noise that is correlated over the joined batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import blinkrun
from blinkrun.adapter.objects import allgather_object
from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.errors import MismatchError
from blinkrun.tf import versions
from blinkrun.tf.keras import backend

if versions.is_legacy():
    import tf_keras as keras
else:
    import keras

Specs = list[tuple[str, tuple[int, ...], str]]


@dataclass(frozen=True, slots=True)
class State:
    """Variables of a model by kind, each in an order that is the same on all ranks."""

    weights: Sequence[Any]
    optimizers: Sequence[Any]
    metrics: Sequence[Any]

    def specs(self) -> dict[str, Specs]:
        """Return path, shape and dtype of every variable, by kind."""
        return {
            kind: [_spec(each) for each in getattr(self, kind)]
            for kind in ("weights", "optimizers", "metrics")
        }


def state_of(model: Any, without: Collection[int] = ()) -> State:
    """Return the variables of `model` that there are by now.

    Parameters
    ----------
    model : keras.Model
        Built or not.
    without : collection of int
        What `identities` gives for variables that stay each rank's own.
    """
    return State(
        weights=_others(model.weights, without),
        optimizers=_others([v for each in optimizers_of(model) for v in _state(each)], without),
        metrics=_others([v for each in model.metrics for v in each.variables], without),
    )


def identities(variables: Sequence[Any]) -> set[int]:
    """Return what tells these variables from others, however one comes by them."""
    return {id(each) for v in variables for each in (v, backend.native(v))}


def local_to_optimizers(model: Any) -> set[int]:
    """Return the identities of variables whose gradients stay on their ranks."""
    wrapped = [getattr(inner_optimizer(each), "_blink", None) for each in optimizers_of(model)]
    return {id(v) for each in wrapped if each is not None for v in each.local_variables}


def is_built(model: Any) -> bool:
    """Whether the weights of `model` are there: those of each layer, or it has taken a step."""
    if all(layer.built for layer in model._flatten_layers()):
        return True
    return bool(model.built) and any(_is_built(each) for each in optimizers_of(model))


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer that `model` was compiled with, and those that are attributes of it."""
    kinds = tuple(_optimizer_classes())
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(each): each for each in held if isinstance(each, kinds)}.values())


def build_optimizer(model: Any) -> None:
    """Let the optimizer of a built model make its variables, as its first step would."""
    optimizer = getattr(model, "optimizer", None)
    trainable = model.trainable_variables
    if optimizer is None or not trainable or _is_built(optimizer):
        return
    if hasattr(optimizer, "_create_all_weights"):  # tf_keras.optimizers.legacy
        optimizer._create_all_weights(trainable)
    else:
        optimizer.build(trainable)


def builder_of(optimizer: Any) -> str:
    """Return the name of the method in which an optimizer makes its variables."""
    return "_create_all_weights" if hasattr(optimizer, "_create_all_weights") else "build"


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside of a LossScaleOptimizer, or itself."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def check_alike(state: State, process_set: ProcessSet) -> bool:
    """Compare `state` over the ranks of the set; whether metrics are alike as well.

    Raises
    ------
    MismatchError
        If weights or optimizers differ in number, shape or dtype; on every rank.
    """
    everyone = allgather_object(state.specs(), "keras.state", process_set)
    ranks = process_set.ranks
    for kind, what in (("weights", "model"), ("optimizers", "optimizer")):
        first = everyone[0][kind]
        for rank, theirs in zip(ranks, everyone, strict=True):
            difference = _first_difference(first, theirs[kind])
            if difference:
                raise MismatchError(
                    f"rank {rank}: the {what} has {difference[1]}, rank {ranks[0]} has "
                    f"{difference[0]}; every rank must build the same {what}"
                )
    shapes = [[spec[1:] for spec in theirs["metrics"]] for theirs in everyone]
    return all(each == shapes[0] for each in shapes)


def broadcast_state(state: State, root: int, process_set: ProcessSet, *, metrics: bool) -> None:
    """Give all ranks of the set the values that `root` has; the ranks' states are alike."""
    kinds = {"weight": state.weights, "optimizer": state.optimizers}
    if metrics:
        kinds["metric"] = state.metrics
    variables = [each for group in kinds.values() for each in group]
    names = [f"{kind} {index}" for kind, group in kinds.items() for index in range(len(group))]
    values = backend.host_values(variables)
    given = backend.broadcast_arrays(values, names, root, process_set)
    if blinkrun.rank() != root:
        backend.assign(variables, given)


def _others(variables: Sequence[Any], without: Collection[int]) -> list[Any]:
    unique = {id(each): each for each in variables}
    if not without:
        return list(unique.values())
    return [v for v in unique.values() if not {id(v), id(backend.native(v))} & set(without)]


def _optimizer_classes() -> list[type]:
    classes = [keras.optimizers.Optimizer]
    legacy = getattr(keras.optimizers, "legacy", None)
    if hasattr(legacy, "Optimizer"):
        classes.append(legacy.Optimizer)
    return classes


def _is_built(optimizer: Any) -> bool:
    if hasattr(optimizer, "_create_all_weights"):
        return len(optimizer.variables()) > 1  # beside iterations
    return bool(getattr(optimizer, "built", False) or getattr(optimizer, "_built", False))


def _state(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer, hyperparameters and loss scale among them."""
    variables = optimizer.variables
    found = list(variables() if callable(variables) else variables)
    hypers = getattr(inner_optimizer(optimizer), "_hyper", {})
    found += [each for _, each in sorted(hypers.items()) if hasattr(each, "assign")]
    scale = getattr(optimizer, "_loss_scale", None)  # of tf_keras; dynamic, or a float
    if hasattr(scale, "current_loss_scale"):
        found += [scale.current_loss_scale, scale.counter]
    rate = getattr(optimizer, "_learning_rate", None)
    if hasattr(rate, "assign"):
        found.append(rate)
    return found


def _spec(variable: Any) -> tuple[str, tuple[int, ...], str]:
    name = getattr(variable, "path", None) or variable.name
    dtype = variable.dtype
    return str(name), tuple(variable.shape), str(getattr(dtype, "name", dtype))


def _first_difference(ours: Specs, theirs: Specs) -> tuple[str, str] | None:
    """Return the first place where two ranks differ, in words; names alone may differ."""
    for mine, other in zip(ours, theirs, strict=False):
        if mine[1:] != other[1:]:
            return _shown(mine), _shown(other)
    if len(ours) != len(theirs):
        return f"{len(ours)} variables", f"{len(theirs)} variables"
    return None


def _shown(spec: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, dtype = spec
    return f"'{name}' with shape {shape} of {dtype}"


def build_config(model: Any) -> Mapping[str, Any] | None:
    """Return what another rank can build the same model from; None if it cannot be told."""
    try:
        return model.get_build_config() if model.built else None
    except (AttributeError, NotImplementedError):
        return None
