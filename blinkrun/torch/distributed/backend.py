"""How torch makes a process group of ours, and what happens to it when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch.distributed as dist

from blinkrun import env
from blinkrun.assembly import assemble
from blinkrun.comm import beside
from blinkrun.executors.leaving import Leaving
from blinkrun.torch.distributed.group import BlinkProcessGroup
from blinkrun.torch.distributed.identity import NAME
from blinkrun.torch.distributed.store import StoreControl

ARENA_BYTES = 1 << 30  # of address space: a job may have many groups, and tensors lie elsewhere

_groups: weakref.WeakSet[BlinkProcessGroup] = weakref.WeakSet()
_leaving = Leaving()  # groups that others have not left yet
_hooked_pid = 0
_has_failed = False


def register() -> None:
    """Make ``"blink"`` known to torch.distributed, for CPU and CUDA; harmless if called again."""
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def groups() -> list[BlinkProcessGroup]:
    """Return the process groups of this process that are in use."""
    return [group for group in _groups if not group.communicator.is_closed]


def create(options: Any, extra: Any = None) -> BlinkProcessGroup:
    """Return a process group; torch calls it on every rank of the group.

    Parameters
    ----------
    options : torch.distributed's backend options
        Store, rank, size, timeout and the numbers of the ranks in the default group.
    extra : optional
        What the script gave as ``pg_options``; nothing of it is used.

    Raises
    ------
    CollectiveTimeoutError
        If a rank does not come within the timeout.
    LaunchError
        If the ranks are on several hosts and no MPI has started them, or those of one host cannot
        share memory.
    """
    del extra
    timeout_s = _deadline_s(options.timeout.total_seconds())
    control = StoreControl(
        options.store,
        options.group_rank,
        options.group_size,
        timeout_s=timeout_s,
        # The default group, or one beside it that all make together.
        of_all_ranks=not dist.is_initialized() or options.group_size == dist.get_world_size(),
    )
    names = list(options.global_ranks_in_group) or None
    communicator = assemble(
        control,
        timeout_s=timeout_s,
        names=names,
        sharing=dist.get_world_size() if dist.is_initialized() else 0,
        arena_bytes=ARENA_BYTES,
    )
    _leaving.sweep()
    leave = partial(_leaving.add, num_hosts=communicator.cross_size)
    communicator.at_close(partial(leave, communicator.executor, control))
    group = BlinkProcessGroup(options.store, communicator, names)
    _groups.add(group)
    _hook()
    return group


def _deadline_s(of_script: float) -> float:
    """Return the deadline: the script's, or that of `blinkrun --timeout` where it is shorter."""
    return min(of_script, env.timeout_s()) if env.TIMEOUT in os.environ else of_script


def _hook() -> None:
    """Install what runs when this process ends, once."""
    global _hooked_pid  # noqa: PLW0603 - a fact about the process
    if _hooked_pid == os.getpid():
        return
    _hooked_pid = os.getpid()
    atexit.register(_at_exit)
    sys.excepthook = _excepthook(sys.excepthook)


def _excepthook(before: Callable[..., Any]) -> Callable[..., None]:
    """Return a hook that fails all groups of an uncaught exception's process on all ranks."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _has_failed  # noqa: PLW0603 - a fact about the process
        before(kind, error, trace)
        if os.getpid() == _hooked_pid:
            _has_failed = True
            for group in groups():
                rank = group.global_rank
                group.end(f"rank {rank} failed: {kind.__name__}: {error}")
            sys.stdout.flush()
            sys.stderr.flush()
            beside.abort()

    return hook


def _at_exit() -> None:
    """Leave all groups, so that ranks which still wait for this one learn it at once."""
    if os.getpid() != _hooked_pid:
        return
    left = groups()
    for group in left:
        group.end(None)
    if not _has_failed:
        alive = [group.communicator.executor.let_go for group in left]
        beside.end(before=[*alive, _leaving.let_go])
