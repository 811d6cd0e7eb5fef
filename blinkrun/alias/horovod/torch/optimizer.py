"""The optimizer by Horovod's name."""

from blinkrun.torch import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
