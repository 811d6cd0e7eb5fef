"""Starting blinkrun as ``hvd.init()`` does, and what Horovod's tests look at of its library."""

import functools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from blinkrun import engine as _engine
from blinkrun import is_initialized
from blinkrun.adapter import built, job, operations
from blinkrun.launcher.horovod import translate

__all__ = ["basics", "init", "starting"]

_translated: dict[str, str] = {}  # what the last init() has set


def starting(start: Callable[..., None]) -> Callable[..., None]:
    """Return `start`, an ``init`` of blinkrun's, as ``hvd.init()``.

    It does what HOROVOD_* variables say at the moment at which it is called.
    """

    @functools.wraps(start)
    def init(*args: Any, **options: Any) -> None:
        for name, value in _translated.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        _translated.clear()
        _translated.update(translate(os.environ).settings)
        os.environ.update(_translated)
        start(*args, **options)

    return init


init = starting(job.init)


def _process_sets() -> dict[int, list[int]]:
    return {number: list(ranks) for number, ranks in _engine.current().process_sets().items()}


# In Horovod an object that holds the library, with its functions and the numbers of operations.
basics = SimpleNamespace(
    init=init,
    is_initialized=is_initialized,
    _get_process_set_ids_and_ranks=_process_sets,
    **{
        name: getattr(job, name)
        for name in (
            "cross_rank",
            "cross_size",
            "is_homogeneous",
            "local_rank",
            "local_size",
            "rank",
            "shutdown",
            "size",
            "start_timeline",
            "stop_timeline",
        )
    },
    **{name: getattr(built, name) for name in built.__dict__ if name.endswith("_built")},
    **{
        name: getattr(operations, name)
        for name in ("Adasum", "Average", "Max", "Min", "Product", "Sum")
    },
)
