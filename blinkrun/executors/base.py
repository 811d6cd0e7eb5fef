"""What every executor offers to the communicator: calls in addresses, and memory of the arena."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from blinkrun.errors import InvalidBufferError
from blinkrun.executors import native
from blinkrun.types import Collective, DType, Op, Rank

if TYPE_CHECKING:
    from blinkrun.executors.emulation import Emulation
    from blinkrun.planner.hosts_plan import HostsPlan
    from blinkrun.planner.plan import Plan
    from blinkrun.schedule.ir import Addressing, Program


@dataclass(slots=True)  # not frozen, which takes two microseconds of every call
class Request:
    """One call, in addresses: what the core needs to know. `keep` keeps the memory alive.

    A call on memory of a device has the device's number in this process and the address of the
    stream in whose order it runs; `stream` is None for one on memory of the host.
    """

    collective: Collective
    dtype: DType
    op: Op
    root: int
    input: int
    output: int
    count: int
    prescale: float
    postscale: float
    keep: tuple[Any, ...] = ()
    stream: int | None = None
    device: int = -1

    def args(self) -> tuple[int, int, int, int, int, int, int, float, float]:
        """Return the arguments of the core's `run` and `submit`."""
        return (
            int(self.collective),
            int(self.dtype),
            int(self.op),
            self.root,
            self.input,
            self.output,
            self.count,
            self.prescale,
            self.postscale,
        )


class Tuner(Protocol):
    """Chooses the chunks of calls, and learns how long they took (`select.online`)."""

    def chunk_bytes(self, collective: Collective, size_bytes: int, root: Rank = 0) -> int:
        """Return the chunk of the next such call; 0 leaves it to the program."""

    def record(self, collective: Collective, size_bytes: int, time_ns: int, root: Rank = 0) -> None:
        """Learn how long the call took."""


class Executor(ABC):
    """One rank's part in the group of all ranks; every one of them makes one.

    Attributes
    ----------
    rank, size : int
        Among all ranks, whichever host they are on.
    plan : Plan or HostsPlan
        What the calls run on.
    timeout_s : float
        Longest wait for other ranks in a call, in seconds; the group has its own copy.
    group : native.Group
        Of the native core.
    fast : callable
        The short way of calls on numpy arrays; False where a call needs the long one.
    emulation : Emulation or None
        The machine at whose pace calls run.
    tuners : mapping of Addressing to Tuner
        What chooses the chunks of calls; empty: the programs do.
    """

    rank: Rank
    size: int
    plan: Plan | HostsPlan
    timeout_s: float
    group: native.Group
    fast: Callable[..., bool]
    emulation: Emulation | None
    tuners: Mapping[Addressing, Tuner]

    @abstractmethod
    def load(self, collective: Collective, root: Rank) -> None:
        """Lower the programs of `collective` and hand them to the core, if it has them not yet."""

    @abstractmethod
    def load_program(self, program: Program, *, chunk_bytes: int = 0) -> None:
        """Make `program` the only one for its collective and root, in place of any before.

        All ranks must do so between the same two calls. Buffers must then lie where the program's
        addressing says: in the arena for a DIRECT one.
        """

    @abstractmethod
    def tune(self, tuners: Mapping[Addressing, Tuner]) -> None:
        """Let tuners choose the chunks of calls, where the executor can."""

    @abstractmethod
    def let_go(self) -> None:
        """End what the group needs of MPI, once it is closed and this rank has left."""

    def run(self, request: Request, *, may_spin: bool = True) -> None:
        """Run one call to its end; without `may_spin` a waiting thread leaves its core at once."""
        self.load(request.collective, request.root)
        self.group.run(*request.args(), may_spin)

    def submit(self, request: Request) -> Any:
        """Queue one call for the helper thread; the job's `wait()` raises what went wrong."""
        self.load(request.collective, request.root)
        return self.group.submit(*request.args())

    def empty_bytes(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return `num_bytes` of arena memory; it is given back when the array is gone."""
        try:
            return np.asarray(self.group.empty(num_bytes))
        except MemoryError:
            raise InvalidBufferError(
                f"the arena has no {num_bytes} bytes left ({self.group.arena_in_use()} in use);"
                " set BLINKRUN_ARENA_BYTES to more"
            ) from None

    def contains(self, pointer: int) -> bool:
        """Whether `pointer` lies in this rank's arena."""
        return bool(self.group.contains(pointer))


def not_fast(*_: Any) -> bool:
    """Stand for the core's short way where every call is to take the long one."""
    return False
