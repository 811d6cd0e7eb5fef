"""From what a kernel reports to the exception that names rank, channel, chunk and peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blinkrun.errors import BlinkrunError, InternalError, MismatchError
from blinkrun.executors.device_layout import Code, Desc, Report
from blinkrun.types import Collective, DType, Op, Rank

ABORTED, TIMEOUT, PEER_LEFT = 1, 2, 3  # kinds of the core's abort

_REDUCES = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What ended a call, in words.

    Attributes
    ----------
    text : str
        For people.
    kind : int
        Of the abort that the other ranks are to see; 0: none, the next call can work.
    about : int
        The rank that is late or gone, by its name; -1: nobody.
    """

    text: str
    kind: int
    about: Rank = -1

    def error(self) -> BlinkrunError:
        """Return the exception of a call that the group survives."""
        return MismatchError(self.text) if not self.kind else InternalError(self.text)


def trouble_of(  # noqa: PLR0913
    report: Report,
    *,
    rank: Rank,
    names: Sequence[Rank],
    everyone: Sequence[Rank],
    timeout_s: float,
    elsewhere: Callable[[int], Sequence[Rank]] = lambda call: (),
) -> Trouble:
    """Return what `report` of rank `rank` says.

    Parameters
    ----------
    report : Report
        With a code.
    rank : Rank
        Whose it is, by its name.
    names : sequence of Rank
        Names of the ranks of this host.
    everyone : sequence of Rank
        Names of all ranks, by whom messages go.
    timeout_s : float
        How long was waited for.
    elsewhere : callable, optional
        Tells the ranks, among all, that have not come to a call that waits for other hosts.
    """
    what = f"{describe(report.desc, everyone)}, call {report.seq}"
    match report.code:
        case Code.MISMATCH:
            return Trouble(_differing(report, names, everyone), 0)
        case Code.ABORTED:
            return Trouble(f"rank {rank} was aborted in {what}", ABORTED, rank)
        case Code.TIMEOUT:
            about, whom = _late(report, names, everyone, elsewhere)
            return Trouble(
                f"rank {rank} waited {timeout_s:.3g} s in {what} on its device for {whom};"
                " raise BLINKRUN_TIMEOUT_S (or --timeout) if they are only slow",
                TIMEOUT,
                about,
            )
        case Code.NO_PROGRAM | Code.NO_ROOM:
            lack = "program" if report.code == Code.NO_PROGRAM else "room on its device"
            return Trouble(
                f"internal error: rank {rank} has no {lack} for {what}; please report it with the"
                " plan and this line",
                ABORTED,
                rank,
            )
    return Trouble(f"internal error: rank {rank}: code {report.code} in {what}", ABORTED, rank)


def describe(desc: Desc, everyone: Sequence[Rank]) -> str:
    """Return a call in words, as the core puts them.

    >>> describe(Desc(count=7, collective=0, dtype=6, op=0), [0, 1])
    'allreduce of 7 float32 (sum)'
    """
    collective = Collective(desc.collective)
    if collective is Collective.BARRIER:
        return collective.label
    text = f"{collective.label} of {desc.count} {DType(desc.dtype).label}"
    if collective in _REDUCES:
        text += f" ({Op(desc.op).name.lower()})"
    return f"{text} with root {everyone[desc.root]}" if collective.is_rooted else text


def _differing(report: Report, names: Sequence[Rank], everyone: Sequence[Rank]) -> str:
    calls = []
    for name, desc in zip(names, report.descs, strict=False):
        scaled = " with other scales" if desc.scales != report.desc.scales else ""
        calls.append(f"rank {name}: {describe(desc, everyone)}{scaled}")
    return (
        f"call {report.seq} differs between ranks: {'; '.join(calls)}; every rank must make the"
        " same call"
    )


def _late(
    report: Report,
    names: Sequence[Rank],
    everyone: Sequence[Rank],
    elsewhere: Callable[[int], Sequence[Rank]],
) -> tuple[Rank, str]:
    """Return the name of who is late, and in words whom and where the kernel waited for."""
    if report.channel < 0:
        late = [name for at, name in enumerate(names) if report.missing >> at & 1]
        if not late:
            late = [everyone[rank] for rank in elsewhere(report.seq)]
        if not late:
            return -1, "the ranks of other hosts"
        return late[0], f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
    place = f"channel {report.channel}, piece {report.piece}, chunk {report.chunk}"
    messages = report.kind >= _SEND
    name = (everyone if messages else names)[report.peer]
    of = f"message stream {report.flag}" if messages else f"flag {report.flag}"
    return name, f"rank {name} ({place}, step {report.step}, {of})"


_SEND = 3  # steps from here on are messages
