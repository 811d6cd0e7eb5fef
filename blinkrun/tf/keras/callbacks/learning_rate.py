"""Learning rates that follow a schedule in epochs, or warm up to what the joined batch needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import blinkrun
from blinkrun.adapter.objects import allgather_object
from blinkrun.errors import UsageError
from blinkrun.tf.keras import backend
from blinkrun.tf.keras.callbacks.base import Callback
from blinkrun.tf.keras.state import inner_optimizer, keras

Multiplier = Callable[[float], float]


class LearningRateScheduleCallback(Callback):
    """Set the learning rate to `initial_lr` times `multiplier` from one epoch to another.

    Every rank must have it. The rate is written into `logs` as ``lr``.

    Parameters
    ----------
    initial_lr : float
        The rate at the start of training.
    multiplier : float or callable
        A function of the epoch, or a number: ``multiplier ** (epoch - start_epoch)``.
    start_epoch, end_epoch : int, int or None
        The first epoch in which the rate is set, and the one before which that ends.
    staircase : bool, default True
        Set it at the first batch of each epoch, with the number of the epoch; else at each batch,
        with ``epoch + batch / steps_per_epoch``.
    momentum_correction : bool, default True
        Where the rate changes, scale what SGD and RMSprop carry along by as much: it contains the
        old rate [1]_.
    steps_per_epoch : int, optional
        Batches of an epoch, for ``staircase=False``. Default: as Keras knows it. Where ranks have
        different numbers, the largest counts on all of them.

    Raises
    ------
    UsageError
        If `initial_lr` is missing; when training begins, if the optimizer has a
        LearningRateSchedule of its own; at the first batch, if `steps_per_epoch` is needed and not
        known on any rank.

    References
    ----------
    .. [1] P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Horovod's arguments
        self,
        initial_lr: float,
        multiplier: float | Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError(f"{type(self).__name__} needs initial_lr, the rate at the start")
        self.initial_lr = initial_lr
        self.multiplier = (
            multiplier
            if callable(multiplier)
            else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._given_steps = steps_per_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Check the optimizer."""
        _refuse_schedule(self.model.optimizer, type(self).__name__)
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note which epoch it is."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate, if it is time."""
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            if self.steps_per_epoch is None:  # the first batch that needs it, on all ranks
                self.steps_per_epoch = self._agreed_steps()
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the rate into `logs`."""
        if logs is not None:
            logs["lr"] = learning_rate(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = learning_rate(optimizer), float(self.initial_lr * self.multiplier(epoch))
        optimizer.learning_rate = new
        if self.momentum_correction and old not in (0.0, new):
            scale_momentum(self.model, new / old)

    def _agreed_steps(self) -> int:
        steps = self._given_steps or (self.params or {}).get("steps") or 0
        if not self.is_alone():
            steps = max(allgather_object(steps, "keras.steps", self.process_set))
        if not steps:
            raise UsageError(
                f"{type(self).__name__} changes the rate at each batch and cannot tell how many an "
                "epoch has; give it steps_per_epoch"
            )
        return int(steps)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from ``initial_lr / size`` to `initial_lr`, batch by batch.

    A joined batch of `size` ranks needs a higher rate, which the first steps cannot bear [1]_::

        lr(epoch) = initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1)

    where `epoch` counts whole ones and, after each batch, a part of the next. On one rank the rate
    is `initial_lr` from the start. Every rank must have it.

    Parameters
    ----------
    initial_lr : float
        The rate to reach, that of the joined batch.
    warmup_epochs : int, default 5
        How many epochs it takes.
    momentum_correction, steps_per_epoch
        As in `LearningRateScheduleCallback`.
    verbose : int
        With 1, rank 0 says when it is over.

    References
    ----------
    .. [1] P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warm,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the rate into `logs`, and say when it is reached."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and blinkrun.rank() == 0:
            reached = learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {reached:g}.")

    def _warm(self, epoch: float) -> float:
        size = blinkrun.size()
        after = epoch + 1 / self.steps_per_epoch  # round numbers at the ends of epochs
        return (after * (size - 1) / self.end_epoch + 1) / size


def learning_rate(optimizer: Any) -> float:
    """Return the rate that `optimizer` uses now."""
    rate = optimizer.learning_rate
    if hasattr(rate, "assign"):
        return float(np.asarray(backend.host_values([rate])[0]))
    return float(rate)


def scale_momentum(model: Any, ratio: float) -> None:
    """Multiply what the optimizer carries from step to step, if it contains the learning rate.

    It is the same as a `momentum` that is `ratio` times as high for one step, which Keras has no
    way to set: in a graph it is a constant.
    """
    for slot in _velocities(inner_optimizer(model.optimizer), model):
        inner = backend.native(slot)
        if hasattr(inner, "detach"):
            inner.data.mul_(ratio)
        else:
            inner.assign(inner * ratio)


def _velocities(optimizer: Any, model: Any) -> list[Any]:
    if not model.built or not isinstance(optimizer, _classes("SGD", "RMSprop")):
        return []
    if hasattr(optimizer, "_slots"):  # tf_keras.optimizers.legacy
        slots = [optimizer._slots.get(each._unique_id, {}) for each in model.trainable_variables]
        return [each["momentum"] for each in slots if "momentum" in each]
    held = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    return [] if not getattr(optimizer, "momentum", 0) or held is None else list(held)


def _classes(*names: str) -> tuple[type, ...]:
    places = [keras.optimizers, getattr(keras.optimizers, "legacy", None)]
    return tuple(getattr(place, name) for place in places for name in names if hasattr(place, name))


def _refuse_schedule(optimizer: Any, who: str) -> None:
    inner = inner_optimizer(optimizer)
    hypers = getattr(inner, "_hyper", {})
    rate = hypers.get("learning_rate", getattr(inner, "_learning_rate", None))
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if is_schedule or (callable(rate) and not hasattr(rate, "assign")):
        raise UsageError(
            f"{who} sets the learning rate, but the optimizer has {type(rate).__name__} for it; "
            "give the optimizer a number, or leave out the callback"
        )
