"""The class that `DistributedOptimizer` puts in front of a Keras 3 optimizer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.errors import UsageError
from blinkrun.tf.keras.passes import Passes
from blinkrun.tf.keras.settings import Settings
from blinkrun.tf.keras.shared import Sharing

Apply = Callable[[Sequence[Any], Any], Any]


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
        self._is_passing = False
        self._pending: Sequence[Any] | None = None

    def apply(self, optimizer: Any, own_apply: Apply, grads: Any, variables: Any) -> Any:
        """Carry out ``optimizer.apply``, whose own is `own_apply`, with the gradients of all."""
        if self._is_passing:
            return own_apply(grads, variables)
        grads = list(grads)
        per_step = self.settings.backward_passes_per_step
        if not grads or (per_step == 1 and self.settings.is_alone):
            return own_apply(grads, variables)
        known = known_variables(optimizer, grads, variables)
        if per_step > 1:
            if self.passes is None:
                self.passes = Passes(per_step, self.settings.average_aggregated_gradients)
            with self._passing():
                return self.passes.apply(
                    optimizer,
                    grads,
                    known,
                    lambda sums: own_apply(self.reduce(sums, known), variables),
                )
        if optimizer.gradient_accumulation_steps:  # reduced when they have been added up
            return own_apply(grads, variables)
        reduced = self.reduce(grads, known)
        with self._passing():
            return own_apply(reduced, variables)

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Let gradients pass as they are: they are reduced."""
        before, self._is_passing = self._is_passing, True
        try:
            yield
        finally:
            self._is_passing = before

    @contextmanager
    def accumulating(self, variables: Sequence[Any]) -> Iterator[None]:
        """Have `accumulated` reduce the gradients of `variables`, unless they are reduced."""
        before = self._pending
        self._pending = None if self._is_passing or self.settings.is_alone else variables
        try:
            yield
        finally:
            self._pending = before

    def accumulated(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return gradients that Keras has added up over its accumulation steps, reduced."""
        if self._pending is None:
            return grads
        return self.reduce(grads, self._pending)


class DistributedMixin:
    """What `DistributedOptimizer` puts in front of an optimizer's own class."""

    _blink_settings: Settings
    gradient_accumulation_steps: Any

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Update variables with the gradients of all ranks; every rank calls it."""
        own: Any = super().apply  # type: ignore[misc]
        return self._blink.apply(self, own, grads, trainable_variables)

    def reduce_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return gradients reduced over all ranks, without a step; every rank calls it.

        Parameters
        ----------
        grads : sequence of tensors
            Of `variables`, in their order. None for those that have none, on all ranks.
        """
        return self._blink.reduce(list(grads), list(variables))

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on its rank: it is not reduced.

        It is divided by the number of ranks, unless `scale_local_gradients` is false.
        """
        self._blink.register_local(var)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which gradients are reduced."""
        return self._blink_settings.process_set

    @property
    def _blink(self) -> State:
        state = self.__dict__.get("_blink_state")
        if state is None:
            state = State(self._blink_settings, type(self).__name__)
            self.__dict__["_blink_state"] = state  # past the trackers of variables
        return state

    # ---- where Keras adds gradients up over its `gradient_accumulation_steps` ------------------

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        own: Any = super()._backend_apply_gradients  # type: ignore[misc]
        if not self.gradient_accumulation_steps:
            return own(grads, trainable_variables)
        with self._blink.accumulating(trainable_variables):
            return own(grads, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        own: Any = super()._clip_gradients  # type: ignore[misc]
        return own(self._blink.accumulated(grads) if self.gradient_accumulation_steps else grads)

    # ---- copies --------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        """Return what makes a wrapped optimizer again: Keras' own makes one that is not."""
        return _wrapped_again, (super().__reduce__()[1], self._blink_settings)


def wrap(optimizer: Any, settings: Settings) -> Any:
    """Return `optimizer`, whose class is now a distributed one."""
    from blinkrun.tf.keras import patches  # noqa: PLC0415 - which knows this class

    patches.install()
    object.__setattr__(optimizer, "__class__", class_over(type(optimizer), settings))
    return optimizer


_classes: dict[tuple[type, Settings], type] = {}


def class_over(own: type, settings: Settings) -> type:
    """Return the class over `own` whose optimizers reduce as `settings` say.

    It has the name and module of `own`, and Keras saves it as `own`.
    """
    is_kept = settings.groups is None or isinstance(settings.groups, int)
    if is_kept and (own, settings) in _classes:
        return _classes[own, settings]
    body = {
        "__doc__": own.__doc__,
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "_blink_settings": settings,
    }
    made = type(own.__name__, (DistributedMixin, own), body)
    _save_as(made, own)
    if is_kept:
        _classes[own, settings] = made
    return made


def _save_as(made: type, own: type) -> None:
    """Have Keras write into configurations of `made` what it writes of `own`."""
    from keras.src import api_export  # noqa: PLC0415
    from keras.src.saving import object_registration  # noqa: PLC0415

    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if own in names:
            names[made] = names[own]


def own_class(optimizer: Any) -> type:
    """Return the class that an optimizer had before it was wrapped."""
    kind = type(optimizer)
    while issubclass(kind, DistributedMixin):
        kind = kind.__bases__[1]
    return kind


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer reduces: it is wrapped, or is a LossScaleOptimizer around such a one."""
    while optimizer is not None:
        if isinstance(optimizer, DistributedMixin):
            return True
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False


def known_variables(optimizer: Any, grads: Sequence[Any], variables: Any) -> list[Any]:
    """Return the variables of gradients, checked to be those that the optimizer was built for.

    Raises
    ------
    UsageError
        If there are as many gradients as variables not, or one of them came later.
    """
    if variables is None:
        known = list(optimizer._trainable_variables) if optimizer.built else []
        advice = "give apply() the variables as well, or call build() first"
    else:
        known = list(variables)
        advice = "give a gradient, or None, for each variable"
    if len(known) != len(grads):
        raise UsageError(
            f"{own_class(optimizer).__name__}.apply() has {len(grads)} gradients of {len(known)} "
            f"variables; {advice}"
        )
    if optimizer.built and variables is not None:
        indices = optimizer._trainable_variables_indices
        for each in known:
            if optimizer._var_key(each) not in indices:
                raise UsageError(
                    f"variable '{getattr(each, 'path', each.name)}' is not among the "
                    f"{len(indices)} that this {own_class(optimizer).__name__} was built for: it "
                    "was created later, or is of another model; make and wrap a new optimizer, and "
                    "compile the model with it"
                )
    return known


def _wrapped_again(arguments: Any, settings: Settings) -> Any:
    from keras.src.saving.keras_saveable import KerasSaveable  # noqa: PLC0415

    optimizer = KerasSaveable._unpickle_model(*arguments)
    return optimizer if isinstance(optimizer, DistributedMixin) else wrap(optimizer, settings)
