"""Who does the engine's work: a thread that waits, else the helper thread; one at a time.

To drive is to post what is in the outbox, to read the journal, to feed the negotiator and to act
on what it says. A thread that waits for a handle drives until the handle is done, so a synchronous
call switches no threads. While another thread drives it waits for that one to leave, or to finish
its handle. The helper drives when something is under way and nobody waits.

**Nothing is forgotten.** Under the mutex: whenever this rank has something under way and nobody
drives, then a waiting thread has been notified and will look again, or the helper has been kicked
and will. This holds because each step that could break it mends it: `submit` kicks the helper if
nobody drives (its caller waits if it is synchronous: then that thread looks before it sleeps); a
driver that leaves notifies the waiting threads, or kicks the helper if there are none; a waiting
thread that is interrupted kicks the helper. A kick is kept until the helper's next sleep, which it
ends. A driver that sleeps in the journal has said so (`_dozing`) after it saw an empty outbox;
who puts something there posts it, which ends the sleep of all drivers, the own one included.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from blinkrun.engine.events import Event
from blinkrun.engine.fusion import LARGEST_PACKED
from blinkrun.engine.journal import Journal
from blinkrun.types import Rank

LOOK_S = 0.5  # how often a driver that waits looks for ranks that are late or gone
HELPER_SLEEP_S = 3600.0  # of the helper: it is woken when there is something to do
TICK_S = 0.05  # of one that has to write what is held back: scripts read it soon
LINGER_S = 0.001  # of the helper before it posts, and again while more comes: a thread that
LINGER_MOST_S = 0.02  # submits one often submits more
STOP_S = 10.0  # that a helper gets to end


class Replica(Protocol):
    """What a driver needs of the negotiator."""

    def outbox(self) -> bytes | None:
        """Return the message to post now."""
        ...

    def feed(self, sender: Rank, message: bytes) -> list[Event]:
        """Take a message of the journal."""
        ...


class Driver:
    """Runs the engine's work in whichever thread has time for it.

    Parameters
    ----------
    journal : Journal
        This rank's end.
    replica : Negotiator
        Touched with `mutex` held.
    act : callable
        Carries out events; called by the thread that drives, without the mutex. It gets the
        events and whether it may spin.
    look : callable
        Looks for what is late; called now and then by the thread that drives. True if what is in
        the outbox now is urgent: it is for ranks whose helpers sleep.
    is_busy : callable
        Whether this rank has something under way; called with the mutex held.
    give_up : callable
        Told of an exception that ends the engine.
    is_far : bool, optional
        Whether other ranks are on other hosts, so that they hear of a post later.
    """

    def __init__(  # noqa: PLR0913
        self,
        journal: Journal,
        replica: Replica,
        *,
        act: Callable[[list[Event], bool], None],
        look: Callable[[float], bool],
        is_busy: Callable[[], bool],
        give_up: Callable[[BaseException], None],
        is_far: bool = False,
    ) -> None:
        self.mutex = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        self._journal = journal
        self._replica = replica
        self._act = act
        self._look = look
        self._is_busy = is_busy
        self._give_up = give_up
        self._is_far = is_far
        self._owner = 0  # the thread that drives
        self._waiting = 0  # threads that wait for it to leave
        self._parked = False  # the helper does
        self._dozing = False  # the driver is in the journal's `wait`, its outbox empty
        self._kicked = False  # the helper will look, whatever it does now
        self._lingers = False  # it lets more come first
        self._submitted = 0
        self._is_urgent = False
        self._next_look_s = 0.0
        self._stopping = False
        self.tick: Callable[[], None] | None = None  # called by the helper while nothing happens
        self.heard_s = 0.0  # when a message came last, or this rank has joined
        self._helper: threading.Thread | None = None

    # ---- for threads that submit ---------------------------------------------------------------

    def queued(self, *, sync: bool, num_bytes: int = 0) -> None:
        """Note that the outbox has something new; the mutex is held.

        What travels alone anyway is told to other hosts at once, before the helper has got a core
        to run on: where the ranks compute on all of them, that took 5 to 15 ms.

        Parameters
        ----------
        sync : bool
            The calling thread will drive, or wait, at once.
        num_bytes : int
            Of the largest tensor that is new.
        """
        self._submitted += 1
        if self._dozing:
            self._dozing = False
            self._post()
            return
        at_once = self._is_far and num_bytes >= LARGEST_PACKED
        if at_once:
            self._post()
        if not sync and not self._owner:
            self._lingers = not at_once  # whoever waits meanwhile drives without it
            self._kick()

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        """Drive until `is_done`, or wait while another thread drives."""
        me = threading.get_ident()
        while not is_done():
            if self._stopping:  # whoever stops the engine ends all handles
                with self.mutex:
                    self._changed.wait(0.1)
                continue
            try:
                if self._take(me, is_done):
                    self._drive(is_done, may_spin=True)
            finally:
                self._leave(me)

    def drain(self, is_out: Callable[[], bool]) -> None:
        """Drive until `is_out`, as the last thing: post what is there, run what is ready.

        Parameters
        ----------
        is_out : callable
            Whether what was posted last has been read: what comes behind it is not for this rank.
            Inside a host it is there at once; other hosts have to answer first.
        """
        if self.is_driver:
            return
        me = threading.get_ident()
        ends_s = time.monotonic() + STOP_S
        with self.mutex:
            self._stopping = True
            self._changed.notify_all()
            self._journal.kick()
            while self._owner:
                if time.monotonic() > ends_s:
                    return
                self._changed.wait(0.1)
            self._owner = me
        try:
            while not self._drive_once(may_spin=False, is_done=is_out):
                if time.monotonic() > ends_s:
                    return
        finally:
            self._leave(me)

    # ---- the helper ----------------------------------------------------------------------------

    def start_helper(self, name: str) -> None:
        """Start the thread that drives when nobody waits."""
        self._helper = threading.Thread(target=self._help, name=name, daemon=True)
        self._helper.start()

    def stop(self) -> None:
        """End the helper, and the waits of other threads for the driver."""
        with self.mutex:
            self._stopping = True
            self._changed.notify_all()
        helper = self._helper
        if helper is not None and helper is not threading.current_thread():
            self._journal.kick()
            helper.join(STOP_S)

    @property
    def is_driver(self) -> bool:
        """Whether the calling thread drives."""
        return self._owner == threading.get_ident()

    def forget_threads(self) -> None:
        """Begin anew in a forked child, where other threads may have held the mutex."""
        self.mutex = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        self._owner = self._waiting = 0
        self._helper = None

    def wake_all(self) -> None:
        """Let all waiting threads look again."""
        with self.mutex:
            self._changed.notify_all()

    def _kick(self) -> None:
        """Wake the helper; the mutex is held."""
        if self._helper is not None and not self._kicked:
            self._kicked = True
            self._journal.kick()

    def _help(self) -> None:
        me = threading.get_ident()
        try:
            self._help_until_stopped(me)
        except BaseException as err:
            self._give_up(err)
        finally:
            self._leave(me)

    def _help_until_stopped(self, me: int) -> None:
        woken = False
        while True:
            with self.mutex:
                self._kicked = False
                if self._stopping:
                    return
                if self._owner or self._waiting:
                    if woken:  # whoever drives reads what it was woken for
                        self._parked = True
                        self._changed.wait(LOOK_S)
                        self._parked = False
                        continue
                elif woken or self._is_busy():
                    self._owner = me
            if self._owner == me:
                self._drive(self._helper_is_free, may_spin=False)
                self._leave(me)
                woken = False
            else:
                tick = self.tick
                woken = self._journal.sleep(TICK_S if tick is not None else HELPER_SLEEP_S)
                if tick is not None:
                    tick()
                if woken and self._lingers:
                    self._linger()

    def _linger(self) -> None:
        """Wait until no more requests come, or a thread drives that waits for one."""
        ends_s = time.monotonic() + LINGER_MOST_S
        before = -1
        while before != self._submitted and not self._owner and time.monotonic() < ends_s:
            before = self._submitted
            time.sleep(LINGER_S)
        self._lingers = False

    def _helper_is_free(self) -> bool:
        return self._stopping or self._waiting > 0 or not self._is_busy()

    # ---- driving -------------------------------------------------------------------------------

    def _take(self, me: int, is_done: Callable[[], bool]) -> bool:
        """Become the driver; False if it is done before."""
        with self.mutex:
            if self._owner:  # it may be in the middle of a long call
                self._post()
            while self._owner:
                if is_done() or self._stopping:
                    return False
                self._waiting += 1
                try:
                    self._changed.wait(LOOK_S)
                finally:
                    self._waiting -= 1
            if is_done():
                return False
            self._owner = me
            return True

    def _leave(self, me: int) -> None:
        """Stop driving, if this thread does, and see to it that somebody goes on."""
        with self.mutex:
            if self._owner == me:
                self._owner = 0
                self._dozing = False
            if self._owner:
                return
            if self._waiting or self._parked:
                self._changed.notify_all()
            if not self._waiting and self._is_busy():
                self._kick()

    def _drive(self, is_done: Callable[[], bool], *, may_spin: bool) -> None:
        def is_over() -> bool:
            return is_done() or self._stopping

        while not self._drive_once(may_spin=may_spin, is_done=is_over):
            pass

    def _drive_once(self, *, may_spin: bool, is_done: Callable[[], bool]) -> bool:
        """Post and read; True if it is done, else wait for more if nothing had come."""
        with self.mutex:
            self._post()
        messages = self._journal.read()
        if messages:
            self._take_in(messages, may_spin)
            if self._waiting:
                self.wake_all()
        if is_done():
            return True
        if not messages:
            self._doze(may_spin)
        self._look_around()
        return False

    def _post(self) -> bool:
        """Post what is in the outbox; the mutex is held, so that posts keep their order."""
        try:
            message = self._replica.outbox()
            if message is None:
                return False
            is_urgent, self._is_urgent = self._is_urgent, False
            self._journal.post(message, urgent=is_urgent)
        except BaseException as err:
            self._give_up(err)
            raise
        return True

    def _take_in(self, messages: list[tuple[Rank, bytes]], may_spin: bool) -> None:
        """Act on messages. They are read once: an interruption here would lose them."""
        self.heard_s = time.monotonic()
        try:
            for sender, message in messages:
                with self.mutex:
                    events = self._replica.feed(sender, message)
                if events:
                    self._act(events, may_spin)
        except BaseException as err:
            self._give_up(err)
            raise

    def _doze(self, may_spin: bool) -> None:
        """Wait for a message, unless the outbox has something. May be interrupted."""
        with self.mutex:
            if self._post():
                return
            self._dozing = True
        try:
            self._journal.wait(LOOK_S, may_spin=may_spin)
        except Exception as err:
            self._give_up(err)
            raise
        finally:
            self._dozing = False

    def _look_around(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        try:
            self._is_urgent |= self._look(now_s)
        except BaseException as err:
            self._give_up(err)
            raise
