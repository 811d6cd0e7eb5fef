"""How a rank's group of devices fares: calls under way, what kernels report, and who is told.

A kernel cannot raise. It writes a report into pinned memory; here that becomes the exception of
the next call, and, if the group is broken, an abort of the host's group, which all ranks of the
job see. The other way round, a rank that is gone or a job that is aborted ends the waits of the
kernels. A thread looks for both, every few milliseconds while calls are made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from blinkrun.errors import BlinkrunError, InternalError
from blinkrun.executors import device_layout as layout
from blinkrun.executors import native
from blinkrun.executors.device_errors import PEER_LEFT, Trouble, trouble_of
from blinkrun.executors.device_memory import Finals
from blinkrun.types import Rank

if TYPE_CHECKING:
    from blinkrun.executors.device_hosts import DeviceHosts

LOOK_S = 0.004  # between two looks of the watcher while calls are made
REPLAY_LOOK_S = 0.05  # where only graphs may replay calls
LOOKS_AT_RANKS = 8  # every so many of them it asks who is gone
# Looks without a new call before the watcher sleeps: to be woken by a call takes more of the caller
# than all the rest of the call, for a look every few milliseconds nobody waits.
IDLE_LOOKS = 50

_ABORT = layout.Host.abort.offset // 4
_CODE = (layout.Host.report.offset + layout.Report.code.offset) // 4
_THROUGH = layout.Host.through.offset // 8


class DeviceState:
    """One rank's view of its group of devices; its methods may be called from any thread.

    Parameters
    ----------
    group : native.Group
        The ranks of the host.
    memory : int
        Address of the `layout.Host` that the rank's kernel writes to.
    finals : Finals
        How the ranks of the host leave.
    index : int
        This rank's place among them.
    names : sequence of Rank
        Names of the ranks of this host.
    everyone : sequence of Rank
        Names of all ranks.
    timeout_s : float
        Deadline of a call, for messages.
    hosts : DeviceHosts, optional
        What has the ranks of other hosts, where there are some.
    """

    def __init__(  # noqa: PLR0913
        self,
        group: native.Group,
        memory: int,
        finals: Finals,
        *,
        index: int,
        names: Sequence[Rank],
        everyone: Sequence[Rank],
        timeout_s: float,
        hosts: DeviceHosts | None = None,
    ) -> None:
        self._host = layout.Host.from_address(memory)
        self._attach()
        self.launched = 0  # calls, but for those that a graph has captured
        self.captured = False  # whether graphs may replay calls that nobody has counted
        self.timeout_s = timeout_s
        self._group = group
        self._finals = finals
        self._index = index
        self._names = list(names)
        self._everyone = list(everyone)
        self._hosts = hosts
        self._lock = threading.Lock()
        self._troubles: deque[Trouble] = deque()
        self._gone: Trouble | None = None
        self._broken = False
        self._closed = False
        self._looks = 0
        self._asleep = False
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def _attach(self) -> None:
        raw = memoryview(self._host).cast("B")
        self.words, self._longs = raw.cast("I"), raw.cast("Q")

    def detach(self) -> None:
        """Look at a copy of the pinned memory from now on, which is given back."""
        self._host = layout.Host.from_buffer_copy(self._host)
        self._attach()

    # ---- calls ---------------------------------------------------------------------------------

    @property
    def through(self) -> int:
        """Number of the last call that is through, well or badly; replays of graphs count."""
        return self._longs[_THROUGH]

    def busy(self) -> bool:
        """Whether a call may be under way."""
        return self.captured or self._longs[_THROUGH] < self.launched

    def is_idle(self) -> bool:
        """Whether all calls are through that were launched here."""
        return self.through >= self.launched

    def check(self) -> None:
        """Raise what went wrong since the last check, if anything; what broke the group, for good.

        Raises
        ------
        MismatchError
            If ranks have called what does not fit together; the next call can work.
        CollectiveTimeoutError, PeerLeftError, AbortedError
            If the group is broken.
        """
        if self.words[_CODE]:
            self._take_report()
        if self._troubles:
            raise self._troubles.popleft().error()
        if self._broken or self._group.aborted():
            self._raise_broken()

    def launching(self) -> None:
        """Count a call that was launched, and have it watched."""
        self.launched += 1
        if self._asleep:
            self._woken.set()

    def capturing(self) -> None:
        """Note that a graph holds a call: it may run at any time from now on."""
        self.captured = True
        if self._asleep:
            self._woken.set()

    # ---- ends ----------------------------------------------------------------------------------

    def abort(self) -> None:
        """End all waits of this rank's kernels."""
        self.words[_ABORT] = 1

    def interrupted(self) -> None:
        """End the calls under way on all ranks: this one leaves them in the middle."""
        if not self.is_idle():
            name = self._names[self._index]
            self._group.abort(f"rank {name} was interrupted in a collective")

    def is_aborted(self) -> bool:
        """Whether the kernels have been told to end."""
        return self.words[_ABORT] != 0

    # ---- the watcher ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Start the thread that looks."""
        self._thread = threading.Thread(target=self._run, name="blinkrun-devices", daemon=True)
        self._thread.start()

    def stop_watching(self) -> None:
        """End the thread."""
        self._closed = True
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        seen = idle = 0
        while not self._closed:
            self._asleep = idle >= IDLE_LOOKS
            launched = self.launched  # asked after `_asleep` was set, so that no launch is missed
            if self.busy() or launched != seen:
                self._asleep, seen, idle = False, launched, 0
                self.look()
                only_replays = self.captured and self.is_idle()
                self._woken.wait(REPLAY_LOOK_S if only_replays else LOOK_S)
            else:
                idle += 1
                self._woken.wait(None if self._asleep else LOOK_S)
            self._woken.clear()

    def look(self) -> None:
        """Look for reports and for an abort of the job, now and then for ranks that are gone."""
        if self.words[_CODE]:
            self._take_report()
        self._looks += 1
        if not self._looks % LOOKS_AT_RANKS and not self.is_aborted():
            self._look_for_gone()
        if self._group.aborted():
            self.abort()

    def _look_for_gone(self) -> None:
        if self._hosts is not None:
            self._group.gone_everywhere()  # takes what other hosts tell
        through = self.through
        for at in self._group.gone():
            final = self._finals[at]
            # What a rank has finished before it left, nobody needs it for.
            if not self.busy() or (final and through + 1 < final):
                continue
            how = "has left the job" if final else "is gone"
            self._gone = Trouble(
                f"rank {self._names[at]} {how} while rank {self._names[self._index]} waits for it"
                f" in call {through + 1} on its device",
                PEER_LEFT,
                self._names[at],
            )
            self.abort()  # a kernel that waits reports it

    def _take_report(self) -> None:
        with self._lock:
            if not self.words[_CODE]:
                return
            report = layout.Report.from_buffer_copy(self._host.report)
            trouble = trouble_of(
                report,
                rank=self._names[self._index],
                names=self._names,
                everyone=self._everyone,
                timeout_s=self.timeout_s,
                elsewhere=(lambda call: ()) if self._hosts is None else self._hosts.late,
            )
            if report.code == layout.Code.MISMATCH and report.flag and self._hosts is not None:
                trouble = Trouble(self._hosts.reason(report.seq), 0)
            if report.code == layout.Code.ABORTED and self._gone is not None:
                trouble = self._gone
            if not trouble.kind:
                self._troubles.append(trouble)
            self.words[_CODE] = 0
        if trouble.kind:
            self._break(trouble)

    def _break(self, trouble: Trouble) -> None:
        self._group.abort(trouble.text, trouble.kind, trouble.about)  # the first one counts
        self._broken = True
        self.abort()

    def _raise_broken(self) -> NoReturn:
        raise self.cause()

    def cause(self) -> BlinkrunError:
        """Return what the job was aborted for."""
        self._broken = True
        try:
            self._group.check()
        except native.Failure as failure:
            return native.translate(failure, self.timeout_s)
        return InternalError("a group of devices is broken, and its host's group is not")
