"""The control plane over the key-value store that torch hands to every process group.

No MPI, unless the ranks are on several hosts.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import PrefixStore, Store

from blinkrun.comm import beside
from blinkrun.comm.base import check_subset
from blinkrun.errors import CollectiveTimeoutError
from blinkrun.types import Rank

if TYPE_CHECKING:
    from blinkrun.comm.base import Wire
    from blinkrun.comm.mpi import MpiControl

LOOK_S = 1.0  # how often a rank that waits looks whether its deadline is over


class StoreControl:
    """Ranks that share a store; every call is collective and ends within `timeout_s`.

    A store may outlive the group (torchrun keeps one for all that a program does), so keys carry
    the number of the group: how often this rank has made one with this prefix.

    Parameters
    ----------
    store : Store
        Of this group alone, but perhaps of its predecessors too.
    rank, size : int
        Of this process in the group.
    timeout_s : float
        Longest wait for another rank, in seconds.
    of_all_ranks : bool
        Whether these are all ranks of the job.
    """

    def __init__(
        self, store: Store, rank: Rank, size: int, *, timeout_s: float, of_all_ranks: bool = False
    ) -> None:
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        number = store.add(f"blinkrun/made/{rank}", 1)
        self._store = PrefixStore(f"blinkrun/{number}", store)
        self._calls = 0
        self._of_all_ranks = of_all_ranks
        self._mpi: MpiControl | None = None

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank; items are pickled."""
        self._calls += 1
        self._store.set(self._key(self.rank), pickle.dumps(item))
        return [self._get(rank) for rank in range(self.size)]

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`; it is pickled."""
        self._calls += 1
        if self.rank == root:
            self._store.set(self._key(root), pickle.dumps(item))
            return item
        return self._get(root)

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> StoreControl:
        """Return the control plane of `ranks` alone; see `ControlPlane.sub`."""
        chosen = check_subset(ranks, rank=self.rank, size=self.size)
        name = "sub/" + ",".join(map(str, chosen))
        store = PrefixStore(name, self._store)
        return StoreControl(store, chosen.index(self.rank), len(chosen), timeout_s=timeout_s)

    def wire(self) -> Wire | None:
        """Return a communicator of the MPI that has started the ranks; None if none has."""
        if self._mpi is None:
            self._mpi = beside.join(
                self, of_all_ranks=self._of_all_ranks, timeout_s=self._timeout_s
            )
        return None if self._mpi is None else self._mpi.wire()

    def finalize(self) -> None:
        """Give MPI's communicators back; the store belongs to torch."""
        if self._mpi is not None:
            self._mpi.finalize()

    def abort(self, code: int) -> None:
        """Do nothing: a store ends nobody; the ranks see it in shared memory, or by deadline."""
        del code

    def _key(self, rank: Rank) -> str:
        return f"{self._calls}/{rank}"

    def _get(self, rank: Rank) -> Any:
        """Return what `rank` has given to this call, waiting for it."""
        key = self._key(rank)
        deadline = time.monotonic() + self._timeout_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                # In steps: a wait inside the store does not look at signals such as Ctrl-C.
                self._store.wait([key], timedelta(seconds=max(0.001, min(LOOK_S, left_s))))
            except RuntimeError as err:
                if left_s > LOOK_S and self._is_answering():
                    continue
                raise self._missing(err) from None
            return pickle.loads(self._store.get(key))

    def _is_answering(self) -> bool:
        """Whether the store itself is still there, so that it is worth to wait."""
        try:
            self._store.check([self._key(self.rank)])
        except RuntimeError:
            return False
        return True

    def _missing(self, cause: RuntimeError) -> CollectiveTimeoutError:
        """Return the error that names the ranks which have not come."""
        try:
            late = [rank for rank in range(self.size) if not self._store.check([self._key(rank)])]
            text = f"ranks {late} did not come within {self._timeout_s:g} s"
        except RuntimeError:
            late, text = [], f"the store of the process group does not answer: {cause}"
        return CollectiveTimeoutError(
            f"rank {self.rank} of {self.size} cannot join the process group: {text}",
            late,
            self._timeout_s,
        )
