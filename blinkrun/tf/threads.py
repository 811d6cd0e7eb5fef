"""The share that a rank has of the machine: TensorFlow's threads, and its GPU.

TensorFlow reads its variables when it starts its runtime, at the first op, so it need not be
imported to be told. What the user has set stays: variables, and what ``tf.config`` was given.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import blinkrun

INTRA = "TF_NUM_INTRAOP_THREADS"  # threads that share the work of one op
INTER = "TF_NUM_INTEROP_THREADS"  # ops that run at the same time
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # take memory of a GPU as it is needed, not all at once


def configure() -> None:
    """Give TensorFlow this rank's share of cores, and its GPU; after `init`, before the first op.

    It neither imports TensorFlow nor starts its runtime.
    """
    world = blinkrun.world()
    share_cores(os.environ, cores=world.cores, local_size=world.local_size)
    if world.local_size > 1:
        os.environ.setdefault(GROWTH, "true")
    pin_device()


def share_cores(environ: MutableMapping[str, str], *, cores: int, local_size: int) -> None:
    """Set the numbers of threads in `environ`, unless they are set or the rank is alone.

    One thread for ops at the same time is enough for collectives, which hold none.

    >>> environ = {"TF_NUM_INTEROP_THREADS": "4"}
    >>> share_cores(environ, cores=16, local_size=2)
    >>> environ
    {'TF_NUM_INTEROP_THREADS': '4', 'TF_NUM_INTRAOP_THREADS': '8'}
    """
    if local_size == 1:
        return
    share = str(max(1, cores // local_size))
    for name in (INTRA, INTER):
        if not environ.get(name):
            environ[name] = share


def pin_device() -> None:
    """Let TensorFlow see one GPU, that of the local rank, if it has several to choose from.

    Nothing happens where TensorFlow is not imported yet (what of blinkrun needs it calls this
    again), has no GPUs, has started already, or was told by the user which ones it may see.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "config") or not blinkrun.is_initialized():
        return
    if not (tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()):
        return
    world = blinkrun.world()
    if world.local_size > 1:
        with contextlib.suppress(RuntimeError):  # the runtime has started: too late to choose
            _pin(tf, world.local_rank)


def _pin(tf: Any, local_rank: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    visible = tf.config.get_visible_devices("GPU")
    if len(gpus) > 1 and visible == gpus:
        visible = [gpus[local_rank % len(gpus)]]
        tf.config.set_visible_devices(visible, "GPU")
    for gpu in visible:
        if not tf.config.get_logical_device_configuration(gpu):  # the user's own limits
            tf.config.experimental.set_memory_growth(gpu, True)
