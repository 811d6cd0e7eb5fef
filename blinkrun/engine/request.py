"""What a rank asks of the engine: one named collective, as a value that ranks can compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from blinkrun.errors import UsageError
from blinkrun.types import DType, Op, Rank

WORLD = 0  # the process set of all ranks
ADASUM = 5  # beside the values of `Op`: an operation of the engine, not of programs
CPU = "cpu"
CUDA = "cuda"


class Kind(IntEnum):
    """What is asked for. `ADD_SET` and `REMOVE_SET` concern process sets; all ranks ask."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    ADD_SET = 6
    REMOVE_SET = 7

    @property
    def label(self) -> str:
        """Name in lower case, as messages and the timeline spell it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Member:
    """One tensor of a request: element type and shape on the rank that asks."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One named collective as one rank wants it.

    A grouped call is one request with several members, which therefore complete together.

    Attributes
    ----------
    name : str
        The same on all ranks; unique among the requests of a process set that are under way.
    kind : Kind
        Which collective.
    members : tuple of Member
        The tensors. For ALLGATHER and ALLTOALL the first dimension may differ between ranks.
    process_set : int
        Number of the process set; `WORLD` is that of all ranks.
    op : int
        An `Op` or `ADASUM`, for ALLREDUCE and REDUCESCATTER.
    root : Rank
        Whose values a BROADCAST gives, as a rank of the world; -1 elsewhere.
    scales : (float, float)
        Factors before and after the reduction.
    splits : tuple of int
        ALLTOALL: rows of this rank's tensor for each rank of the set.
    device : str
        Where the tensors lie, ``cpu`` or ``cuda``: which of the devices is each rank's own matter.
        More may follow that ranks must agree on, in brackets.
    ranks : tuple of Rank
        ADD_SET: the ranks of the new set. REMOVE_SET: ``(number of the set,)``.
    where : str
        ``file:line`` of the caller, for messages; not compared between ranks.
    """

    name: str
    kind: Kind
    members: tuple[Member, ...] = ()
    process_set: int = WORLD
    op: int = Op.SUM
    root: Rank = -1
    scales: tuple[float, float] = (1.0, 1.0)
    splits: tuple[int, ...] = ()
    device: str = CPU
    ranks: tuple[Rank, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a request needs a name")
