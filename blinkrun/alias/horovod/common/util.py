"""The helpers of Horovod that scripts and its tests use."""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from blinkrun.adapter.built import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built

__all__ = [
    "ccl_built",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


def env(**variables: str | None) -> AbstractContextManager[object]:
    """Set environment variables for as long as the context lasts; None leaves one as it is."""
    given = {name: value for name, value in variables.items() if value is not None}
    return mock.patch.dict(os.environ, given)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework, ``"tensorflow"`` or ``"torch"``, is installed."""
    known = ext_base_name in ("tensorflow", "torch")
    return known and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework that this process has imported sees a GPU."""
    framework: Any = sys.modules.get(ext_base_name)
    if framework is None:
        return False
    if ext_base_name == "tensorflow":
        return bool(framework.config.list_physical_devices("GPU"))
    return ext_base_name == "torch" and bool(framework.cuda.is_available())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number is a power of 2."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741 - Horovod's name
    """Return `n` pieces of a sequence whose lengths differ by at most one, longer ones first."""
    small, larger = divmod(len(l), n)
    ends = [small * (i + 1) + min(i + 1, larger) for i in range(n)]
    return [l[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least `target`, which has three numbers."""
    if len(target.split(".")) != 3:
        raise ValueError(f"target is {target!r}; give major.minor.patch")
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
