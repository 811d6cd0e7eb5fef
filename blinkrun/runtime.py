"""The one world of this process: `init`, `shutdown`, and what happens when a rank ends.

A rank that ends marks itself as gone in the shared control block first. Ranks that wait for it
then fail at once, with its number. MPI_Finalize comes last and only when every rank has left.

Groups of some of the ranks (`subgroup`) live as long as the world at most, and end as it does.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from blinkrun import env, log
from blinkrun.errors import LaunchError, NotInitializedError, UsageError
from blinkrun.executors.leaving import Leaving

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.communicator import Communicator
    from blinkrun.executors.emulation import Emulation
    from blinkrun.planner.hosts_plan import HostsPlan
    from blinkrun.planner.plan import Plan
    from blinkrun.topology.between import Network
    from blinkrun.types import Rank

START_S = 60.0  # what MPI has to start, or longer if collectives have
LEAVE_LOOK_S = 0.002  # how often a rank that ends looks whether the others have
LEAVE_GRACE_S = 1.0  # what the other ranks of an aborted job get to leave as well


@dataclass(slots=True)
class _State:
    communicator: Communicator | None = None
    control: ControlPlane | None = None  # of the world, also of the last one after shutdown
    connected: ControlPlane | None = None  # to all that MPI started; made once
    executor: Any = None  # its group outlives the communicator until the end
    subgroups: list[Communicator] = field(default_factory=list)
    leaving: Leaving = field(default_factory=Leaving)  # subgroups that others have not left yet
    at_shutdown: list[Callable[[], None]] = field(default_factory=list)
    device: int | None = None  # of this rank, once all have chosen
    pid: int = 0
    hooked: bool = False
    failure_hooked: bool = False
    failed: bool = False


_state = _State()


def init(
    timeout_s: float | None = None,
    *,
    control: ControlPlane | None = None,
    emulation: Emulation | None = None,
) -> None:
    """Join the other ranks of the job; every rank must call it. A second call does nothing.

    Works in ranks that `blinkrun`, `mpiexec` or `srun` started, and in a process that is alone
    (size 1, no MPI needed).

    Parameters
    ----------
    timeout_s : float, optional
        Longest wait for other ranks in a collective, in seconds. Default: BLINKRUN_TIMEOUT_S
        (`blinkrun --timeout`), else 600.
    control : ControlPlane, optional
        Who takes part, where that is not everyone that MPI started; see `comm.mpi.control_of`.
    emulation : Emulation, optional
        Run at the pace of that machine's links, whose ranks these are; the same on all ranks.

    Raises
    ------
    LaunchError
        If MPI cannot be loaded, two MPIs are mixed, the ranks of a host cannot share memory, or
        there are several hosts and something that is for one only.
    CollectiveTimeoutError
        If a host does not answer over the network.
    """
    if _state.communicator is not None:
        return
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s}, need more than 0 seconds")
    deadline_s = env.timeout_s() if timeout_s is None else float(timeout_s)
    tune = env.choice(env.TUNE, ("auto", "on", "off"), "auto")
    from blinkrun.assembly import assemble  # noqa: PLC0415

    _state.pid = os.getpid()
    _hook_failure()  # others may wait for this rank from here on
    if control is None:
        control = _connected()
    communicator = assemble(
        control, timeout_s=deadline_s, plan=_handed_plan(control), emulation=emulation
    )
    # On shared memory there is nothing to be gained by it, so it is left out unless asked for.
    wanted = tune == "on" or (tune == "auto" and emulation is not None)
    if control.rank == 0 and wanted and communicator.cross_size == 1:
        _state.at_shutdown.append(_tuned(communicator, emulation))
    if _state.executor is not None:
        _state.leaving.add_world(_state.executor)
    _state.communicator = communicator
    _state.control = control
    _state.executor = communicator.executor
    if communicator.cross_size > 1:
        _ = communicator.journal  # others of this host may post before this rank has an engine
    _hook_exit()
    if control.rank == 0:
        _speak(communicator, tune)


def _speak(communicator: Communicator, tune: str) -> None:
    """Say what of the settings does nothing and, if asked, what was chosen."""
    for name, meant in env.mistyped().items():
        log.say(f"{name} is no variable of blinkrun; {meant} is", rank=0)
    if tune == "on" and communicator.cross_size > 1:
        log.say(f"{env.TUNE}=on does nothing over several hosts: the plan says the chunks", rank=0)
    if env.is_on(env.VERBOSE):
        for line in communicator.describe().splitlines():
            log.say(line, rank=0)


def shutdown() -> None:
    """Leave the job; collectives are refused afterwards. Harmless when not initialised.

    Not collective: ranks that still wait for this one get a `PeerLeftError`.
    """
    if _is_forked():
        return
    while _state.at_shutdown:
        _run_last(_state.at_shutdown)
    _state.device = None
    subgroups, _state.subgroups = _state.subgroups, []
    communicator, _state.communicator = _state.communicator, None
    for each in (*reversed(subgroups), communicator):
        if each is not None:
            each.close()


def at_shutdown(function: Callable[[], None]) -> None:
    """Have `function` called once when this rank leaves, while it still belongs to the world.

    By `shutdown` or, without it, when the interpreter exits; the latest first. What it raises is
    said and does not keep the others from being called. Not collective: other ranks may be gone,
    or the job aborted.

    Raises
    ------
    NotInitializedError
        Before `init`.
    """
    if _state.communicator is None:
        raise NotInitializedError("at_shutdown")
    _state.at_shutdown.append(function)


def subgroup(ranks: Sequence[Rank]) -> Communicator:
    """Return a communicator of some ranks of the world.

    Collective among `ranks` only, which all give the same list; other ranks take no part and need
    not know. Waits for them as long as a collective does.

    Parameters
    ----------
    ranks : sequence of Rank
        Numbers in the world, this rank's among them, in the order in which they count in the
        group: `ranks[i]` is its rank i, and roots are given so. Messages name world ranks.

    Returns
    -------
    Communicator
        With an arena and a plan of its own: for one host if its ranks are on one, else for those
        hosts and the network as the world knows it. It ends with `close`, or by `shutdown`. On an
        emulated machine it runs at the host's own pace.

    Raises
    ------
    NotInitializedError
        Before `init` or after `shutdown`.
    UsageError
        If a rank does not exist, comes twice, or this one is missing.
    CollectiveTimeoutError
        If a rank does not come.
    """
    parent = world()
    from blinkrun.assembly import assemble  # noqa: PLC0415

    timeout_s = parent.executor.timeout_s
    control = parent.control.sub(ranks, timeout_s=timeout_s)
    everyone = list(ranks) == list(range(parent.size)) and not parent.executor.emulation
    communicator = assemble(
        control,
        timeout_s=timeout_s,
        names=list(ranks),
        plan=parent.plan if everyone else None,
        networks=_networks(parent, ranks),
        sharing=parent.local_size,
    )
    # A rank that waits in the group does not read the world's journal: others need its room.
    communicator.executor.group.relieve_also(parent.executor.group)
    _state.leaving.sweep()
    leave = partial(_state.leaving.add, num_hosts=communicator.cross_size)
    communicator.at_close(partial(leave, communicator.executor, control))
    _state.subgroups = [each for each in _state.subgroups if not each.is_closed]
    _state.subgroups.append(communicator)
    return communicator


def is_initialized() -> bool:
    """Whether `init` has been called and `shutdown` has not."""
    return _state.communicator is not None


def world() -> Communicator:
    """Return the communicator of all ranks; raises NotInitializedError before `init`."""
    if _state.communicator is None:
        raise NotInitializedError
    return _state.communicator


def local_device() -> int:
    """Return the number of this rank's GPU, as its process counts those that it sees.

    For ``torch.cuda.set_device`` and its like, before the first tensor on a GPU. Each rank of a
    host gets its own, or its part of one (BLINKRUN_GPUS_PER_RANK, `blinkrun --gpus-per-rank`);
    where there are more GPUs than ranks, those on which an allreduce is fastest. Collective over
    all ranks the first time, waits for them as long as a collective does.

    Raises
    ------
    NotInitializedError
        Before `init`.
    LaunchError
        If there is no GPU here, or there are too few for the ranks of this host.
    UsageError
        If BLINKRUN_GPUS_PER_RANK has no number of GPUs.
    """
    communicator = world()
    if _state.device is None:
        per_rank = env.gpus_per_rank()
        from blinkrun.executors import device_choice  # noqa: PLC0415 - jobs on CPUs need none

        communicator.barrier()  # has a deadline, which what follows has not
        _state.device = device_choice.choose(communicator.control, communicator._world, per_rank)
    return _state.device


def chosen_device() -> int | None:
    """Return what `local_device` has returned in this job; None if nobody has asked."""
    return _state.device


def _networks(parent: Communicator, ranks: Sequence[Rank]) -> list[Network] | None:
    """Return the network of each rank's host, as it was measured for the world."""
    if parent.cross_size == 1:
        return None
    plan = cast("HostsPlan", parent.plan)
    host_of = parent.host_of
    return [plan.network[host_of[rank]] for rank in ranks]


def _connected() -> ControlPlane:
    """Return the control plane of all that MPI started, made by the first call."""
    if _state.connected is None:
        from blinkrun.comm.world import connect, is_mpi_rank  # noqa: PLC0415

        if is_mpi_rank():
            _start_mpi(max(env.timeout_s(), START_S))
        _state.connected = connect()
    return _state.connected


def _start_mpi(timeout_s: float) -> None:
    """Have MPI started, which waits for all processes, but not longer than `timeout_s`."""
    from blinkrun.executors import native  # noqa: PLC0415

    text = (
        f"blinkrun: MPI did not start within {timeout_s:g} s: every process of the job must call"
        " blinkrun.init(), and reach the others\n"
    )
    with native.watchdog(timeout_s, text):
        import blinkrun.comm.mpi  # noqa: F401, PLC0415 - MPI starts when it is loaded


def _is_forked() -> bool:
    """Whether this process is a child of the rank: its memory is the rank's, its end is not."""
    return _state.pid not in (0, os.getpid())


def _run_last(functions: list[Callable[[], None]]) -> None:
    function = functions.pop()
    try:
        function()
    except Exception as err:
        what = getattr(function, "__qualname__", repr(function))
        log.say(f"at shutdown, {what} failed: {type(err).__name__}: {err}")


def _tuned(communicator: Communicator, emulation: Emulation | None) -> Callable[[], None]:
    """Let the world learn its chunks; return what keeps them for the next job."""
    from blinkrun.planner import store  # noqa: PLC0415
    from blinkrun.schedule.ir import Addressing  # noqa: PLC0415
    from blinkrun.select import online  # noqa: PLC0415

    folder = store.cache_dir()
    pace = f" at 1/{emulation.scale}" if emulation else ""
    keys = {way: f"chunks {communicator.plan.topology_hash}{pace} {way.name}" for way in Addressing}
    before = {
        way: store.kept(folder, key, online.settled_from_json) or {} for way, key in keys.items()
    }
    tuners = {way: online.OnlineTuner(settled) for way, settled in before.items()}
    communicator.tune(tuners)

    def settle() -> None:
        for way, tuner in tuners.items():
            if tuner.settled() != before[way]:
                store.keep(folder, keys[way], online.settled_to_json(tuner.settled()))

    return settle


def _handed_plan(control: ControlPlane) -> Plan | None:
    """Return the plan that the launcher has put into a file for these ranks, if it has.

    Raises
    ------
    LaunchError
        If the file cannot be read, holds no plan, or one for another number of ranks.
    """
    path = os.environ.get(env.PLAN)
    if not path:
        return None
    from blinkrun.executors.agreed import agreed_plan  # noqa: PLC0415

    return agreed_plan(control, lambda: _plan_in(path, control.size))


def _plan_in(path: str, num_ranks: int) -> Plan:
    from blinkrun.planner.plan import Plan  # noqa: PLC0415

    try:
        plan = Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as err:
        raise LaunchError(f"{env.PLAN}={path}: cannot be read: {err.strerror}") from err
    except ValueError as err:  # PlanError, UnicodeDecodeError
        raise LaunchError(f"{env.PLAN}={path}: {err}") from err
    if plan.size != num_ranks:
        raise LaunchError(
            f"{env.PLAN}={path}: a plan for {plan.size} ranks, but the job has {num_ranks}"
        )
    return plan


def _hook_failure() -> None:
    """Install what runs when an exception ends this process, once."""
    if not _state.hooked and not _state.failure_hooked:
        _state.failure_hooked = True
        sys.excepthook = _excepthook(sys.excepthook)


def _hook_exit() -> None:
    """Install what runs when this process ends, once; before it runs what was installed later."""
    if not _state.hooked:
        _state.hooked = True
        atexit.register(_at_exit)


def _excepthook(before: Callable[..., Any]) -> Callable[..., None]:
    """Return a hook that ends the whole job after the traceback of an uncaught exception."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if os.getpid() != _state.pid:
            return
        _state.failed = True
        control = _state.control or _state.connected
        if control is not None:
            _abort_all(f"rank {control.rank} failed: {kind.__name__}: {error}")
        sys.stdout.flush()
        sys.stderr.flush()
        if env.LAUNCHED in os.environ:  # the launcher ends the others, else MPI does
            return
        if control is not None:
            control.abort(1)
        elif "blinkrun.comm.mpi" in sys.modules:  # it has not met the others
            from blinkrun.comm import mpi  # noqa: PLC0415

            mpi.abort(1)

    return hook


def _abort_all(text: str) -> None:
    """End the waits of all ranks, whichever group they wait in."""
    for each in _state.subgroups:
        if not each.is_closed:
            each.executor.group.abort(text)
    if _state.executor is not None:
        _state.executor.group.abort(text)


def _at_exit() -> None:
    if os.getpid() != _state.pid or _state.control is None:
        return  # a forked child: the rank itself is still there
    executor, control = _state.executor, _state.control
    shutdown()
    executor.group.leave()
    if _state.failed:
        return
    if not _others_leave(executor.group):
        return
    _state.leaving.let_go()
    executor.let_go()  # nothing of ours may be under way when MPI ends
    if control is not _state.connected:
        control.finalize()
    if _state.connected is not None:
        _state.connected.finalize()


def _others_leave(group: Any) -> bool:
    """Wait until every rank has left; False if an aborted job's ranks do not within a while.

    MPI_Finalize waits without a deadline for ranks that may yet fail. Waiting here instead, their
    failure is seen.
    """
    pause_s = LEAVE_LOOK_S
    grace_ends = None
    while not group.all_left():
        if group.aborted():
            grace_ends = grace_ends or time.monotonic() + LEAVE_GRACE_S
            if time.monotonic() > grace_ends:
                return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)
    return True
