"""`DistributedOptimizer` for the optimizers of tf_keras, which is Keras 2.

There are two families: ``tf_keras.optimizers`` compute gradients, aggregate and apply them;
``tf_keras.optimizers.legacy`` do the same by methods of other names. Gradients are reduced where
they are computed, still scaled, or where they are aggregated, if they were computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.tf.aggregation import Aggregation
from blinkrun.tf.keras.settings import Settings
from blinkrun.tf.keras.shared import Sharing

Pairs = list[tuple[Any, Any]]

_PUBLIC_NAMES = ("_keras_api_names", "_keras_api_names_v1")


class State(Sharing):
    """What a wrapped optimizer keeps beside its own attributes.

    Attributes
    ----------
    passes : Passes or None
        Where gradients are added up between steps, for `backward_passes_per_step` above 1.
    """

    def __init__(self, settings: Settings, label: str) -> None:
        super().__init__(settings, label)
        self.passes: Passes | None = None
        if settings.backward_passes_per_step > 1:
            self.passes = Passes(settings, self.reduce)
        self._computed_in: Any = None

    def computed(self, pairs: Any) -> Pairs:
        """Return reduced gradients, which `aggregated` will take for what they are."""
        self._computed_in = _where()
        return self._reduced(list(pairs))

    def aggregated(self, pairs: Any) -> Pairs:
        """Return reduced gradients, if they are not those that have been `computed`."""
        before, self._computed_in = self._computed_in, None
        return list(pairs) if before == _where() else self._reduced(list(pairs))

    def _reduced(self, pairs: Pairs) -> Pairs:
        if not pairs or (self.passes is None and self.settings.is_alone):
            return pairs
        variables = [variable for _, variable in pairs]
        reduce = self.reduce if self.passes is None else self.passes.add
        return list(zip(reduce([grad for grad, _ in pairs], variables), variables, strict=True))


def _where() -> Any:
    """Return what tells apart the graphs in which ops are made; True outside of them."""
    return True if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())


class Passes:
    """Gradients added up over several passes; reduced with the last one.

    Parameters
    ----------
    settings : Settings
        How many make a step, and what becomes of their sum.
    reduce : callable
        Reduces gradients of variables.
    """

    def __init__(self, settings: Settings, reduce: Callable[[Any, Any], list[Any]]) -> None:
        self._sums = Aggregation(
            settings.backward_passes_per_step,
            average=settings.average_aggregated_gradients,
            sparse_as_dense=settings.sparse_as_dense,
            name="passes",
        )
        self._reduce = reduce

    @property
    def counter(self) -> Any:
        """How many passes there have been since the last step: a variable, or 0 before all."""
        variables = self._sums.variables
        return variables[0] if variables else tf.constant(0)

    def add(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add gradients up; returns the reduced sums with the last pass, zeros with others.

        Zeros, as a LossScaleOptimizer looks at them: on all ranks it is to see the same.
        """
        sums = self._sums.compute(grads, lambda due: self._reduce(due, variables))
        with tf.control_dependencies([each for each in sums if each is not None]):
            is_due = tf.equal(self.counter.read_value(), 0)
        return [None if each is None else tf.where(is_due, each, 0) for each in sums]

    def step_if_due(self, grads: Sequence[Any], step: Callable[[], Any], optimizer: Any) -> Any:
        """Call `step` if the last pass has been added; else only count the iteration."""

        def last() -> tf.Tensor:
            step()
            return tf.convert_to_tensor(optimizer.iterations)

        def early() -> tf.Tensor:
            return tf.convert_to_tensor(optimizer.iterations.assign_add(1))

        return self._sums.apply(grads, last, early)


class LegacyMixin:
    """What `DistributedOptimizer` puts in front of the class of a tf_keras optimizer."""

    _blink_settings: Settings
    _HAS_AGGREGATE_GRAD = True

    # ---- where gradients are computed ----------------------------------------------------------

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Return pairs of gradients, those of all ranks, and variables; every rank calls it."""
        own: Any = getattr(super(), "compute_gradients", None)
        if own is None:
            return self._compute_gradients(loss, var_list, None, tape)
        return self._blink.computed(own(loss, var_list, tape=tape))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        own: Any = getattr(super(), "_compute_gradients", None)
        if own is None:
            return self.compute_gradients(loss, var_list, tape)
        return self._blink.computed(own(loss, var_list, grad_loss, tape=tape))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return the gradients of all ranks; every rank calls it."""
        grads = super().get_gradients(loss, params)  # type: ignore[misc]
        pairs = self._blink.computed(zip(grads, tf.nest.flatten(params), strict=True))
        return [grad for grad, _ in pairs]

    # ---- where they are aggregated -------------------------------------------------------------

    def aggregate_gradients(self, grads_and_vars: Any) -> Pairs:
        """Return pairs whose gradients are those of all ranks; every rank calls it."""
        own: Any = getattr(super(), "aggregate_gradients", None)
        if own is None:
            return self._aggregate_gradients(grads_and_vars)
        return list(own(self._blink.aggregated(grads_and_vars)))

    def _aggregate_gradients(self, grads_and_vars: Any) -> Pairs:
        own: Any = getattr(super(), "_aggregate_gradients", None)
        if own is None:
            return self.aggregate_gradients(grads_and_vars)
        return list(own(self._blink.aggregated(grads_and_vars)))

    # ---- where they are applied ----------------------------------------------------------------

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Update variables; gradients that were not computed here are reduced before."""
        own: Any = super().apply_gradients  # type: ignore[misc]
        passes = self._blink.passes
        if passes is None:
            return own(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        if _is_to_aggregate(kwargs):
            pairs = self._blink.aggregated(pairs)
        _make_slots(self, pairs)
        kwargs = {**kwargs, **_no_aggregation(self)}
        grads = [grad for grad, _ in pairs]
        return passes.step_if_due(grads, lambda: own(pairs, *args, **kwargs), self)

    # ---- what else there is --------------------------------------------------------------------

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on its rank: it is not reduced.

        It is divided by the number of ranks, unless `scale_local_gradients` is false.
        """
        self._blink.register_local(var)

    def reduce_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return gradients reduced over all ranks, without a step; every rank calls it."""
        return self._blink.reduce(list(grads), list(variables))

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which gradients are reduced."""
        return self._blink_settings.process_set

    @property
    def _agg_helper(self) -> Passes | None:
        return self._blink.passes

    @property
    def _blink(self) -> State:
        state = self.__dict__.get("_blink_state")
        if state is None:
            state = State(self._blink_settings, type(self).__name__)
            self.__dict__["_blink_state"] = state  # past the trackers of variables
        return state


def is_optimizer(optimizer: Any) -> bool:
    """Whether it is an optimizer of tf_keras, of either family."""
    import tf_keras  # noqa: PLC0415

    optimizers = tf_keras.optimizers
    return isinstance(optimizer, optimizers.Optimizer | optimizers.legacy.Optimizer)


def wrap(optimizer: Any, settings: Settings) -> Any:
    """Return `optimizer`, whose class is now a distributed one.

    Of a LossScaleOptimizer it is the inner optimizer's class: that is asked to compute and to
    aggregate gradients before they are looked at.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        wrap(inner, settings)
        return optimizer
    object.__setattr__(optimizer, "__class__", _class_over(type(optimizer), settings))
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer reduces: it is wrapped, or is a LossScaleOptimizer around such a one."""
    while optimizer is not None:
        if isinstance(optimizer, LegacyMixin):
            return True
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False


def _class_over(own: type, settings: Settings) -> type:
    body = {
        "__doc__": own.__doc__,
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "_blink_settings": settings,
        # By these tf_keras knows what is its own, and saves it by its public name.
        **{name: own.__dict__[name] for name in _PUBLIC_NAMES if name in own.__dict__},
    }
    return type(own.__name__, (LegacyMixin, own), body)


def _is_to_aggregate(kwargs: dict[str, Any]) -> bool:
    return not kwargs.get("skip_gradients_aggregation", False) and kwargs.get(
        "experimental_aggregate_gradients", True
    )


def _no_aggregation(optimizer: Any) -> dict[str, bool]:
    """Return the argument of ``apply_gradients`` that says that it has been done."""
    import tf_keras  # noqa: PLC0415

    if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
        return {"experimental_aggregate_gradients": False}
    return {"skip_gradients_aggregation": True}


def _make_slots(optimizer: Any, pairs: Pairs) -> None:
    """Have an optimizer make its variables, which it cannot in a branch of a graph."""
    variables = [variable for grad, variable in pairs if grad is not None]
    with tf.init_scope():
        if hasattr(optimizer, "_create_all_weights"):
            optimizer._create_all_weights(variables)
        else:
            optimizer.build([variable for _, variable in pairs])
