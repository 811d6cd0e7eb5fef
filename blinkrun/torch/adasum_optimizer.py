"""`DistributedOptimizer` with ``op=Adasum``: what is combined is how each rank's step changes it.

The optimizer steps on this rank's gradients; the differences that its step has made to the
parameters are combined by Adasum, each parameter by itself, and added to what was there before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from blinkrun.engine.request import ADASUM
from blinkrun.errors import GradientOrderError
from blinkrun.torch.codec import Codec
from blinkrun.torch.wrapped import DistributedMixin
from blinkrun.types import Op


class AdasumMixin(DistributedMixin):
    """What `DistributedOptimizer` puts in front of an optimizer's class for ``op=Adasum``."""

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step on this rank's gradients and combine the changes; every rank calls it.

        With a closure, returns this rank's loss.
        """
        self._refuse_if_paused("step()")
        reducer, own_step = self._blinkrun.reducer, super(DistributedMixin, self).step  # type: ignore[misc]
        params = {index: param for index, (_, param) in enumerate(reducer.named)}
        trained = {index: param for index, param in params.items() if param.requires_grad}
        before = {index: param.detach().clone() for index, param in trained.items()}
        if closure is None:
            reducer.ensure_done()
            self._end_step()
            loss = own_step(**kwargs)
        else:
            loss = own_step(self._reducing(closure), **kwargs)
        if not self._blinkrun.settings.exchange.is_alone:
            self._combine(trained, before)
        self._finish_step()
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Do nothing: gradients stay this rank's own, and `step` combines what it makes of them."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Not with Adasum.

        Raises
        ------
        GradientOrderError
            Always.
        """
        raise GradientOrderError(
            "skip_synchronize() does not go with op=Adasum, where step() makes what is reduced"
        )

    @torch.no_grad()
    def _combine(self, trained: dict[int, torch.Tensor], before: dict[int, torch.Tensor]) -> None:
        """Replace what this rank's step has made of the parameters by what all have made."""
        settings, named = self._blinkrun.settings, self._blinkrun.reducer.named
        codec = Codec(settings.arguments.compression)
        packed = {}  # on the CPU, where Adasum is, wherever parameters are
        for index, param in trained.items():
            dtype = codec.wire_dtype(named[index][0], param)
            packed[index] = torch.empty(param.shape, dtype=dtype)
            codec.put(index, param - before[index], packed[index])
        settings.exchange.run(
            [
                settings.exchange.call(f"change.{named[index][0]}", delta, delta, op=ADASUM)
                for index, delta in packed.items()
            ]
        )
        for index, param in trained.items():
            change = codec.take(index, packed[index], param).to(param.device)
            param.copy_(before[index].add_(change))

    def _agree_on(self, found_inf: list[torch.Tensor]) -> None:
        """Make all ranks skip the step if one of them has found infinities."""
        exchange = self._blinkrun.settings.exchange
        if exchange.is_alone:
            return
        found = torch.stack([each.detach().cpu().view(()) for each in found_inf]).amax().view(1)
        exchange.agree_on("overflow", found, Op.MAX)
        for each in found_inf:
            each.copy_(found.view(each.shape))

    def _global_loss(self, loss: Any) -> Any:
        return loss
