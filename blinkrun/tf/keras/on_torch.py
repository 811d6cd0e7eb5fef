"""Gradients of Keras 3 on its torch backend, reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from blinkrun.adapter.gradients import Gradient, Gradients
from blinkrun.buffers import view
from blinkrun.errors import InvalidBufferError
from blinkrun.tf.keras.settings import Settings, group_places

_ABSENT = "None"


class Reducer:
    """Reduces the gradients of one optimizer.

    Parameters
    ----------
    settings : Settings
        How.
    owner : str
        What the names of its requests begin with; the same on all ranks.
    """

    def __init__(self, settings: Settings, owner: str) -> None:
        self._settings = settings
        self._owner = owner
        self._owners: dict[tuple[str, ...], str] = {}
        self._made: dict[tuple[Any, ...], Gradients] = {}

    @torch.no_grad()
    def reduce(
        self, grads: Sequence[Any], names: tuple[str, ...], variables: Sequence[Any]
    ) -> list[Any]:
        """Return gradients of variables reduced over the ranks; None stays None."""
        results: list[Any] = list(grads)
        compression = self._settings.compression
        places = tuple(i for i, grad in enumerate(grads) if grad is not None)
        sent = [compression.compress(_dense(grads[i], names[i])) for i in places]
        values = [
            view(tensor.contiguous(), names[i]) for i, (tensor, _) in zip(places, sent, strict=True)
        ]
        key = (names, places)
        if key not in self._made:
            self._made[key] = self._gradients(values, names, places, variables)
        reduced = self._made[key].reduce(values)
        for i, array, (_, context) in zip(places, reduced, sent, strict=True):
            results[i] = compression.decompress(_tensor(array), context)
        return results

    @staticmethod
    def divided(grad: Any, by: int) -> Any:
        """Return a gradient divided by a number; None stays None."""
        return None if grad is None else grad / by

    def _gradients(
        self,
        values: Sequence[Any],
        names: tuple[str, ...],
        places: Sequence[int],
        variables: Sequence[Any],
    ) -> Gradients:
        owner = self._owners.setdefault(names, f"{self._owner}.{len(self._owners)}")
        gradients = [
            Gradient(names[i], value.dtype, value.shape)
            for i, value in zip(places, values, strict=True)
        ]
        facts = [(name, _ABSENT) for name in names]
        for i, each in zip(places, gradients, strict=True):
            facts[i] = (each.name, each.describe())
        return Gradients(
            gradients,
            owner=owner,
            process_set=self._settings.process_set,
            op=self._settings.op,
            scales=self._settings.scales,
            bucket_bytes=self._settings.bucket_bytes,
            groups=group_places(self._settings.groups, [variables[i] for i in places]),
            facts=facts,
        )


def _dense(grad: Any, name: str) -> Any:
    if grad.device.type != "cpu":
        raise InvalidBufferError(
            f"the gradient of '{name}' is on {grad.device}; this version moves tensors on the CPU "
            "only, set KERAS_TORCH_DEVICE=cpu before keras is imported"
        )
    return grad if grad.layout is torch.strided else grad.to_dense()


def _tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
