"""The messages of one stream while a program is simulated: who started which, how far they are."""

from __future__ import annotations

from collections import deque

from blinkrun.errors import ProgramError
from blinkrun.simulator.record import StepRecord
from blinkrun.simulator.timed import Load, TimedPost


class Messages:
    """Messages from rank to rank on the way; the first that is not through has number `delivered`.

    Attributes
    ----------
    timed : TimedStream
    sender, step : int
        The channel that sends, and its step.
    ready, landed, delivered : int
        Messages that may move, whose bytes are all there, and that are through.
    is_flying : bool
        Whether one moves: they follow each other.
    end_ns : int
        When the last was through.
    waiters : list of int
        Channels that wait for the next to be through.
    records, landing : deque of StepRecord
        Messages that have been started and not landed, and that have landed but are not through.
    """

    __slots__ = (
        "_posted",
        "delivered",
        "end_ns",
        "is_flying",
        "landed",
        "landing",
        "ready",
        "records",
        "sender",
        "sizes",
        "step",
        "timed",
        "waiters",
    )

    def __init__(self, loaded: Load, number: int) -> None:
        self.timed = loaded.streams[number]
        self._posted = [0, 0]
        self.sender, self.step = loaded.senders[number]
        self.sizes = loaded.channels[self.sender]
        self.ready = self.landed = self.delivered = 0
        self.is_flying = False
        self.end_ns = 0
        self.waiters: list[int] = []
        self.records: deque[StepRecord] = deque()
        self.landing: deque[StepRecord] = deque()

    @property
    def started(self) -> int:
        """Messages both of whose ends have been started."""
        return min(self._posted)

    def post(self, step: TimedPost) -> bool:
        """Start an end of the next message; True if the other end waits for it."""
        before = self.started
        self._posted[step.is_send] += 1
        return self.started > before

    def move(self) -> int:
        """Let the next message move, and return its bytes."""
        self.is_flying = True
        return self.sizes.bytes_of(self.landed)

    def land(self) -> None:
        """All bytes of a message are there."""
        self.is_flying = False
        self.landed += 1

    def deliver(self, now_ns: int) -> list[int]:
        """The first message is through; return the channels that wait for it."""
        self.delivered += 1
        self.end_ns = now_ns
        waiters, self.waiters = self.waiters, []
        return waiters

    def check_through(self) -> None:
        """Raise ProgramError if an end of a message was started and the other never."""
        if self.delivered < max(self._posted):
            raise ProgramError(f"{self.text(self.delivered)}; run verify() on this program")

    def text(self, chunk: int) -> str:
        """Return what is known of the message of a chunk, for messages."""
        return (
            f"message {chunk} of {self.timed.name}; {self._posted[True]} were sent, "
            f"{self._posted[False]} asked for"
        )
