"""Whether the ranks of a process set want the same of a name, and in which words they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from blinkrun.engine.events import Pending
from blinkrun.engine.request import ADASUM, Kind, Request
from blinkrun.errors import BlinkrunError, MismatchError, ProcessSetError
from blinkrun.types import Op, Rank

REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCESCATTER)
OF_JOINED = (Kind.ALLREDUCE, Kind.BARRIER)  # what goes on while a rank has joined
_GATHERS = (Kind.ALLGATHER, Kind.ALLTOALL)  # the first dimension is each rank's own


def is_repeat(one: Request | None, other: Request) -> bool:
    """Whether a rank asks for the same again; the caller's line does not matter."""
    return one is other or (
        one is not None
        and one.members == other.members
        and one.op == other.op
        and one.kind == other.kind
        and one.root == other.root
        and one.scales == other.scales
        and one.splits == other.splits
        and one.device == other.device
        and one.ranks == other.ranks
    )


def find_disagreement(
    ranks: Sequence[Rank], requests: Sequence[Request | None]
) -> BlinkrunError | None:
    """Return what keeps the requests of one name from running together, None if nothing does.

    Parameters
    ----------
    ranks : sequence of Rank
        The ranks of the process set, as ranks of the world.
    requests : sequence of (Request or None)
        What each of them asks for; None for a rank that has joined.
    """
    calls = {rank: call for rank, call in zip(ranks, requests, strict=True) if call is not None}
    return (
        _find_difference(calls)
        or _find_joined(calls, [rank for rank in ranks if rank not in calls])
        or _find_foreign_root(calls, ranks)
    )


def describe(request: Request) -> str:
    """Return a request in a few words, such as ``allreduce 'w' float32 (2, 3) sum``."""
    tensors = [f"{member.dtype.label} {tuple(member.shape)}" for member in request.members[:3]]
    if len(request.members) > len(tensors):
        tensors.append(f"and {len(request.members) - len(tensors)} more")
    words = [request.kind.label, repr(request.name), ", ".join(tensors)]
    if request.kind in REDUCTIONS:
        words.append(_op_label(request.op))
    if request.kind is Kind.BROADCAST:
        words.append(f"root {request.root}")
    if request.ranks:
        words.append(str(request.ranks))
    if request.where:
        words.append(f"at {request.where}")
    return " ".join(word for word in words if word)


def name_ranks(ranks: Iterable[Rank], hosts: Sequence[str] = ()) -> str:
    """Return ranks as messages spell them, with the host of each if `hosts` names those.

    >>> name_ranks([3]), name_ranks([1, 2, 3, 7])
    ('rank 3', 'ranks 1-3, 7')
    >>> name_ranks([0, 2, 3], ["a", "a", "b", "b"])
    'rank 0 on host a, ranks 2, 3 on host b'
    """
    if hosts:
        ranks = sorted(ranks)
        there = dict.fromkeys(hosts[rank] for rank in ranks)
        alike = {host: [rank for rank in ranks if hosts[rank] == host] for host in there}
        return ", ".join(f"{name_ranks(some)} on host {host}" for host, some in alike.items())
    runs: list[list[Rank]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    only_one = len(runs) == 1 and len(runs[0]) == 1
    return f"{'rank' if only_one else 'ranks'} {', '.join(words)}"


def _op_label(op: int) -> str:
    return "adasum" if op == ADASUM else Op(op).name.lower()


def _dtype(member: int, request: Request) -> str:
    return request.members[member].dtype.label


def _shape(member: int, request: Request) -> tuple[int, ...]:
    """What all ranks must have in common of a shape; a scalar is gathered as one row."""
    shape = tuple(request.members[member].shape)
    return shape[1:] if request.kind in _GATHERS else shape


def _scales(request: Request) -> tuple[float, ...]:
    """Return the factors so that equal ones compare equal, also where they are not a number."""
    return tuple(math.nan if math.isnan(each) else float(each) for each in request.scales)


def _fields(first: Request) -> Iterable[tuple[str, Callable[[Request], Any]]]:
    """Name what ranks must agree on, the most telling first, with a way to read it."""
    yield "tensors", lambda request: len(request.members)
    yield "device", lambda request: request.device  # also tells dtypes that travel as another
    for number in range(len(first.members)):
        of_group = f" of tensor {number}" if len(first.members) > 1 else ""
        yield f"dtype{of_group}", partial(_dtype, number)
        yield f"shape{of_group}", partial(_shape, number)
    if first.kind in REDUCTIONS:
        yield "op", lambda request: _op_label(request.op)
        yield "scale factors", _scales
    if first.kind is Kind.BROADCAST:
        yield "root", lambda request: request.root
    if first.kind is Kind.ALLTOALL:
        yield "number of splits", lambda request: len(request.splits)
    if first.ranks or first.kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        yield "process set", lambda request: tuple(request.ranks)


def _find_difference(calls: Mapping[Rank, Request]) -> MismatchError | None:
    base_rank, base = next(iter(calls.items()))
    others = [(rank, call) for rank, call in calls.items() if not is_repeat(base, call)]
    if not others:
        return None
    differing = [(rank, call) for rank, call in others if call.kind != base.kind]
    if differing:
        rank, call = differing[0]
        found = f"{name_ranks(_alike(differing, lambda c: c.kind))}: {call.kind.label}"
        found += f" '{base.name}', rank {base_rank} calls {base.kind.label}; every rank must call"
        return _mismatch(f"{found} the same collective under one name", calls, (base_rank, rank))
    for word, read in _fields(base):
        wanted = read(base)
        differing = [(rank, call) for rank, call in others if read(call) != wanted]
        if differing:
            rank, call = differing[0]
            who = name_ranks(_alike(differing, read))
            text = _difference(who, word, base_rank, base, call)
            return _mismatch(text, calls, (base_rank, rank))
    return None


def _alike(differing: Sequence[tuple[Rank, Request]], read: Callable[[Request], Any]) -> list[Rank]:
    """Return the ranks that are wrong in the same way as the first that is."""
    value = read(differing[0][1])
    return [rank for rank, call in differing if read(call) == value]


def _difference(who: str, word: str, base_rank: Rank, base: Request, call: Request) -> str:
    values = dict(_fields(base))
    found, wanted = values[word](call), values[word](base)
    must = f"every rank must call it with the same {word}"
    if word.startswith("shape"):
        number = int(word.rpartition(" ")[2]) if " " in word else 0
        found, wanted = (tuple(c.members[number].shape) for c in (call, base))
        must += " but for the first dimension" if base.kind in _GATHERS else ""
    if word == "tensors":
        word, found, must = "", f"{found} tensors", "every rank must call it with as many"
    has = f"has {word} {found}" if word else f"has {found}"
    return f"{who}: {base.kind.label} '{base.name}' {has}, rank {base_rank} has {wanted}; {must}"


def _mismatch(text: str, calls: Mapping[Rank, Request], ranks: Sequence[Rank]) -> MismatchError:
    places = [(rank, calls[rank].where) for rank in ranks if calls[rank].where]
    where = ", ".join(
        f"rank {rank} {'at' if number else 'called at'} {place}"
        for number, (rank, place) in enumerate(places)
    )
    where = f" ({where})" if where else ""
    return MismatchError(text + where, {rank: describe(call) for rank, call in calls.items()})


def _find_joined(calls: Mapping[Rank, Request], joined: Sequence[Rank]) -> MismatchError | None:
    first = next(iter(calls.values()))
    if not joined or first.kind in OF_JOINED:
        return None
    return MismatchError(
        f"{first.kind.label} '{first.name}': {name_ranks(joined)}"
        f" {'has' if len(joined) == 1 else 'have'} joined, {name_ranks(calls)} called it; it is not"
        " possible while a rank has joined (allreduce and barrier are)",
        {rank: describe(call) for rank, call in calls.items()},
    )


def _find_foreign_root(
    calls: Mapping[Rank, Request], ranks: Sequence[Rank]
) -> ProcessSetError | None:
    first = next(iter(calls.values()))
    if first.kind is not Kind.BROADCAST or first.root in ranks:
        return None
    return ProcessSetError(
        f"broadcast '{first.name}': root {first.root} is not in process set {first.process_set}"
        f" of {name_ranks(ranks)}"
    )


def find_conflicts(
    pending: Sequence[Pending], sets: Mapping[int, tuple[Rank, ...]]
) -> list[Pending]:
    """Return `pending`, with those marked that wait for each other under one name in two sets.

    That is so where each of the two misses a rank that has offered the name in the other.
    """
    by_name: dict[str, list[Pending]] = {}
    for one in pending:
        by_name.setdefault(one.request.name, []).append(one)
    conflicts: dict[int, str] = {}
    for alike in by_name.values():
        for one, other in combinations(alike, 2):
            if set(one.missing) & set(other.have) and set(other.missing) & set(one.have):
                text = _conflict(one, other, sets)
                conflicts.setdefault(one.number, text)
                conflicts.setdefault(other.number, text)
    if not conflicts:
        return list(pending)
    return [replace(one, conflict=conflicts.get(one.number, "")) for one in pending]


def _conflict(one: Pending, other: Pending, sets: Mapping[int, tuple[Rank, ...]]) -> str:
    name = one.request.name
    sides = [
        f"{name_ranks(side.have)} called {side.request.kind.label} '{name}' with process set"
        f" {side.request.process_set} of ranks {list(sets[side.request.process_set])}"
        + (f" at {side.request.where}" if side.request.where else "")
        for side in (one, other)
    ]
    return f"{sides[0]}, {sides[1]}; every rank must call it with the same process set"
