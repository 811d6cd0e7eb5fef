"""Make torch's GradScaler look at global gradients.

`GradScaler.unscale_` and `GradScaler.step` read ``param.grad`` before they call
``optimizer.step()``. Were those the gradients of one rank, ranks would see different infinities
and disagree on whether to step. So both methods reduce first, if the optimizer is ours.
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
        Has ``_ensure_synchronized()`` and ``_end_step()``.
    """
    if hasattr(GradScaler.step, "_blinkrun"):
        return
    unscale, step = GradScaler.unscale_, GradScaler.step

    @functools.wraps(unscale)
    def unscale_(self: GradScaler, optimizer: Any) -> None:
        if isinstance(optimizer, distributed) and self.is_enabled():
            optimizer._ensure_synchronized()
        unscale(self, optimizer)

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
