"""Errors by Horovod's names."""

from blinkrun.errors import CollectiveError as HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """The hosts of an elastic job have changed; never raised in this version."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework differs from the one that Horovod was built for; never raised here."""
