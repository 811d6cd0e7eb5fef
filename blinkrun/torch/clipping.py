"""Make torch's gradient clipping see global gradients.

`torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` read ``param.grad``. Between ``backward()``
and ``step()`` those may still be the gradients of one rank, whose norm is another on every rank. So
both reduce first what belongs to a `DistributedOptimizer`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from blinkrun.torch.owners import owners_of

NAMES = ("clip_grad_norm_", "clip_grad_value_")


def teach_clipping() -> None:
    """Make torch's clipping reduce gradients before it reads them; idempotent."""
    for name in NAMES:
        function = getattr(clip_grad, name)
        if hasattr(function, "_blinkrun"):
            continue
        inner = getattr(function, "__wrapped__", None)
        for cell in getattr(function, "__closure__", None) or ():
            if inner is not None and cell.cell_contents is inner:
                # Inside of its no_grad: whoever has imported the function by name gets it too.
                cell.cell_contents = _reducing(inner)
                function._blinkrun = True
                break
        else:
            taught = _reducing(function)
            taught._blinkrun = True  # type: ignore[attr-defined]
            setattr(clip_grad, name, taught)
            setattr(torch.nn.utils, name, taught)


def _reducing(clip: Callable[..., Any]) -> Callable[..., Any]:
    """Return `clip` preceded by the reduction of the gradients that it reads."""

    @functools.wraps(clip)
    def reducing(
        parameters: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for reducer in owners_of(params):
            if not reducer.is_accumulating:
                reducer.ensure_done()
        return clip(params, *args, **kwargs)

    return reducing
