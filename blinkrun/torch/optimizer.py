"""`DistributedOptimizer`: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import blinkrun
from blinkrun.errors import UsageError
from blinkrun.torch.amp import teach_grad_scaler
from blinkrun.torch.reducer import Reducer
from blinkrun.torch.settings import Settings, names_by_identity
from blinkrun.types import Op


def DistributedOptimizer(  # noqa: N802, PLR0913 - Horovod's name, and isinstance sees a class of its own
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    op: Op = Op.AVERAGE,
    backward_passes_per_step: int = 1,
    bucket_bytes: int | None = None,
    overlap: str | None = None,
) -> Any:
    """Return `optimizer`, made to step with the gradients of all ranks.

    Every rank calls it, with the same parameters. It is the object that was given, whose class is
    now made over the one that it had: ``isinstance``, ``state_dict``, ``param_groups``, learning
    rate schedulers (made before or after) and ``torch.amp.GradScaler`` work as before, and what
    the optimizer has learned so far stays.

    As backward makes gradients they are copied into buckets in memory that all ranks of a host
    see; ``step()`` returns when each bucket has been reduced and the parameters updated. From
    then on ``param.grad`` is a view of its bucket.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any optimizer over CPU parameters that are float16, bfloat16, float32 or float64.
    named_parameters : iterable of (str, torch.Tensor), optional
        ``model.named_parameters()``: names for messages. Must name every parameter of
        `optimizer`; may name others.
    op : Op, default Average
        `Average` steps as one process does on the joined batch, if the loss is a mean over it;
        `Sum` if it is a sum.
    backward_passes_per_step : int, default 1
        Backward passes whose gradients are added up here before they are reduced.
    bucket_bytes : int, optional
        Largest bucket; environment variable ``BLINKRUN_BUCKET_BYTES`` otherwise, or 25 MiB.
    overlap : {"auto", "on", "off"}, optional
        Whether a helper thread reduces full buckets while backward goes on; environment variable
        ``BLINKRUN_OVERLAP`` otherwise, or "auto": if the ranks leave cores idle.

    Raises
    ------
    UsageError
        If a name comes twice or a parameter has none, if the optimizer or one of its parameters
        is wrapped already, or if an argument is none of those above.
    InvalidBufferError
        If a parameter is not on the CPU or of another dtype.
    MismatchError
        If the ranks have different parameters; names a rank and the first one that differs.
    NotInitializedError
        Before ``init()``.

    Notes
    -----
    ``synchronize()`` waits for the gradients without a step, for whatever needs their global
    values, such as clipping; the ``step()`` that follows does not reduce again. ``step()`` inside
    ``with optimizer.skip_synchronize():`` never reduces.

    A closure given to ``step`` (LBFGS) is a forward and a backward pass; each call's gradients and
    loss are reduced before the optimizer sees them, so all ranks take the same decisions.

    Gradients of parameters that only some ranks reach count as zero on the others; where no rank
    has one, ``param.grad`` stays None.
    """
    world = blinkrun.world()
    if isinstance(optimizer, DistributedMixin):
        raise UsageError("this optimizer is wrapped by DistributedOptimizer already")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps a torch optimizer, got {type(optimizer)}")
    settings = Settings(
        world,
        op=op,
        passes=backward_passes_per_step,
        bucket_bytes=bucket_bytes,
        overlap=overlap,
        names=names_by_identity(named_parameters),
    )
    state = _State(settings, settings.reducer_for(optimizer))
    teach_grad_scaler(DistributedMixin)
    optimizer.__class__ = _distributed_class(type(optimizer))
    optimizer._blinkrun = state  # type: ignore[attr-defined]
    _rewrap_step(optimizer)
    return optimizer


class DistributedMixin:
    """What `DistributedOptimizer` puts in front of an optimizer's own class."""

    _blinkrun: _State
    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Wait for the global gradients and update the parameters; every rank calls it.

        With a closure, returns its loss reduced over all ranks by the optimizer's `op`.
        """
        state = self._blinkrun
        own_step = super().step  # type: ignore[misc]
        if closure is not None:
            return own_step(closure if state.skips else self._reducing(closure), **kwargs)
        if not state.skips:
            self._ensure_synchronized()
        elif state.reducer.began:
            raise UsageError(
                "step() in skip_synchronize() with new gradients; call synchronize() before it"
            )
        state.is_synchronized = False
        return own_step(**kwargs)

    # torch wraps a step that does not say so in its profiler and its step hooks; ours calls one
    # that is wrapped.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Return when every gradient holds its global value; every rank calls it.

        The next ``step()`` then takes the gradients as they are.
        """
        state = self._blinkrun
        state.settings.check_still_frozen()
        state.reducer.finish()
        state.is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make ``step()`` in this context take the gradients as they are."""
        state = self._blinkrun
        before, state.skips = state.skips, True
        try:
            yield
        finally:
            state.skips = before

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Drop or clear the gradients, as the optimizer's own method does.

        Raises
        ------
        UsageError
            If gradients are being reduced: between ``backward()`` and ``step()``.
        """
        state = self._blinkrun
        if state.reducer.has_released:
            raise UsageError(
                "zero_grad() between backward() and step(); call step() or synchronize() first"
            )
        state.reducer.forget()
        state.is_synchronized = False
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as the optimizer's own method does; every rank calls it."""
        state = self._blinkrun
        if state.reducer.began:
            raise UsageError("add_param_group() between backward() and step(); call step() first")
        super().add_param_group(param_group)  # type: ignore[misc]
        state.reducer.close()
        try:
            state.reducer = state.settings.reducer_for(self)
        except Exception:
            self.param_groups.pop()
            state.reducer = state.settings.reducer_for(self)
            raise

    def _ensure_synchronized(self) -> None:
        """Reduce the gradients unless `synchronize` has done so for this step."""
        if not self._blinkrun.is_synchronized or self._blinkrun.reducer.began:
            self.synchronize()

    def _end_step(self) -> None:
        """Note that the gradients of this step are used up, whether or not it was taken."""
        self._blinkrun.is_synchronized = False

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return `closure` followed by the reduction of its gradients and its loss."""

        @functools.wraps(closure)
        def reduced() -> Any:
            loss = closure()
            self._ensure_synchronized()
            self._blinkrun.is_synchronized = False
            return self._blinkrun.settings.reduce_loss(loss)

        return reduced


@dataclass(slots=True)
class _State:
    """What a DistributedOptimizer keeps beside the optimizer's own attributes."""

    settings: Settings
    reducer: Reducer
    is_synchronized: bool = False
    skips: bool = False


@functools.cache
def _distributed_class(base: type) -> type:
    """Return the class over `base` that reduces gradients before it steps."""
    return type(f"Distributed{base.__name__}", (DistributedMixin, base), {})


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
