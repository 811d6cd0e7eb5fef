"""The one world of this process: `init`, `shutdown`, and what happens when a rank ends.

A rank that ends marks itself as gone in the shared control block first. Ranks that wait for it
then fail at once, with its number. MPI_Finalize comes last and only when every rank has left.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from blinkrun import env, log
from blinkrun.errors import LaunchError, NotInitializedError, UsageError

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.communicator import Communicator
    from blinkrun.executors.cpu import CpuExecutor
    from blinkrun.executors.emulation import Emulation
    from blinkrun.planner.plan import Plan
    from blinkrun.topology.graph import Topology

LEAVE_LOOK_S = 0.002  # how often a rank that ends looks whether the others have
LEAVE_GRACE_S = 1.0  # what the other ranks of an aborted job get to leave as well


@dataclass(slots=True)
class _State:
    communicator: Communicator | None = None
    control: ControlPlane | None = None
    group: Any = None  # of the native core; outlives the communicator until the end
    pid: int = 0
    settle: Callable[[], None] | None = None  # keeps what was learned for the next job
    hooked: bool = False
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
        How the ranks find each other, where they have done so already. Default: MPI.
    emulation : Emulation, optional
        Run at the pace of that machine's links, whose ranks these are; the same on all ranks.

    Raises
    ------
    LaunchError
        If MPI cannot be loaded, two MPIs are mixed, or the ranks cannot share memory.
    """
    if _state.communicator is not None:
        return
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s}, need more than 0 seconds")
    deadline_s = env.timeout_s() if timeout_s is None else float(timeout_s)
    tune = env.choice(env.TUNE, ("auto", "on", "off"), "auto")
    from blinkrun.comm.world import connect, gather_world  # noqa: PLC0415
    from blinkrun.communicator import Communicator  # noqa: PLC0415
    from blinkrun.executors import cpu  # noqa: PLC0415

    control = _state.control or control or connect()
    world = gather_world(control)
    if world.cross_size > 1:
        hosts = sorted(set(world.hosts))
        raise LaunchError(
            f"the ranks run on {world.cross_size} hosts ({', '.join(hosts)}); this version of"
            " blinkrun runs on one host"
        )
    # Ranks may be bound to a core each: the job has the cores of all of them.
    affinity = frozenset[int]().union(*control.allgather(os.sched_getaffinity(0)))
    cores = cpu.usable_cores(affinity)
    plan = _plan_for(control, world.local_size, affinity, emulation)
    executor = cpu.CpuExecutor(
        control,
        world.local_ranks,
        plan,
        arena_bytes=env.size_bytes(env.ARENA, cpu.default_arena_bytes()),
        timeout_s=deadline_s,
        cores=cores,
        emulation=emulation,
    )
    # On shared memory there is nothing to be gained by it, so it is left out unless asked for.
    if world.rank == 0 and (tune == "on" or (tune == "auto" and emulation is not None)):
        _state.settle = _tuned(executor, emulation)
    _state.communicator = Communicator(control, world, executor, cores)
    _state.control = control
    _state.group = executor.group
    _state.pid = os.getpid()
    _hook()
    if world.rank == 0 and env.is_on(env.VERBOSE):
        for line in _state.communicator.describe().splitlines():
            log.say(line, rank=0)


def shutdown() -> None:
    """Leave the job; collectives are refused afterwards. Harmless when not initialised.

    Not collective: ranks that still wait for this one get a `PeerLeftError`.
    """
    communicator, _state.communicator = _state.communicator, None
    settle, _state.settle = _state.settle, None
    if communicator is not None:
        communicator.close()
    if settle is not None:
        settle()


def is_initialized() -> bool:
    """Whether `init` has been called and `shutdown` has not."""
    return _state.communicator is not None


def world() -> Communicator:
    """Return the communicator of all ranks; raises NotInitializedError before `init`."""
    if _state.communicator is None:
        raise NotInitializedError
    return _state.communicator


def _plan_for(
    control: ControlPlane,
    num_ranks: int,
    affinity: frozenset[int],
    emulation: Emulation | None,
) -> Plan:
    """Return the plan of this host's ranks: rank 0 has, finds or makes it, the others get it."""
    from blinkrun.planner.plan import Plan  # noqa: PLC0415

    text = None
    error = None
    if control.rank == 0:
        try:
            path = os.environ.get(env.PLAN)
            if path:
                plan = _handed_plan(path, num_ranks)
            else:
                plan = _own_plan(emulation.topology if emulation else _here(num_ranks, affinity))
            text = plan.to_json()
        except Exception as err:
            error = err
    text, reason = control.broadcast((text, None if error is None else f"{error}"))
    if error is not None:
        raise error
    if text is None:
        raise LaunchError(f"{reason} (rank 0 could not plan)")
    return Plan.from_json(text)


def _tuned(executor: CpuExecutor, emulation: Emulation | None) -> Callable[[], None]:
    """Let the executor learn its chunks; return what keeps them for the next job."""
    from blinkrun.planner import store  # noqa: PLC0415
    from blinkrun.schedule.ir import Addressing  # noqa: PLC0415
    from blinkrun.select import online  # noqa: PLC0415

    folder = store.cache_dir()
    pace = f" at 1/{emulation.scale}" if emulation else ""
    keys = {way: f"chunks {executor.plan.topology_hash}{pace} {way.name}" for way in Addressing}
    before = {
        way: store.kept(folder, key, online.settled_from_json) or {} for way, key in keys.items()
    }
    tuners = {way: online.OnlineTuner(settled) for way, settled in before.items()}
    executor.tune(tuners)

    def settle() -> None:
        for way, tuner in tuners.items():
            if tuner.settled() != before[way]:
                store.keep(folder, keys[way], online.settled_to_json(tuner.settled()))

    return settle


def _own_plan(topology: Topology) -> Plan:
    """Return the plan of these links, kept from an earlier job or made."""
    from blinkrun.planner import store  # noqa: PLC0415

    return store.plan_of(topology, store.cache_dir())


def _here(num_ranks: int, affinity: frozenset[int]) -> Topology:
    """Return what joins ranks that share this host's memory."""
    from blinkrun.topology.cpu import cpu_topology  # noqa: PLC0415
    from blinkrun.topology.probe import probe_host  # noqa: PLC0415

    return cpu_topology(probe_host(affinity=affinity), num_ranks)


def _handed_plan(path: str, num_ranks: int) -> Plan:
    """Return the plan that the launcher has put into a file for these ranks.

    Raises
    ------
    LaunchError
        If the file cannot be read, holds no plan, or one for another number of ranks.
    """
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


def _hook() -> None:
    """Install what runs when this process ends, once."""
    if _state.hooked:
        return
    _state.hooked = True
    atexit.register(_at_exit)
    sys.excepthook = _excepthook(sys.excepthook)


def _excepthook(before: Callable[..., Any]) -> Callable[..., None]:
    """Return a hook that ends the whole job after the traceback of an uncaught exception."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if os.getpid() != _state.pid or _state.control is None:
            return
        _state.failed = True
        rank = _state.control.rank
        _state.group.abort(f"rank {rank} failed: {kind.__name__}: {error}")
        sys.stdout.flush()
        sys.stderr.flush()
        if env.LAUNCHED not in os.environ:  # no launcher that ends the others: MPI does
            _state.control.abort(1)

    return hook


def _at_exit() -> None:
    if os.getpid() != _state.pid or _state.control is None:
        return  # a forked child: the rank itself is still there
    group, control = _state.group, _state.control
    shutdown()
    group.leave()
    if _state.failed:
        return
    if _others_leave(group):
        control.finalize()


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
