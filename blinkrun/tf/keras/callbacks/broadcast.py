"""The same weights on all ranks: when training begins, and after epochs of different length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blinkrun.adapter.objects import allgather_object
from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set
from blinkrun.errors import MismatchError, UsageError
from blinkrun.tf.keras import state as states
from blinkrun.tf.keras.callbacks.base import FIRST, Callback
from blinkrun.tf.keras.callbacks.checkpoint import BestModelCheckpoint
from blinkrun.tf.keras.callbacks.first_step import when_built
from blinkrun.tf.keras.epochs import Epoch


class JoinCallback(Callback):
    """Let ranks with fewer batches wait at the end of an epoch, instead of the others for them.

    `BroadcastGlobalVariablesCallback` does the same; this is for models that go without it. Every
    rank of the process set must have it.

    Parameters
    ----------
    process_set : ProcessSet
        The ranks that train together.

    Notes
    -----
    What needs every rank fails on the others once one has joined: sparse gradients (give
    `sparse_as_dense=True`), and allgathers and broadcasts of your own inside an epoch.
    """

    place = FIRST
    is_collective = True

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set
        self._epoch = Epoch(process_set)

    def set_model(self, model: Any) -> None:
        """Take the model, and put the callbacks of the list in order."""
        super().set_model(model)
        self._epoch.forget()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count."""
        if not self.is_alone():
            self._epoch.begin()

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count."""
        self._epoch.count()

    def on_test_begin(self, logs: Any = None) -> None:
        """Wait for the others before validation, so that all validate the same weights."""
        self._epoch.end(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Wait for the others, where there was no validation."""
        self._epoch.end(self.model)


class BroadcastGlobalVariablesCallback(Callback):
    """Begin training with the weights, optimizer and metrics of one rank on all of them.

    Each `fit` begins so, resumed ones as well: before its first step, whether the model was built
    before or is built by its first batch. What that batch still made is given to all after it.
    The states of seed generators stay each rank's own, so that dropout differs between ranks.
    It also makes a `JoinCallback` needless: ranks may have different numbers of batches.

    Parameters
    ----------
    root_rank : int
        The rank whose values count, as a rank of the job.
    device : str
        Accepted for Horovod scripts: values travel through the host.
    local_variables : variable or list of variables, optional
        Stay as they are on each rank.
    process_set : ProcessSet
        The ranks that train together; others begin with their own.
    join : bool, default True
        Whether ranks that have fewer batches wait for the others at the end of epochs. Without,
        every rank must have as many, and fits may differ in their epochs.

    Raises
    ------
    UsageError
        If a local variable is none.
    MismatchError
        When training begins, if ranks have other models or optimizers, begin with another epoch,
        or have other callbacks of blinkrun; on every rank.
    """

    place = FIRST
    is_collective = True

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        *,
        process_set: ProcessSet = global_process_set,
        join: bool = True,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.process_set = process_set
        self.companions: list[Any] = [self]
        self._join = join
        self._epoch = Epoch(process_set)
        self._local: set[int] = set()
        self._kept: list[Any] = []  # local variables, so that no other takes over their identity
        self._current_epoch = 0
        self._is_begun = self._is_complete = True
        self._stop_waiting: Callable[[], Any] = _nothing
        for each in _as_list(local_variables):
            self.register_local_var(each)

    def register_local_var(self, var: Any) -> None:
        """Leave `var` as it is on each rank."""
        if not (hasattr(var, "assign") or hasattr(var, "detach")):
            raise UsageError(f"local_variables takes variables of the model, got {var!r}")
        self._kept.append(var)
        self._local |= states.identities([var])

    def set_model(self, model: Any) -> None:
        """Take the model, and put the callbacks of the list in order."""
        super().set_model(model)
        self._epoch.forget()

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin anew."""
        checked_root(self.root_rank, self.process_set)
        self._is_begun = self._is_complete = self.is_alone()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note which epoch it is."""
        self._current_epoch = epoch
        if self._join and not self.is_alone():
            self._epoch.begin()

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcast, before the first batch and what was not there yet before the second."""
        if not self._is_complete:
            self._go_on()
        self._epoch.count()

    def on_test_begin(self, logs: Any = None) -> None:
        """Be as far as the others before validation."""
        self._end_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Be as far as the others, where there was no validation."""
        self._end_epoch()

    def _end_epoch(self) -> None:
        if not self._is_complete and self._is_begun:
            self._go_on()
        self._epoch.end(self.model, self._local)

    def _go_on(self) -> None:
        """Broadcast what there is, and see whether something is still to come."""
        if self._is_begun:
            self._stop_waiting()
            self._stop_waiting = _nothing
            self._is_complete = True
            self._broadcast(metrics=False)  # those of the first batch are each rank's own
            return
        self._is_begun = True
        if _agree_to_begin(self, self._current_epoch):
            states.build_optimizer(self.model)
            self._is_complete = True
            self._broadcast()
        else:
            self._stop_waiting = when_built(self.model, self._broadcast)

    def _broadcast(self, *, metrics: bool = True) -> None:
        state = states.state_of(self.model, self._local)
        metrics &= states.check_alike(state, self.process_set)
        states.broadcast_state(state, self.root_rank, self.process_set, metrics=metrics)


def _agree_to_begin(callback: BroadcastGlobalVariablesCallback, epoch: int) -> bool:
    """Return whether all ranks have built their models, building it where some have.

    Raises
    ------
    MismatchError
        If they cannot go on together; on every rank.
    """
    model, process_set = callback.model, callback.process_set
    ranks = process_set.ranks
    built = states.is_built(model)
    checkpoints = [each for each in callback.companions if isinstance(each, BestModelCheckpoint)]
    mine = {
        "epoch": epoch,
        "callbacks": [
            type(each).__name__ for each in callback.companions if each not in checkpoints
        ],
        "config": states.build_config(model) if built else None,
        "built": built,
        "checkpoints": len(checkpoints),
    }
    everyone = allgather_object(mine, "keras.begin", process_set)
    for what, advice in (
        ("epoch", "give fit the same initial_epoch on every rank"),
        ("callbacks", "give fit the same callbacks of blinkrun on every rank"),
    ):
        for rank, theirs in zip(ranks, everyone, strict=True):
            if theirs[what] != everyone[0][what]:
                raise MismatchError(
                    f"rank {rank}: training begins with {what} {theirs[what]}, on rank {ranks[0]} "
                    f"with {everyone[0][what]}; {advice}"
                )
    for each in checkpoints:
        each.is_shared = len({theirs["checkpoints"] for theirs in everyone}) == 1
    have = [each["built"] for each in everyone]
    if any(have) and not all(have):
        configs = [each["config"] for each in everyone if each["config"]]
        if not built and configs:
            model.build_from_config(configs[0])
        have = allgather_object(states.is_built(model), "keras.built", process_set)
        if not all(have):
            lacking = [rank for rank, has in zip(ranks, have, strict=True) if not has]
            raise MismatchError(
                f"the model is built on some ranks, but not on {lacking}; call model.build(), or "
                "the model on a batch, on every rank before fit"
            )
    return all(have)


def _nothing() -> None:
    pass


def _as_list(variables: Any) -> list[Any]:
    if variables is None:
        return []
    if isinstance(variables, list | tuple | set | frozenset):
        return list(variables)
    return [variables]
