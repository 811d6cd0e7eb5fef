"""Messages in a replay: when each is through, and what may be concluded from that.

A message is through when both its ends have been started: MPI may hold a send back until then, so
nothing may rely on less. But MPI may as well let a send through long before, by copying the data,
so a sender learns nothing of the receiver. And MPI may look at the data, or write where it is to
arrive, until it says that the message is through: that is known to who has passed `Sent` or
`Arrived`, and to nobody who concludes it from what the other end did later.

So a stream has two actors: one reads the data from the start of the send until `Sent`, one writes
it from the start of the receive until `Arrived`, which knows what the sender did before as well. A
clock counts the messages of a stream as if they came through one by one. They need not; but who
waits for one has waited for those before, so no conclusion leads to any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from blinkrun.schedule.ir import Arrived, Operand, Recv, Send, Sent
from blinkrun.schedule.streams import Stream
from blinkrun.schedule.verify_memory import Clock, Memory, Value

Events = dict[Hashable, list[Clock]]
"""When each flag was set, by (rank, flag), and each message got through, by (step type, stream)."""


class Messages:
    """The streams of one replay; their actors are numbered from `first_actor`."""

    def __init__(
        self, streams: list[Stream], first_actor: int, memory: Memory, events: Events
    ) -> None:
        self._streams = streams
        self._first = first_actor
        self._memory = memory
        self._events = events
        self._actor = {stream: first_actor + 2 * at for at, stream in enumerate(streams)}
        self._sends: dict[Stream, list[tuple[Value, Clock, Clock]]] = defaultdict(list)
        self._recvs: dict[Stream, list[tuple[Operand, Clock]]] = defaultdict(list)

    @property
    def num_actors(self) -> int:
        """How many clocks the streams need."""
        return 2 * len(self._streams)

    def send(self, stream: Stream, step: Send, clock: Clock) -> None:
        """Start the next message at the sender; raises Broken as `Memory.send` does."""
        actor, number = self._actor[stream], len(self._sends[stream])
        read = _at(clock, actor, number + 1)
        value = self._memory.send(step.operand, number, actor, read)
        self._sends[stream].append((value, clock.copy(), read))

    def recv(self, stream: Stream, step: Recv, clock: Clock) -> None:
        """Start the next message at the receiver; raises Broken as `Memory.expect` does."""
        number = len(self._recvs[stream])
        self._memory.expect(step.operand, number, (self._actor[stream] + 1, number + 1), clock)
        self._recvs[stream].append((step.operand, clock.copy()))

    def deliver(self, stream: Stream) -> list[Hashable]:
        """Let the next message through if both ends have started, and return what that moves."""
        number = len(self._events[Sent, stream])
        if number == min(len(self._sends[stream]), len(self._recvs[stream])):
            return []
        value, sender, read = self._sends[stream][number]
        target, receiver = self._recvs[stream][number]
        self._memory.arrive(target, value, number)
        both = list(map(max, sender, receiver))
        self._events[Sent, stream].append(read)
        self._events[Arrived, stream].append(_at(both, self._actor[stream] + 1, number + 1))
        return [(Sent, stream), (Arrived, stream)]

    def name(self, actor: int, time: int) -> str:
        """Return what an actor of a stream did at that time of its own, for messages."""
        return f"message {time - 1} of {self._streams[(actor - self._first) // 2]}"

    def started(self, stream: Stream) -> str:
        """Return how far both ends of a stream came, for messages."""
        sends, recvs = len(self._sends[stream]), len(self._recvs[stream])
        return f"{sends} were sent, {recvs} were expected"

    def ends(self, rank: int) -> list[Clock]:
        """Return the clocks of what a rank's own messages must have done before it leaves."""
        own = [(Sent, stream) for stream in self._streams if stream.src == rank]
        other = [(Arrived, stream) for stream in self._streams if stream.dst == rank]
        return [self._events[key][-1] for key in (*own, *other) if self._events[key]]


def _at(clock: Clock, actor: int, time: int) -> Clock:
    """Return the clock of an actor at that time of its own, which has seen `clock`."""
    return [*clock[:actor], time, *clock[actor + 1 :]]
