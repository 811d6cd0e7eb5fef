"""What wrapped optimizers of all kinds of Keras have in common: they reduce gradients."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from blinkrun.tf.keras import backend
from blinkrun.tf.keras.settings import Settings
from blinkrun.tf.variable_names import comparable, names_of

_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


class _Known(NamedTuple):
    """What was found out about a list of variables; it holds them, or others could get their ids.

    Attributes
    ----------
    places : list of int
        Which of them are reduced.
    names : tuple of str
        Of those.
    """

    places: list[int]
    names: tuple[str, ...]
    variables: Sequence[Any]


class Sharing:
    """Reduces the gradients of one optimizer; what it asks for has names of its own.

    Parameters
    ----------
    settings : Settings
        How.
    label : str
        Class of the optimizer.
    """

    def __init__(self, settings: Settings, label: str) -> None:
        self.settings = settings
        self._label = settings.name or f"Distributed{label}"
        self._reducer: Any = None
        self._local: list[Any] = []
        self._known: dict[tuple[int, ...], _Known] = {}

    def __deepcopy__(self, memo: Any) -> Any:
        """Return what a copy of the optimizer has: the same settings, and nothing under way."""
        other = type(self)(self.settings, "")
        other._label = self._label
        return other

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return gradients reduced over the ranks; those of local variables only scaled."""
        ranks = self.settings.ranks
        if len(ranks) < 2:
            return list(grads)
        results = list(grads)
        places, names, _ = self._look_up(variables)
        if self._reducer is None:
            # Numbered when it is first used, which all ranks come to in one order.
            owner = f"{self._label}.{next(_numbers[ranks])}"
            self._reducer = _reducer_of_backend()(self.settings, owner)
        shared = [variables[i] for i in places]
        reduced = self._reducer.reduce([grads[i] for i in places], names, shared)
        for i, grad in zip(places, reduced, strict=True):
            results[i] = grad
        if self.settings.scale_local_gradients and len(places) < len(results):
            for i in set(range(len(results))) - set(places):
                results[i] = self._reducer.divided(results[i], len(ranks))
        return results

    @property
    def local_variables(self) -> tuple[Any, ...]:
        """Variables of the backend whose gradients stay on their ranks."""
        return tuple(self._local)

    def register_local(self, variable: Any) -> None:
        """Keep the gradient of a variable on its rank."""
        self._local.append(backend.native(variable))
        self._known.clear()

    def _look_up(self, variables: Sequence[Any]) -> _Known:
        key = tuple(map(id, variables))
        known = self._known.get(key)
        if known is None:
            places = [i for i, each in enumerate(variables) if not self._is_local(each)]
            paths = names_of([variables[i] for i in places])
            names = comparable(tuple(_layer_and_name(each) for each in paths))
            known = self._known[key] = _Known(places, names, variables)
        return known

    def _is_local(self, variable: Any) -> bool:
        inner = backend.native(variable)
        return any(each is inner for each in self._local)


def _layer_and_name(path: str) -> str:
    """Return the end of a path: what comes before it is not there in a model that was loaded.

    >>> _layer_and_name("sequential/dense/kernel")
    'dense/kernel'
    """
    return "/".join(path.split("/")[-2:])


def _reducer_of_backend() -> Any:
    if backend.name() == "torch":
        from blinkrun.tf.keras.on_torch import Reducer  # noqa: PLC0415
    else:
        from blinkrun.tf.keras.on_tensorflow import Reducer  # noqa: PLC0415
    return Reducer
