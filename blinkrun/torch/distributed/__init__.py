"""The backend ``"blink"`` of torch.distributed: collectives over packed spanning trees.

    import torch.distributed as dist
    import blinkrun.torch.distributed  # registers the backend

    dist.init_process_group("blink")

Runs under `blinkrun`, under `torchrun` on one host, and wherever `init_process_group` finds its
ranks; MPI is not needed. With `blinkrun --ddp` even the name of the backend stays as it was.
"""

from __future__ import annotations

from blinkrun.torch.distributed.backend import create, groups, register
from blinkrun.torch.distributed.group import BlinkProcessGroup

__all__ = ["BlinkProcessGroup", "create", "groups", "register"]

register()
