"""Which reducer has taken which parameters, and how they call it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Protocol

import torch


class Owner(Protocol):
    """What is needed of a reducer."""

    is_accumulating: bool

    def add(self, index: int) -> None:
        """Take in the gradient of its parameter `index`."""
        ...

    def ensure_done(self) -> None:
        """Reduce its gradients unless that has been done for this step."""
        ...


_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()


def take(owner: Owner, params: Iterable[torch.Tensor]) -> None:
    """Note that `params` are those of `owner`, as long as it is in use."""
    _owners.update((id(param), owner) for param in params)


def let_go(params: Iterable[torch.Tensor]) -> None:
    """Note that `params` are nobody's."""
    for param in params:
        _owners.pop(id(param), None)


class Hook:
    """What a parameter calls when a backward pass has added to its gradient.

    It does not keep the reducer alive: parameters outlive an optimizer that is thrown away.
    """

    __slots__ = ("_index", "_reducer")

    def __init__(self, reducer: Owner, index: int) -> None:
        self._reducer = weakref.ref(reducer)
        self._index = index

    def __call__(self, param: torch.Tensor) -> None:
        """Tell the reducer, if it is still there."""
        reducer = self._reducer()
        if reducer is not None:
            reducer.add(self._index)


def has_owner(param: torch.Tensor) -> bool:
    """Whether a reducer that is still in use has taken `param`."""
    if id(param) in _owners:
        gc.collect()  # an optimizer in a reference cycle may be gone but for this
    return id(param) in _owners


def owners_of(params: Iterable[torch.Tensor]) -> list[Owner]:
    """Return the reducers that have taken some of `params`, in the order of those."""
    found = (_owners.get(id(param)) for param in params)
    return list(dict.fromkeys(reducer for reducer in found if reducer is not None))
