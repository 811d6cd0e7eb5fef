"""The engine: named requests of this rank, in any order and from any thread, run in one order.

`start` makes the engine of the world that `runtime.init` has joined. What all ranks of a process
set have submitted runs; `docs/engine.md` tells how a request travels.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blinkrun import env, log, runtime
from blinkrun.engine.check import check
from blinkrun.engine.devices import Devices
from blinkrun.engine.drive import Driver
from blinkrun.engine.events import JOIN, Event, Failed, Joined, Noted, Ready, Verdict
from blinkrun.engine.execute import Executor
from blinkrun.engine.failures import ended_by, of_values, under_way
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.journal import Journal
from blinkrun.engine.names import Names
from blinkrun.engine.negotiate import Negotiator
from blinkrun.engine.process_sets import ProcessSets, Subgroup
from blinkrun.engine.record import Record
from blinkrun.engine.request import WORLD, Kind, Request
from blinkrun.engine.settings import Settings
from blinkrun.engine.stats import Stats
from blinkrun.engine.timeline import Timeline
from blinkrun.engine.watch import Watch
from blinkrun.errors import (
    BlinkrunError,
    ForkedError,
    NotInitializedError,
    PeerLeftError,
    ShutdownError,
    UsageError,
)
from blinkrun.types import Rank

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blinkrun.communicator import Communicator


class Engine:
    """Negotiates and runs the named requests of this rank. All methods may be called by any thread.

    Parameters
    ----------
    world : Communicator
        Of all ranks.
    journal : Journal
        Between all ranks; nobody else reads this rank's end.
    subgroup : callable
        Makes a communicator of some ranks of the world.
    settings : Settings
        From the environment, or a test.
    """

    def __init__(
        self, world: Communicator, journal: Journal, subgroup: Subgroup, settings: Settings
    ) -> None:
        self.world = world
        self.settings = settings
        self._journal = journal
        self._negotiator = Negotiator(
            world.rank, world.size, cache_capacity=settings.cache_capacity
        )
        self._sets = ProcessSets(world, subgroup)
        self._handles: dict[tuple[int, str], Handle] = {}
        self._names = Names()
        self.joins = self._names.joins
        self._failure: BlinkrunError | None = None
        self._is_stopped = False
        self._record = Record()
        self.devices = Devices(world, runtime.chosen_device)
        self._executor = Executor(
            self._sets,
            self._find,
            self._record,
            self.devices,
            fusion_bytes=settings.fusion_bytes,
        )
        self._watch = Watch(
            self._negotiator,
            journal,
            warning_s=settings.stall_warning_s,
            shutdown_s=settings.stall_shutdown_s,
            timeout_s=world.executor.timeout_s,
            hosts=world.hosts if world.cross_size > 1 else (),
        )
        self._driver = Driver(
            journal,
            self._negotiator,
            act=self._act,
            look=self._look,
            is_busy=self._is_busy,
            give_up=self._give_up,
            is_far=world.cross_size > 1,
        )
        self._mutex = self._driver.mutex
        self.work_until = self._driver.wait_for  # a condition that the end of a request makes true
        self._is_alone = world.size == 1
        if not self._is_alone:
            self._driver.start_helper(f"blinkrun-engine-{world.rank}")

    # ---- requests ------------------------------------------------------------------------------

    def submit(
        self,
        request: Request,
        parts: Sequence[Part],
        *,
        sync: bool = False,
        streams: Sequence[int] = (),
    ) -> Handle:
        """Ask for a collective; all ranks of its process set must, in any order.

        Parameters
        ----------
        request : Request
            Its name must not be under way in its process set on this rank.
        parts : sequence of Part
            The memory of each member.
        sync : bool
            The caller waits for the handle at once. Without it, the helper thread drives.
        streams : sequence of int
            For memory of a device: the streams that have made it; else those of the parts.

        Raises
        ------
        DuplicateNameError
            If a request of this name is under way.
        ProcessSetError
            If the process set does not exist or lacks this rank.
        InvalidBufferError
            If the tensors do not go with the operation.
        NotInitializedError
            After `stop`.
        CollectiveError
            If the engine has come to an end: a rank is gone, a deadline is over.
        """
        defect = self._check(request, parts)
        handle = Handle(self, request, parts, passage=self.devices.enter(request, parts, streams))
        return self._ask(handle, defect, sync=sync)

    def submit_again(self, request: Request, parts: Sequence[Part], *, keep: object) -> Handle:
        """`submit` what was submitted before, on memory of the same kind: only values are checked.

        Parameters
        ----------
        keep : object
            What keeps the memory alive; held until the request is done.
        """
        handle = Handle(self, request, parts, keep=keep)
        defect = self._check(request, parts) if self.settings.check_nan else ""
        return self._ask(handle, defect, sync=False)

    def submit_all(
        self,
        requests: Sequence[tuple[Request, Sequence[Part]]],
        *,
        sync: bool = False,
        streams: Sequence[int] = (),
    ) -> list[Handle]:
        """Ask for several in one message as `submit` does; all of them are refused, or none."""
        defects = [self._check(request, parts) for request, parts in requests]
        handles = [
            Handle(self, request, parts, passage=self.devices.enter(request, parts, streams))
            for request, parts in requests
        ]
        with self._mutex:
            self._refuse_any(handles)
            for handle, defect in zip(handles, defects, strict=True):
                self._offer(handle, defect)
            self._driver.queued(sync=sync, num_bytes=max((h.largest for h in handles), default=0))
        self._run_now(sync=sync)
        return handles

    def _ask(self, handle: Handle, defect: str, *, sync: bool) -> Handle:
        with self._mutex:
            self._offer(handle, defect)
            self._driver.queued(sync=sync, num_bytes=handle.largest)
        self._run_now(sync=sync)
        return handle

    def next_name(self, kind_label: str, process_set: int = WORLD) -> str:
        """Return a name for a call without one, such as ``allreduce.noname.0.1``."""
        with self._mutex:
            return self._names.next(kind_label, process_set)

    def barrier(self, process_set: int = WORLD, name: str | None = None, where: str = "") -> None:
        """Return when all ranks of the set have called it."""
        name = name or self.next_name("barrier", process_set)
        request = Request(name, Kind.BARRIER, process_set=process_set, where=where)
        self.submit(request, (), sync=True).wait()

    def join(self, process_set: int = WORLD, where: str = "") -> int:
        """Say that this rank has no more data; return the rank that says so last.

        Until then this rank gives neutral elements to allreduces, and counts in averages.
        """
        request = Request("join", Kind.BARRIER, process_set=process_set, where=where)
        handle = Handle(self, request, (), key=(process_set, JOIN))
        with self._mutex:
            self._refuse_if_over(request)
            self._negotiator.join(process_set)
            self._driver.heard_s = time.monotonic()  # it may have been silent for long before
            self._handles[handle.key] = handle
            self._driver.queued(sync=True)
        handle.wait()
        return handle.number

    # ---- process sets --------------------------------------------------------------------------

    def add_process_set(self, ranks: Sequence[Rank], where: str = "") -> int:
        """Make a process set of `ranks`, return its number; every rank of the world calls it."""
        name = self.next_name(Kind.ADD_SET.label)
        request = Request(name, Kind.ADD_SET, ranks=tuple(ranks), where=where)
        handle = self.submit(request, (), sync=True)
        handle.wait()
        return handle.number

    def remove_process_set(self, number: int, where: str = "") -> bool:
        """Remove a process set; every rank of the world must call it."""
        name = self.next_name(Kind.REMOVE_SET.label)
        request = Request(name, Kind.REMOVE_SET, ranks=(number,), where=where)
        self.submit(request, (), sync=True).wait()
        return True

    def process_sets(self) -> dict[int, tuple[Rank, ...]]:
        """Return the ranks of each process set, by number."""
        return self._sets.members()

    def ranks(self, process_set: int = WORLD) -> tuple[Rank, ...]:
        """Return the ranks of a process set; ProcessSetError if it does not exist."""
        return self._sets.ranks(process_set)

    def communicator(self, process_set: int = WORLD) -> Communicator:
        """Return the communicator of a process set; ProcessSetError if this rank is not in it."""
        return self._sets.communicator(process_set)

    def empty_bytes(self, num_bytes: int, process_set: int = WORLD) -> npt.NDArray[np.uint8]:
        """Return memory in the arena that the set's collectives run on: they copy nothing there."""
        memory: npt.NDArray[np.uint8] = self.communicator(process_set).empty_bytes(num_bytes)
        return memory

    # ---- what it does ----------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """Counts since the engine was started."""
        return self._record.stats

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """Write what happens to each tensor to `path`, as a Chrome trace; rank 0 does.

        One that is being written is ended first.

        Raises
        ------
        UsageError
            If the file cannot be written.
        """
        self._refuse_in_child()
        if self.world.rank == 0:
            timeline = Timeline(path, self.world.rank, mark_cycles)
            self._executor.trace(True)
            self._record.set_timeline(timeline)
            self._driver.tick = timeline.tick
            self._journal.kick()  # the helper is to sleep no longer than a tick

    def stop_timeline(self) -> None:
        """End the timeline, if there is one."""
        self._refuse_in_child()  # the file is the rank's
        self._driver.tick = None
        self._executor.trace(False)
        self._record.set_timeline(None)

    # ---- end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no further part. Not collective: ranks that still need this one get an error."""
        with self._mutex:
            if self._is_stopped or isinstance(self._failure, ForkedError):
                return
            self._is_stopped = True
        with contextlib.suppress(BlinkrunError):  # the job may be over for another reason
            self._leave()
        self._driver.stop()
        self._fail_all(lambda handle: ShutdownError(f"{handle.request.kind.label} '{handle.name}'"))
        self._driver.tick = None
        self._executor.close()
        self.devices.close()
        self._record.set_timeline(None)

    def _leave(self) -> None:
        """Tell the others, and run what is ready: they may be in the middle of it."""
        if self._failure is None:
            with self._mutex:
                self._negotiator.leave()
                self._driver.queued(sync=True)
            self._driver.drain(lambda: self.world.rank in self._negotiator.left)

    def abandon(self, handle: Handle, reason: str) -> None:
        """Let a request fail on the ranks that have submitted it, unless all have; never waits."""
        with self._mutex:
            if self._handles.get(handle.key) is handle and self._failure is None:
                self._negotiator.fail(handle.request.process_set, handle.name, reason)
                self._driver.queued(sync=False)

    # ---- for handles and the driver ------------------------------------------------------------

    def wait_for(self, handle: Handle) -> None:
        """Return when `handle` is done, driving meanwhile."""
        if self._driver.is_driver:
            raise UsageError(f"'{handle.name}' is waited for in a callback of the engine")
        begun_ns = time.monotonic_ns()
        try:
            self._driver.wait_for(handle.done)
        except Exception:
            if not handle.is_done:  # else the engine has ended, and the handle says why
                raise
        finally:
            self._record.stats.waited_ns += time.monotonic_ns() - begun_ns

    def _run_now(self, *, sync: bool) -> None:
        """Run all that is under way in a world of one rank, which has no helper."""
        if self._is_alone and not sync and not self._driver.is_driver:
            self._driver.wait_for(lambda: not self._is_busy())

    def release(self, handle: Handle) -> None:
        """Forget a handle that ends."""
        self._handles.pop(handle.key, None)
        self._record.ended(handle.request)

    def _find(self, request: Request) -> Handle:
        return self._handles[request.process_set, request.name]

    def _is_busy(self) -> bool:
        return self._failure is None and bool(self._handles or not self._negotiator.is_idle())

    def _act(self, events: list[Event], may_spin: bool) -> None:
        self._record.is_overlapped = not may_spin  # it is the helper that drives
        for event in events:
            if isinstance(event, Ready):
                self._executor.run(event.entries, may_spin=may_spin)
            elif isinstance(event, Failed):
                self._fail(event)
            elif isinstance(event, Joined):
                with self._mutex:
                    self._names.joined(event.process_set)
                handle = self._handles.get((event.process_set, JOIN))
                if handle is not None:
                    handle.number = event.last_rank
                    handle.finish()
            elif isinstance(event, Noted):
                with self._mutex:
                    self._watch.noted(event.sender, event.payload)

    def _fail(self, event: Failed) -> None:
        handle = self._handles.get((event.process_set, event.name))
        if handle is None or self.world.rank not in event.ranks:
            return
        left = event.error.rank if isinstance(event.error, PeerLeftError) else None
        if left != self.world.rank:  # else it is for `stop` to say why
            handle.finish(event.error)

    def _look(self, now_s: float) -> bool:
        timeline = self._record.timeline
        if timeline is not None:
            timeline.tick()
        with self._mutex:
            joined = [number for number, name in self._handles if name == JOIN]
            self._watch.look_after_joins(joined, now_s - self._driver.heard_s)
            return self._watch.look(now_s)

    def _give_up(self, error: BaseException) -> None:
        """End the engine: every request under way and every later call gets the error."""
        with self._mutex:
            if self._failure is not None:
                return
            self._failure = ended_by(self.world.rank, error)
            if not isinstance(error, NotInitializedError):
                self._sets.abort(str(self._failure))  # others may wait for this rank
        failure = self._failure
        self._fail_all(lambda _: failure)
        self._driver.wake_all()

    def end_in_child(self) -> None:
        """Refuse everything in a forked child: it is no rank."""
        self._driver.forget_threads()
        self._mutex = self._driver.mutex
        self._failure = ForkedError(self.world.rank)
        for handle in list(self._handles.values()):
            handle.drop_callbacks()
            handle.finish(self._failure)

    def _fail_all(self, error: Callable[[Handle], BaseException]) -> None:
        for handle in list(self._handles.values()):
            handle.finish(error(handle))

    # ---- checks --------------------------------------------------------------------------------

    def _check(self, request: Request, parts: Sequence[Part]) -> str:
        size = self._sets.size(request.process_set)
        finite = self.devices.is_finite if self.settings.check_nan else None
        defect = check(request, parts, size=size, is_finite=finite)
        return of_values(self.world.rank, request, defect)

    def _offer(self, handle: Handle, defect: str) -> None:
        """Put a request into the outbox; the mutex is held."""
        request = handle.request
        self._refuse_if_over(request)
        if handle.key in self._handles:
            raise under_way(self.world.rank, request)
        self._negotiator.offer(request)
        if defect:
            self._negotiator.fail(request.process_set, request.name, defect, Verdict.NON_FINITE)
        self._handles[handle.key] = handle
        self._record.submitted(request)

    def _refuse_if_over(self, request: Request) -> None:
        if self._is_stopped:
            raise NotInitializedError(f"{request.kind.label} '{request.name}'")
        if self._failure is not None:
            raise self._failure

    def _refuse_in_child(self) -> None:
        if isinstance(self._failure, ForkedError):
            raise self._failure

    def _refuse_any(self, handles: Sequence[Handle]) -> None:
        """Refuse all if one of them would be refused; the mutex is held."""
        seen: set[tuple[int, str]] = set()
        for handle in handles:
            if handle.key in self._handles or handle.key in seen:
                raise under_way(self.world.rank, handle.request)
            seen.add(handle.key)
            self._sets.communicator(handle.request.process_set)


_lock = threading.Lock()
_current: list[Engine] = []
_stopped: Communicator | None = None  # the world whose engine was stopped last


def start(process_sets: Sequence[Sequence[Rank]] = ()) -> Engine:
    """Return the engine of this process's world, made now if it is not there yet.

    With `process_sets` it is collective: every rank gives the same ones.
    """
    world = runtime.world()
    with _lock:
        if not _current:
            if _stopped is world:
                raise NotInitializedError("this call, after the engine was stopped,")
            engine = Engine(world, world.journal, runtime.subgroup, Settings.from_environment())
            runtime.at_shutdown(stop)
            _current.append(engine)
            if path := os.environ.get(env.TIMELINE):
                engine.start_timeline(path, env.is_on(env.TIMELINE_CYCLES))
        engine = _current[0]
    for ranks in process_sets:
        engine.add_process_set(ranks)
    return engine


def _end_in_child() -> None:
    for engine in _current:
        engine.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)


def current() -> Engine:
    """Return the engine; raises NotInitializedError before `init` and after `shutdown`."""
    return _current[0] if _current else start()


def stop() -> None:
    """Stop the engine, if there is one; `runtime.shutdown` calls it."""
    global _stopped  # noqa: PLW0603
    with _lock:
        engines, _current[:] = list(_current), []
        if engines:
            _stopped = engines[0].world
    for engine in engines:
        engine.stop()
        if engine.world.rank == 0 and env.is_on(env.VERBOSE):
            log.say(engine.stats.line(), rank=0)
