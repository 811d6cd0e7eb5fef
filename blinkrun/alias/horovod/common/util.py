"""The helpers of Horovod that scripts and its tests use."""

import os
from contextlib import AbstractContextManager
from unittest import mock

from blinkrun.adapter.built import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built

__all__ = ["ccl_built", "ddl_built", "env", "gloo_built", "mpi_built", "nccl_built"]


def env(**variables: str | None) -> AbstractContextManager[object]:
    """Set environment variables for as long as the context lasts; None leaves one as it is."""
    given = {name: value for name, value in variables.items() if value is not None}
    return mock.patch.dict(os.environ, given)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
