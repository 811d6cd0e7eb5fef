"""Make torch's GradScaler look at global gradients.

`GradScaler.unscale_` and `GradScaler.step` read ``param.grad`` before they call
``optimizer.step()``. Were those the gradients of one rank, ranks would see different infinities
and disagree on whether to step. So both methods reduce first, if the optimizer is ours; and where
the optimizer steps on gradients of its own (Adasum), ranks agree on whether there are infinities.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler


def teach_grad_scaler(distributed: type) -> None:
    """Make all GradScalers reduce the gradients of optimizers of class `distributed`; idempotent.

    Parameters
    ----------
    distributed : type
        Has ``_ensure_synchronized()``, ``_agree_on(found_inf)`` and ``_end_step()``.
    """
    if hasattr(GradScaler.step, "_blinkrun"):
        return
    unscale, step = GradScaler.unscale_, GradScaler.step

    @functools.wraps(unscale)
    def unscale_(self: GradScaler, optimizer: Any) -> None:
        is_ours = isinstance(optimizer, distributed) and self.is_enabled()
        if is_ours:
            optimizer._ensure_synchronized()
        unscale(self, optimizer)
        if is_ours:
            found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            optimizer._agree_on(list(found.values()))

    @functools.wraps(step)
    def step_(self: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(optimizer, distributed) or not self.is_enabled():
            return step(self, optimizer, *args, **kwargs)
        optimizer._ensure_synchronized()
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            optimizer._end_step()

    step_._blinkrun = True  # type: ignore[attr-defined]
    GradScaler.unscale_ = unscale_  # type: ignore[method-assign]
    GradScaler.step = step_  # type: ignore[method-assign]
