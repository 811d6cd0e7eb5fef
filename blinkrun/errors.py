"""Every exception that blinkrun raises, each with the fields that its message is made of.

All derive from `BlinkrunError`. Those that mean "the ranks disagree" or "a rank is gone" are
`RuntimeError`s as well, those that mean "this argument cannot be used" are `ValueError`s or
`TypeError`s, so that scripts written for other libraries catch what they expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class BlinkrunError(Exception):
    """Base of all errors of blinkrun."""


class InternalError(BlinkrunError, RuntimeError):
    """An invariant of blinkrun itself is broken; nothing the caller did explains it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"internal error: {what}; please report it with the command, the plan and this line"
        )


class UsageError(BlinkrunError, ValueError):
    """A command line or an argument that cannot be carried out; commands exit with 2."""


class NotSupportedError(BlinkrunError, NotImplementedError):
    """Something that makes sense but is not there, such as Adasum in a reducescatter."""


class ReportError(UsageError):
    """Text about a machine that cannot be read, or only in part.

    Attributes
    ----------
    source : str
        The file, or ``-`` for standard input.
    line : int
        Where it breaks, from 1; 0 where no single line is to blame.
    problem : str
        What is wrong there and what was expected instead.
    partial : bool
        Whether leaving out what is broken gives a machine all the same (``--partial``).
    """

    def __init__(self, source: str, line: int, problem: str, *, partial: bool = False) -> None:
        self.source = source
        self.line = line
        self.problem = problem
        self.partial = partial
        where = f"{source}:{line}" if line else source
        hint = "; --partial takes what is whole" if partial else ""
        super().__init__(f"{where}: {problem}{hint}")


class LaunchError(BlinkrunError, RuntimeError):
    """The job could not be started (no MPI, mixed MPIs, a rank that did not come up)."""


class TopologyError(BlinkrunError, ValueError):
    """A topology that contradicts itself."""


class UnreachableRankError(TopologyError):
    """A rank has no path from the root.

    Attributes
    ----------
    root, rank : int
        The two ranks that no path joins.
    """

    def __init__(self, root: int, rank: int) -> None:
        self.root = root
        self.rank = rank
        super().__init__(f"rank {rank} cannot be reached from rank {root} over the given links")


class PlanError(BlinkrunError, ValueError):
    """A packing or plan that breaks its own promises (capacity, spanning, certificate)."""


class ProgramError(BlinkrunError, ValueError):
    """A program that the verifier refuses, or that cannot be built."""


class SimulationError(InternalError):
    """The simulator lost bytes, or time, or itself."""


class NotInitializedError(BlinkrunError, RuntimeError, ValueError):
    """blinkrun is used before `init()` or after `shutdown()`.

    A ValueError as well: that is what scripts written for Horovod catch.
    """

    def __init__(self, what: str = "this call") -> None:
        super().__init__(f"{what} needs blinkrun.init() first (or comes after blinkrun.shutdown())")


class ShutdownError(NotInitializedError):
    """A request was under way when its rank shut down."""

    def __init__(self, what: str) -> None:
        RuntimeError.__init__(
            self, f"{what} was under way when this rank shut down; wait for it before shutdown()"
        )


class ForkedError(NotInitializedError):
    """A process that was forked from a rank uses blinkrun; it is no rank itself.

    Attributes
    ----------
    rank : int
        The rank that it was forked from.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        RuntimeError.__init__(
            self,
            f"this process was forked from rank {rank} after blinkrun.init(); only the rank itself"
            " may call collectives",
        )


class InvalidBufferError(BlinkrunError, ValueError):
    """A buffer that a collective cannot use: dtype, layout, writability or size."""


class CollectiveError(BlinkrunError, RuntimeError):
    """A collective that was called rightly here failed: by other ranks, by time, by its values.

    The base of what `horovod.torch` calls HorovodInternalError.
    """


class MismatchError(CollectiveError):
    """Ranks called collectives that do not fit together.

    Attributes
    ----------
    calls : mapping of int to str
        What each rank called, in words.
    """

    def __init__(self, message: str, calls: Mapping[int, str] | None = None) -> None:
        self.calls = dict(calls or {})
        super().__init__(message)


class DuplicateNameError(BlinkrunError, RuntimeError, ValueError):
    """A named request is submitted while one of the same name is still under way."""


class ProcessSetError(BlinkrunError, ValueError):
    """A process set that does not exist, cannot be made, or does not include this rank."""


class GradientOrderError(UsageError, AssertionError):
    """Calls of a wrapped optimizer in an order that would lose or mix up gradients.

    An `AssertionError` too: that is what scripts written for Horovod catch.
    """


class NonFiniteError(CollectiveError):
    """A rank has given NaN or infinity where ``--check-nan`` forbids it.

    Attributes
    ----------
    name : str
        The tensor.
    rank : int
        The rank that gave it.
    """

    def __init__(self, message: str, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        super().__init__(message)


class CollectiveTimeoutError(CollectiveError):
    """A rank waited for others until its deadline.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that had not come.
    timeout_s : float
        The deadline, in seconds.
    """

    def __init__(self, message: str, ranks: Sequence[int] = (), timeout_s: float = 0.0) -> None:
        self.ranks = tuple(ranks)
        self.timeout_s = timeout_s
        super().__init__(message)


class PeerLeftError(CollectiveError):
    """A rank that others wait for has exited, crashed or shut down.

    Attributes
    ----------
    rank : int
        The rank that is gone.
    """

    def __init__(self, message: str, rank: int) -> None:
        self.rank = rank
        super().__init__(message)


class AbortedError(CollectiveError):
    """The job was aborted by another rank; `rank` names it.

    Attributes
    ----------
    rank : int
        The rank that aborted first.
    """

    def __init__(self, message: str, rank: int) -> None:
        self.rank = rank
        super().__init__(message)


class DeviceError(BlinkrunError, RuntimeError):
    """A call of the device's runtime failed.

    Attributes
    ----------
    call : str
        Name of the runtime's function.
    device : int
        Index of the device, as this process sees it; -1 where there is none.
    reason : str
        The runtime's words.
    rank : int
        Whose device it is; -1 where that is not known.
    """

    def __init__(
        self, call: str, device: int, reason: str, advice: str = "", *, rank: int = -1
    ) -> None:
        whose = [f"rank {rank}"] * (rank >= 0) + [f"device {device}"] * (device >= 0)
        hint = f"; {advice}" if advice else ""
        super().__init__(": ".join([*whose, call, reason]) + hint)
        self.call, self.device, self.reason, self.rank = call, device, reason, rank


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has not the memory that is asked for.

    Attributes
    ----------
    wanted_bytes, free_bytes : int
        What was asked for, and what the device has left.
    """

    def __init__(self, device: int, wanted_bytes: int, free_bytes: int, *, rank: int = -1) -> None:
        super().__init__(
            "cudaMalloc",
            device,
            f"no room for the arena of {wanted_bytes} bytes, {free_bytes} bytes are free",
            "set BLINKRUN_DEVICE_ARENA_BYTES to less, or make the first call before others take it",
            rank=rank,
        )
        self.wanted_bytes, self.free_bytes = wanted_bytes, free_bytes
