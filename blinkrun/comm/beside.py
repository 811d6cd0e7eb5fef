"""MPI beside another control plane: it joins hosts for ranks that met by something else.

Ranks that torch's store brings together need no MPI as long as they share a host. Over several
hosts they use that which started them, from the first group of all ranks on until the process ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blinkrun import env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import is_mpi_rank

if TYPE_CHECKING:
    from blinkrun.comm.mpi import MpiControl

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # its workers inherit what an MPI told torchrun itself


@dataclass(slots=True)
class _State:
    everyone: MpiControl | None = None  # all that MPI started


_state = _State()


def join(control: ControlPlane, *, of_all_ranks: bool, timeout_s: float) -> MpiControl | None:
    """Return MPI's control plane of the ranks of `control`; None if MPI has not started them all.

    Collective over `control`. The caller finalises it, and calls `end` when the process ends.

    Parameters
    ----------
    of_all_ranks : bool
        Whether these are all ranks of the job. MPI starts only then: it waits for all.
    timeout_s : float
        Longest wait for a rank, in seconds.
    """
    is_ready = _state.everyone is not None or (of_all_ranks and _is_started_by_mpi())
    if not all(control.allgather(is_ready)):
        return None
    is_shared = "blinkrun.comm.mpi" in sys.modules  # blinkrun.init() has it, and ends MPI
    from blinkrun.comm import mpi  # noqa: PLC0415 - initialises MPI

    ranks = control.allgather(mpi.rank_among_all())
    if len(set(ranks)) < control.size:  # each is alone: nothing has joined them
        return None
    if _state.everyone is None:
        _state.everyone = mpi.MpiControl(ends_mpi=not is_shared)
    return _state.everyone.sub(ranks, timeout_s=timeout_s)


def end(before: Sequence[Callable[[], None]] = ()) -> None:
    """End MPI when all ranks have come here, if `join` has used it.

    Not for a rank that has failed: it waits for the others without a deadline, as MPI itself does,
    but asleep. What is called `before` MPI ends may use it.
    """
    everyone, _state.everyone = _state.everyone, None
    if everyone is None:
        return
    from blinkrun.comm import mpi  # noqa: PLC0415

    if not mpi.come_to_the_end():
        return
    for function in before:
        function()
    everyone.finalize()


def abort() -> None:
    """End all ranks if `join` has used MPI, unless a launcher of ours does: this one has failed.

    The others would come to `end` and wait for it, and it perhaps in an end of MPI for them.
    """
    if _state.everyone is not None and env.LAUNCHED not in os.environ:
        _state.everyone.abort(1)


def _is_started_by_mpi() -> bool:
    return is_mpi_rank() and (_TORCHRUN not in os.environ or env.is_on(env.DDP))
