"""Which hosts a job runs on, and how many ranks on each: what ``-H`` and host files say.

Functions of values, but for `read_hostfile`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_SLOTS = ("slots", "cpu", "count")  # Open MPI's names for the number of ranks
_MOST = ("max_slots", "max-slots")
_MAX_SLOTS = 1 << 16


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A host as the launch agent takes it, and how many ranks it has room for.

    `most` is the number of ranks beyond which not even ``--oversubscribe`` goes; None: no such.
    """

    name: str
    slots: int
    most: int | None = None

    def __post_init__(self) -> None:
        if not is_host_name(self.name):
            raise UsageError(f"'{self.name}' is no name or address of a host{_advice(self.name)}")
        if not 1 <= self.slots <= _MAX_SLOTS:
            raise UsageError(
                f"host {self.name} has {self.slots} slots; need 1 to {_MAX_SLOTS}, or leave it out"
            )
        if self.most is not None and self.most < self.slots:
            raise UsageError(f"host {self.name} has {self.slots} slots but max_slots={self.most}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one host: as many as `num_ranks`, from `first_rank` on."""

    name: str
    first_rank: int
    num_ranks: int

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.num_ranks}"

    @property
    def ranks(self) -> range:
        """The ranks, which are numbered host by host."""
        return range(self.first_rank, self.first_rank + self.num_ranks)


def is_host_name(text: str) -> bool:
    """Whether `text` can be the name or the address of a host, and nothing else.

    >>> [is_host_name(text) for text in ("gpu-3.lab", "10.0.0.7", "fe80::1", "-oProxy=x", "a b")]
    [True, True, True, False, False]
    """
    if ":" in text:
        return _is_ipv6(text)
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def parse_hosts(text: str) -> tuple[HostTarget, ...]:
    """Return the hosts of ``-H host[:slots],…``; a host that is named again gets more slots.

    Raises
    ------
    UsageError
        If a name, an address or a number of slots is none.

    Examples
    --------
    >>> [(host.name, host.slots) for host in parse_hosts("a:2,[fe80::1]:4,b,a:1")]
    [('a', 3), ('fe80::1', 4), ('b', 1)]
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"-H '{text}': a host is missing; example: -H a:8,b:8")
    return merged(_of_word(word, f"-H {word}") for word in words)


def read_hostfile(path: str) -> tuple[HostTarget, ...]:
    """Return the hosts of the file at `path`.

    Raises
    ------
    UsageError
        If it cannot be read, or as `parse_hostfile` says.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise UsageError(f"--hostfile {path}: {err.strerror}") from err
    except UnicodeDecodeError:
        raise UsageError(f"--hostfile {path}: not a text file") from None
    return parse_hostfile(text, path)


def parse_hostfile(text: str, path: str) -> tuple[HostTarget, ...]:
    r"""Return the hosts that a host file names.

    A line names a host, with slots in Open MPI's form (``a slots=2 max_slots=4``) or in that of
    MPICH and Intel MPI (``a:2``); one without has one. ``#`` begins a comment. A host that comes
    again gets more slots, so that files with one line for each rank (PBS) are read as well.

    Raises
    ------
    UsageError
        With file and line, if a line is none of these, or if there is no host.

    Examples
    --------
    >>> [(host.name, host.slots) for host in parse_hostfile("a slots=2 # fast\n\nb:4\n", "f")]
    [('a', 2), ('b', 4)]
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_of_line(words, f"{path}:{number}"))
    if not found:
        raise UsageError(f"{path}: names no host; write one in a line, as: a slots=8")
    return merged(found)


def merged(targets: Iterable[HostTarget]) -> tuple[HostTarget, ...]:
    """Return each host once, in the order in which they first come, with all of its slots."""
    found: dict[str, HostTarget] = {}
    for target in targets:
        before = found.get(target.name)
        if before is None:
            found[target.name] = target
            continue
        limits = [limit for limit in (before.most, target.most) if limit is not None]
        slots = before.slots + target.slots
        most = max(slots, *limits) if limits else None
        found[target.name] = HostTarget(target.name, slots, most)
    return tuple(found.values())


def place(
    targets: Sequence[HostTarget], num_ranks: int, *, oversubscribe: bool = False
) -> tuple[Placement, ...]:
    """Return how many ranks each host gets: the first hosts are filled first.

    Parameters
    ----------
    targets : sequence of HostTarget
        At least one.
    num_ranks : int
        Ranks of the job, at least 1.
    oversubscribe : bool
        Whether hosts may get more ranks than they have slots: all the same number more, as far as
        that goes.

    Raises
    ------
    UsageError
        If there is not room enough.

    Examples
    --------
    >>> place([HostTarget("a", 2), HostTarget("b", 2)], 3)[1]
    Placement(name='b', first_rank=2, num_ranks=1)
    """
    slots = sum(target.slots for target in targets)
    if num_ranks > slots and not oversubscribe:
        hosts = ", ".join(f"{target.name}:{target.slots}" for target in targets[:8])
        more = ", ..." if len(targets) > 8 else ""
        raise UsageError(
            f"-np {num_ranks} is more than the {slots} slots of the hosts ({hosts}{more}); give"
            " them more (host:slots), or add --oversubscribe"
        )
    counts = _with_more(targets, num_ranks) if num_ranks > slots else _filled(targets, num_ranks)
    placements = []
    first_rank = 0
    for target, count in zip(targets, counts, strict=True):
        if count:
            placements.append(Placement(target.name, first_rank, count))
        first_rank += count
    return tuple(placements)


def _filled(targets: Sequence[HostTarget], num_ranks: int) -> list[int]:
    counts = []
    for target in targets:
        counts.append(min(target.slots, num_ranks))
        num_ranks -= counts[-1]
    return counts


def _with_more(targets: Sequence[HostTarget], num_ranks: int) -> list[int]:
    """Return the slots of the hosts with one more for each in turn until all ranks have a place."""
    counts = [target.slots for target in targets]
    missing = num_ranks - sum(counts)
    while missing:
        open_hosts = [
            index
            for index, target in enumerate(targets)
            if target.most is None or counts[index] < target.most
        ]
        if not open_hosts:
            raise UsageError(f"-np {num_ranks} is more than max_slots of all hosts, {sum(counts)}")
        each, rest = divmod(missing, len(open_hosts))
        for turn, index in enumerate(open_hosts):
            more = each + (turn < rest)
            most = targets[index].most
            taken = more if most is None else min(more, most - counts[index])
            counts[index] += taken
            missing -= taken
    return counts


def _of_line(words: Sequence[str], where: str) -> HostTarget:
    """Return the host of one line of a host file."""
    first, *rest = words
    target = _of_word(first, where)
    slots = None if target.slots == 1 and not _has_slots(first) else target.slots
    most = None
    for word in rest:
        key, has_value, value = word.partition("=")
        if key in _SLOTS and has_value and slots is None:
            slots = _number(value, where)
        elif key in _MOST and has_value and most is None:
            most = _number(value, where)
        else:
            raise UsageError(f"{where}: '{word}'{_of_key(key)}; a line is: host slots=8, or host:8")
    if slots is None:
        slots = 1 if most is None else most
    return _target(target.name, slots, most, where)


def _of_key(key: str) -> str:
    if key in (*_SLOTS, *_MOST):
        return " gives the number of slots twice or not at all"
    if key == "ifname":
        return " is for all hosts the same here: give --network-interface"
    if key in ("user", "username"):
        return " is for the launch agent to know: give --launch-agent 'ssh -l NAME'"
    return " is not understood"


def _of_word(word: str, where: str) -> HostTarget:
    """Return the host of ``host``, ``host:slots``, or an IPv6 address, alone or in brackets."""
    name, slots = word, ""
    if word.startswith("["):
        name, closed, rest = word[1:].partition("]")
        if not closed or not _is_ipv6(name) or (rest and not rest.startswith(":")):
            raise UsageError(f"{where}: '{word}' is no address; an example: [fe80::1]:8")
        slots = rest[1:]
        if rest == ":":
            raise UsageError(f"{where}: the number of slots is missing after '{word}'")
    elif _has_slots(word):
        name, _, slots = word.rpartition(":")
        if not slots:
            raise UsageError(f"{where}: the number of slots is missing after '{word}'")
    return _target(name, _number(slots, where) if slots else 1, None, where)


def _has_slots(word: str) -> bool:
    """Whether slots follow the host; in an IPv6 address without brackets none can."""
    if word.startswith("["):
        return "]:" in word
    return ":" in word and not _is_ipv6(word)


def _target(name: str, slots: int, most: int | None, where: str) -> HostTarget:
    try:
        return HostTarget(name, slots, most)
    except UsageError as err:
        raise UsageError(f"{where}: {err}") from None


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{where}: '{text}' is no number of slots")
    return int(text[:12])


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _advice(name: str) -> str:
    if "@" in name:
        return "; a user's name is for the launch agent: --launch-agent 'ssh -l NAME'"
    if "=" in name:
        return "; slots are written host:8"
    return ""
