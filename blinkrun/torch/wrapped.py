"""The class that `DistributedOptimizer` puts in front of an optimizer's own."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from blinkrun.adapter.process_sets import ProcessSet
from blinkrun.errors import GradientOrderError
from blinkrun.torch.reducer import Reducer
from blinkrun.torch.settings import Settings, at_least


@dataclass(slots=True)
class State:
    """What a wrapped optimizer keeps beside its own attributes.

    Attributes
    ----------
    skips : bool
        Whether `step` takes the gradients as they are.
    was_asked : bool
        Whether `synchronize` has been called for this step.
    num_steps : int
        Steps that were taken.
    """

    settings: Settings
    reducer: Reducer
    skips: bool = False
    was_asked: bool = False
    num_steps: int = 0


class DistributedMixin:
    """What `DistributedOptimizer` puts in front of an optimizer's own class."""

    _blinkrun: State
    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Wait for the global gradients and update the parameters; every rank calls it.

        With a closure, returns its loss reduced over all ranks by the optimizer's `op`.
        """
        state = self._blinkrun
        own_step = super().step  # type: ignore[misc]
        if closure is not None:
            loss = own_step(closure if state.skips else self._reducing(closure), **kwargs)
            self._finish_step()
            return loss
        if not state.skips:
            self._warn_if_asked()
            self._ensure_synchronized()
        elif state.reducer.began:
            raise GradientOrderError(
                "step() in skip_synchronize() with new gradients; call synchronize() before it"
            )
        self._end_step()
        loss = own_step(**kwargs)
        self._finish_step()
        return loss

    # torch wraps a step that does not say so in its profiler and its step hooks; ours calls one
    # that is wrapped.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Return when every gradient holds its global value; every rank calls it.

        On a CUDA device it does for what comes next in the current stream; nothing waits for the
        device. The next ``step()`` then takes the gradients as they are.
        """
        self._refuse_if_paused("synchronize()")
        self._blinkrun.reducer.finish()
        self._blinkrun.was_asked = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make ``step()`` in this context take the gradients as they are."""
        state = self._blinkrun
        before, state.skips = state.skips, True
        try:
            yield
        finally:
            state.skips = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Make backward passes in this context add to the gradients of this rank only.

        They do not count for `backward_passes_per_step`. The first backward pass after it brings
        what they have added into the reduction.
        """
        reducer = self._blinkrun.reducer
        before, reducer.is_paused = reducer.is_paused, True
        try:
            yield
        finally:
            reducer.is_paused = before

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Drop or clear the gradients, as the optimizer's own method does.

        Raises
        ------
        GradientOrderError
            If gradients are being reduced: between ``backward()`` and ``step()``.
        """
        reducer = self._blinkrun.reducer
        if reducer.has_ready:
            raise GradientOrderError(
                "zero_grad() between backward() and step(); call step() or synchronize() first"
            )
        reducer.forget()
        self._blinkrun.was_asked = False
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as the optimizer's own method does; every rank calls it."""
        state = self._blinkrun
        if state.reducer.began:
            raise GradientOrderError(
                "add_param_group() between backward() and step(); call step() first"
            )
        super().add_param_group(param_group)  # type: ignore[misc]
        state.reducer.close()
        try:
            state.reducer = state.settings.reducer_for(self)
        except Exception:
            self.param_groups.pop()
            state.reducer = state.settings.reducer_for(self)
            raise

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are added up before a step; between two steps."""
        if self._blinkrun.reducer.began:
            raise GradientOrderError(
                "set_backward_passes_per_step() between backward() and step(); call step() first"
            )
        self._blinkrun.settings.passes = at_least("backward_passes_per_step", passes, 1)
        self._blinkrun.reducer.set_passes(passes)

    # ---- what scripts for Horovod look at ------------------------------------------------------

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are added up before they are reduced."""
        return self._blinkrun.settings.passes

    @property
    def op(self) -> int:
        """How gradients are reduced."""
        return self._blinkrun.settings.arguments.op

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which gradients are reduced."""
        return self._blinkrun.settings.arguments.process_set

    @property
    def gradient_predivide_factor(self) -> float:
        """By what gradients are divided before they are added up."""
        return self._blinkrun.settings.arguments.gradient_predivide_factor

    @property
    def sparse_as_dense(self) -> bool:
        """Whether sparse gradients are reduced as dense ones."""
        return self._blinkrun.settings.arguments.sparse_as_dense

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {param: name for name, param in self._blinkrun.reducer.named}

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        named, trained = self._blinkrun.reducer.named, self._blinkrun.reducer.trained
        return {named[index][1] for index in trained}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain optimizers: hooks and buckets stay with this one."""
        return _new, (type(self).__bases__[1],), self.__getstate__()  # type: ignore[attr-defined]

    # ---- inside --------------------------------------------------------------------------------

    def _ensure_synchronized(self) -> None:
        """Reduce the gradients unless that has been done for this step."""
        self._refuse_if_paused("step()")
        self._blinkrun.reducer.ensure_done()

    def _agree_on(self, found_inf: list[torch.Tensor]) -> None:
        """Nothing to agree on: all ranks look at the same gradients."""

    def _global_loss(self, loss: Any) -> Any:
        return self._blinkrun.settings.reduce_loss(loss)

    def _end_step(self) -> None:
        """Note that the gradients of this step are used up, whether or not it was taken."""
        self._blinkrun.reducer.is_done = False
        self._blinkrun.was_asked = False

    def _finish_step(self) -> None:
        state = self._blinkrun
        state.num_steps += 1
        if state.settings.check_every:
            state.settings.check(state.reducer.named, state.num_steps)

    def _refuse_if_paused(self, what: str) -> None:
        if self._blinkrun.reducer.is_paused:
            raise GradientOrderError(
                f"{what} in no_sync(), where gradients are not reduced; call it after the context"
            )

    def _warn_if_asked(self) -> None:
        if self._blinkrun.was_asked and not self._blinkrun.reducer.began:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are not reduced again here, but Horovod "
                "does reduce them again; write step() in the context, or leave synchronize() out, "
                "which clipping and GradScaler do not need",
                stacklevel=3,
            )

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return `closure` followed by the reduction of its gradients and its loss."""

        @functools.wraps(closure)
        def reduced() -> Any:
            loss = closure()
            self._ensure_synchronized()
            self._end_step()
            return self._global_loss(loss)

        return reduced


def wrap(optimizer: Any, settings: Settings, mixin: type[DistributedMixin]) -> Any:
    """Return `optimizer` with `mixin` in front of its class; collective, as `settings` are."""
    state = State(settings, settings.reducer_for(optimizer))
    optimizer.__class__ = _distributed_class(type(optimizer), mixin)
    optimizer._blinkrun = state
    _rewrap_step(optimizer)
    return optimizer


@functools.cache
def _distributed_class(base: type, mixin: type) -> type:
    """Return the class over `base` that reduces gradients before it steps."""
    return type(f"Distributed{base.__name__}", (mixin, base), {})


def _new(own_class: type) -> Any:
    """Return an optimizer without content, for a copy or a pickle to fill."""
    return own_class.__new__(own_class)


def _rewrap_step(optimizer: Any) -> None:
    """Put our step in the place of one that a learning rate scheduler has wrapped before.

    The scheduler replaces ``optimizer.step`` by a function that notes the call and goes on to the
    class's step that it found, which is not ours.
    """
    wrapped = optimizer.__dict__.pop("step", None)
    if wrapped is None:
        return
    own_step = optimizer.step.__func__

    @functools.wraps(own_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return own_step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step
