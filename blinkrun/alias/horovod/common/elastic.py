"""Values that a script saves, restores and gives to all ranks; elastic jobs are a later part."""

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["ObjectState", "State"]


class State:
    """What a script keeps in memory to go back to.

    Parameters
    ----------
    bcast_object : callable
        Returns on every rank the object that rank 0 gives it.
    get_rank : callable
        Returns this rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Keep functions that `on_reset` calls; a job keeps its ranks in this version."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Reset the state, then call what was registered."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state."""
        self.save()

    def check_host_updates(self) -> None:
        """Do nothing: hosts do not change while a job runs."""

    def save(self) -> None:
        """Keep the values of this moment."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the values that were saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save them; every rank calls it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for other ranks; nothing to do unless a subclass says what."""


class ObjectState(State):
    """Python objects given as keyword arguments, which are its attributes."""

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._show()

    def save(self) -> None:
        """Keep the values of this moment, as references to the same objects."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Go back to the values that were saved last."""
        self._show()

    def sync(self) -> None:
        """Give all ranks the saved values of rank 0; every rank calls it."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._show()

    def _show(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
