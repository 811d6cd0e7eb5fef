"""``blinkrun --ddp``: a script for torch.distributed finds what torchrun gives, and runs on blink.

Loaded by its path (see ``script.py``) before the program, in ranks that have ``BLINKRUN_DDP=1``.
Standard library only: torch is patched when the program imports it, and not before.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RANK = "BLINKRUN_RANK"
SIZE = "BLINKRUN_SIZE"
HOST_INDEX = "BLINKRUN_HOST_INDEX"  # set by the launcher where there are several hosts
NUM_HOSTS = "BLINKRUN_NUM_HOSTS"
MODULE = "torch.distributed.distributed_c10d"
BACKEND = "blink"
FAKE = "fake"  # a backend that moves nothing, asked for on purpose
LOCAL = (  # as the MPIs tell it
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def variables(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Return the variables by which torchrun tells a rank who it is.

    Examples
    --------
    >>> told = variables({"BLINKRUN_RANK": "1", "BLINKRUN_SIZE": "2"})
    >>> told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["GROUP_RANK"]
    ('1', '1', '2', '0')
    """
    rank, size = int(environ[RANK]), int(environ[SIZE])
    local_rank, local_size = rank, size
    for rank_name, size_name in LOCAL:
        if environ.get(rank_name, "").isdigit() and environ.get(size_name, "").isdigit():
            local_rank, local_size = int(environ[rank_name]), int(environ[size_name])
            break
    told = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": int(environ.get(HOST_INDEX, "0")),
        "GROUP_WORLD_SIZE": int(environ.get(NUM_HOSTS, "1")),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in told.items()}


def install(environ: MutableMapping[str, str]) -> None:
    """Set torchrun's variables in `environ`, and patch torch.distributed once it is imported.

    Parameters
    ----------
    environ : mutable mapping
        ``os.environ`` of the rank, with what the launcher has set in it.
    """
    if not (environ.get(RANK, "").isdigit() and environ.get(SIZE, "").isdigit()):
        return  # started by hand: the program has to be told in another way
    environ.update(variables(environ))
    environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # there is no agent: rank 0 has the store
    if MODULE in sys.modules:
        patch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module as the import system does, and has it patched once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of torch's module; None for all others."""
        del path, target
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def patch(module: Any) -> None:
    """Let every process group that `module` makes be one of ours, whatever the script asks for.

    Parameters
    ----------
    module : module
        ``torch.distributed.distributed_c10d``.
    """
    init, new_group = module.init_process_group, module._new_process_group_helper
    monitored = module.monitored_barrier

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        # A device would bind the group to GPUs, and blink takes what lies in the host's memory.
        kwargs.pop("device_id", None)
        return init(_ours(backend), *args, **kwargs)

    @functools.wraps(new_group)
    def new_process_group_helper(
        size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return new_group(size, rank, ranks, module.Backend(_ours(backend)), *args, **kwargs)

    @functools.wraps(monitored)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        own = module.GroupMember.WORLD if group is None else group
        if hasattr(own, "communicator"):
            return own.monitored_barrier(timeout, wait_all_ranks)
        return monitored(group, timeout, wait_all_ranks)

    module.init_process_group = init_process_group
    module._new_process_group_helper = new_process_group_helper
    module.monitored_barrier = monitored_barrier


def _ours(backend: Any) -> str:
    """Return our backend's name in place of `backend`, and see that torch knows it."""
    if str(backend) == FAKE:
        return FAKE
    # By name: the launcher's files stand on the standard library, and torch is loaded by now.
    importlib.import_module("blinkrun.torch.distributed")
    return BACKEND
