"""What a process group is called, and what it can do, as torch asks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup, Store

NAME = "blink"
_DEVICES = [torch.device("cpu"), torch.device("cuda")]  # objects travel on the first


class NamedGroup(ProcessGroup):
    """The part of a process group that says who it is.

    Parameters
    ----------
    store : Store
        Of the group.
    rank, size : int
        As the group counts.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._store = store
        self._name = ""
        self._description = ""
        self._sequence = 0

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return ``blink``."""
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name by which torch knows the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Take the name by which torch knows the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return what the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """Take what the group is for."""
        self._description = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return _DEVICES

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"the blink backend has nothing for {device}; it takes cpu and cuda")
        return self

    def get_group_store(self) -> Store:
        """Return the store of the group."""
        return self._store

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _has_hooks(self) -> bool:
        return False
