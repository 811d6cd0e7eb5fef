"""The best trees, channels and chunks for a size, as the simulator sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from pathlib import Path

from blinkrun.errors import ProgramError, UsageError
from blinkrun.planner.store import cached
from blinkrun.schedule.choice import Choice, Choices
from blinkrun.schedule.chunking import ALIGN_BYTES
from blinkrun.schedule.lower_builder import parts_of, shares_of
from blinkrun.schedule.peer import SLICES_IN_FLIGHT, PeerProgram, ring_programs
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.select.estimate import Estimate
from blinkrun.select.miad import Miad
from blinkrun.select.shares import levelled, timed_shares
from blinkrun.select.trial import ITEMSIZE, Setting, Trials
from blinkrun.simulator.cost import OURS, RINGS, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.run import Run
from blinkrun.topology.graph import Topology
from blinkrun.types import Collective, Rank

SIZES = tuple(1 << power for power in range(10, 31, 2))  # 1 KiB to 1 GiB
CHANNELS = (1, 2, 4, 8)  # of a tree
_MOST_CHANNELS = 64  # of all trees together
SELECT_VERSION = 3  # raised when the same topology would get other choices
_MOST_MOVES = 100_000  # steps and transfers of a run: what one simulation may take
_REACH = 2  # times as small and as large as the formula says, chunks are tried
_TUNED = 2  # settings whose chunks are tuned
_HOPELESS = (6, 5)  # settings whose time exceeds the best one by that are not looked at again
_SIMULATED = 8  # settings at most
_LEVELLED = 4  # rounds in which the shares of the best are levelled, at most
_WORTH = (499, 500)  # a round that saves less is the last
_OF_EACH = 2  # numbers of channels of the same trees among them


def best_run(  # noqa: PLR0913 - all that a run depends on
    topology: Topology,
    collective: Collective,
    *,
    size_bytes: int,
    root: Rank = 0,
    cost: Cost = OURS,
    candidates: Sequence[Candidate] | None = None,
) -> tuple[Choice, Run]:
    """Return the choice with the least simulated time for a size, and its run.

    A formula (`estimate`) sorts all trees and numbers of channels; those that it leaves hope for
    are simulated, with chunks found by `Miad`.

    Parameters
    ----------
    topology : Topology
        In MB/s.
    collective : Collective
        One that runs over trees.
    size_bytes : int
        As nccl-tests counts them.
    root : Rank, default 0
        Of broadcast and reduce.
    cost : Cost, default `OURS`
    candidates : sequence of Candidate, optional
        Trees to choose from; `candidates_for` if left out.

    Returns
    -------
    choice : Choice
        For any size.
    run : Run
        Its run, whole.

    Raises
    ------
    UsageError
        If there are no candidates, or the size is negative.
    """
    if size_bytes < 0:
        raise UsageError(f"a collective of {size_bytes} bytes; no size is negative")
    if candidates is None:
        candidates = candidates_for(topology, collective, root)
    if not candidates:
        raise UsageError(f"{collective.label}: no trees to choose from")
    trials = Trials(topology, collective, root, cost)
    estimates = {one: Estimate(topology, one.packing, cost) for one in candidates}
    best = _best(trials, estimates, size_bytes)
    return best, trials.run(_setting(best), size_bytes, best.chunk_bytes)


def choices_for(  # noqa: PLR0913 - all that choices depend on
    topology: Topology,
    collective: Collective,
    root: Rank = 0,
    *,
    cost: Cost = OURS,
    sizes: Sequence[int] = SIZES,
    packings: Sequence[Candidate] | None = None,
    folder: Path | None = None,
) -> Choices:
    """Return the best choices for sizes up to each of `sizes`, and beyond.

    Parameters
    ----------
    topology, collective, root, cost
        As for `best_run`.
    sizes : sequence of int, default 1 KiB to 1 GiB
        Ascending. What is best for one of them is taken for all sizes between it and the middle,
        by ratio, to the next.
    packings : sequence of Candidate, optional
        Trees to choose from; what is chosen of them is not kept.
    folder : Path, optional
        Where plans are kept: choices that were made before are read from there.

    Returns
    -------
    Choices
        Neighbours that are the same are one.

    Raises
    ------
    UsageError
        If `sizes` are none or not ascending.
    """
    if not sizes or any(low >= high for low, high in pairwise(sizes)):
        raise UsageError(f"choices for sizes {list(sizes)}: need some, in ascending order")
    given = None if packings is None else tuple(packings)

    def make() -> Choices:
        found = candidates_for(topology, collective, root) if given is None else given
        return _choices(Trials(topology, collective, root, cost), found, sizes)

    if given is not None:
        return make()
    return cached(
        folder,
        f"choices {SELECT_VERSION} {topology.content_hash} {collective.label} "
        f"{root if collective.is_rooted else 0} {cost!r} {list(sizes)}",
        make,
        encode=Choices.to_json,
        decode=Choices.from_json,
    )


def ring_run(  # noqa: PLR0913 - all that a run depends on
    topology: Topology,
    collective: Collective,
    *,
    size_bytes: int,
    root: Rank = 0,
    lane: int | None = None,
    cost: Cost = RINGS,
) -> tuple[str, Run] | None:
    """Return the best run of a library of rings, and what it chose; None where it has nothing.

    It takes the fastest of all that it may choose from (`ring_programs`), in its own chunks, with
    one or more slices of a channel under way.

    Parameters
    ----------
    topology : Topology
        All links of the allocation, in MB/s.
    collective, size_bytes, root
        As for `best_run`.
    lane : int, optional
        Width of an NVLink lane in MB/s; as for `ring_programs`.
    cost : Cost, default `RINGS`
    """
    try:
        peers = [
            peer
            for slices in SLICES_IN_FLIGHT
            for peer in ring_programs(topology, collective, root, lane=lane, slices=slices)
        ]
    except ProgramError:  # no ring joins these ranks, or rings know no such collective
        return None
    tried = [(peer.name, _peer_run(peer, size_bytes, cost)) for peer in peers]
    return min(tried, key=lambda named: named[1].time_ns)


def _peer_run(peer: PeerProgram, size_bytes: int, cost: Cost) -> Run:
    return simulate(
        peer.program,
        peer.topology,
        size_bytes=size_bytes,
        itemsize=ITEMSIZE,
        chunk_bytes=peer.chunk_bytes_of(size_bytes),
        cost=cost,
    )


def _choices(trials: Trials, candidates: Sequence[Candidate], sizes: Sequence[int]) -> Choices:
    estimates = {one: Estimate(trials.topology, one.packing, trials.cost) for one in candidates}
    found: list[Choice] = []
    for size, larger in zip(sizes, [*sizes[1:], None], strict=True):
        best = _best(trials, estimates, size)
        upto = None if larger is None else _middle(size, larger)
        if found and _same(found[-1], best):
            best = found.pop()
        found.append(_upto(best, upto))
    return Choices(tuple(found))


def _best(trials: Trials, estimates: Mapping[Candidate, Estimate], size_bytes: int) -> Choice:
    """Return the best choice for a size: the best settings at sight, then their chunks."""
    seen: list[tuple[int, int, Setting, int]] = []
    for number, (setting, chunk) in enumerate(_hopeful(estimates, size_bytes)):
        least = estimates[setting.candidate].least_ns(size_bytes)
        if not seen or least < min(seen)[0]:
            chunk_bytes = _affordable(trials, setting, size_bytes, chunk)
            time = trials.time_ns(setting, size_bytes, chunk_bytes)
            seen.append((time, number, setting, chunk_bytes))
    seen.sort(key=lambda entry: entry[:2])
    tuned: list[tuple[int, int, Choice]] = []
    for time, number, setting, chunk in seen[:_TUNED]:
        if time * _HOPELESS[1] <= seen[0][0] * _HOPELESS[0]:
            least, chunk_bytes = _tuned(trials, setting, size_bytes, chunk)
            choice = setting.choice(chunk_bytes)
            tuned.append((least, number, choice))
    finalists = []
    for _, _, choice in sorted(tuned, key=lambda entry: entry[:2]):
        estimate = estimates[_setting(choice).candidate]
        finalists += [choice, *_timed(estimate, choice, size_bytes)]
    # whole runs: what the shares of one size take cannot be told from shorter runs
    best = min(finalists, key=lambda choice: _whole(trials, choice, size_bytes).time_ns)
    return _levelled(trials, best, size_bytes)


def _whole(trials: Trials, choice: Choice, size_bytes: int) -> Run:
    return trials.run(_setting(choice), size_bytes, choice.chunk_bytes)


def _levelled(trials: Trials, choice: Choice, size_bytes: int) -> Choice:
    """Return the choice with shares that let its trees end together, as far as that is faster."""
    best, current = choice, choice
    for _ in range(_LEVELLED if _has_shares(choice) else 0):
        run = _whole(trials, current, size_bytes)
        times = _times_ns(run, current, trials.cost)
        current = replace(current, packing=levelled(current.packing, times))
        least = _whole(trials, best, size_bytes).time_ns
        time = _whole(trials, current, size_bytes).time_ns
        if time < least:
            best = current
        if time * _WORTH[1] >= least * _WORTH[0]:
            break
    return best


def _times_ns(run: Run, choice: Choice, cost: Cost) -> list[int]:
    """Return how long each tree of a run took, without the launch."""
    ends = dict(run.ends_ns)
    shares = shares_of(choice.packing, choice.channels_per_tree)
    return [
        max(
            max(ends.get(part, 0) for part in parts) - cost.launch_ns,
            1,
        )
        for parts in (
            parts_of(tree, choice.packing, shares, choice.channels_per_tree)
            for tree in choice.packing.trees
        )
    ]


def _has_shares(choice: Choice) -> bool:
    """Whether there are trees among which data can be shared otherwise, and chunks of it."""
    packing = choice.packing
    return not packing.joint and len(packing.trees) > 1 and choice.chunk_bytes > 0


def _timed(estimate: Estimate, choice: Choice, size_bytes: int) -> list[Choice]:
    """Return the choice with shares for its size, where there are shares to choose."""
    if not _has_shares(choice):
        return []
    delays = estimate.delays_ns(choice.chunk_bytes, choice.channels_per_tree)
    return [replace(choice, packing=timed_shares(choice.packing, delays, size_bytes))]


def _hopeful(estimates: Mapping[Candidate, Estimate], size_bytes: int) -> list[tuple[Setting, int]]:
    """Return the settings to simulate with a chunk for each, the most hopeful first."""
    found: list[tuple[int, int, Setting, int]] = []
    for number, (candidate, estimate) in enumerate(estimates.items()):
        own = []
        for channels in CHANNELS if candidate.packing.depth > 1 else (1,):
            if channels > max(1, _MOST_CHANNELS // len(candidate.packing.trees)):
                break
            chunk, time = estimate.start(size_bytes, channels)
            own.append((time, number, Setting(candidate, channels), chunk))
        found += sorted(own, key=lambda entry: entry[0])[:_OF_EACH]
    found.sort(key=lambda entry: entry[:2])
    limit = found[0][0] * _HOPELESS[0] // _HOPELESS[1]
    return [(setting, chunk) for time, _, setting, chunk in found if time <= limit][:_SIMULATED]


def _affordable(trials: Trials, setting: Setting, size_bytes: int, chunk_bytes: int) -> int:
    """Return a chunk that a simulation can take: that one, or a larger one; 0 where none is cut."""
    if not trials.program(setting).pipelined:
        return 0
    chunk = max(chunk_bytes // ALIGN_BYTES, 1) * ALIGN_BYTES
    while trials.num_moves(setting, size_bytes, chunk) > _MOST_MOVES:
        chunk *= 2
    return chunk


def _tuned(trials: Trials, setting: Setting, size_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """Return the least time of a setting near a chunk, and the chunk that takes it."""
    if not chunk_bytes:
        return trials.time_ns(setting, size_bytes, 0), 0
    least = _affordable(trials, setting, size_bytes, chunk_bytes // _REACH)
    state = Miad(least, max(least, chunk_bytes * _REACH))
    while not state.is_settled:
        state = state.record(trials.time_ns(setting, size_bytes, state.chunk_bytes))
    chunk, time = state.best
    return time, chunk


def _setting(choice: Choice) -> Setting:
    return Setting(Candidate(choice.trees, choice.packing), choice.channels_per_tree)


def _same(one: Choice, other: Choice) -> bool:
    return _upto(one, None) == _upto(other, None)


def _upto(choice: Choice, upto_bytes: int | None) -> Choice:
    return replace(choice, upto_bytes=upto_bytes)


def _middle(low: int, high: int) -> int:
    """Return the size between two by ratio.

    >>> _middle(1024, 4096)
    2048
    """
    return isqrt(low * high)
