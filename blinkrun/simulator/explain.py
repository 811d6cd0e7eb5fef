"""Why a run took as long as it did, in a few lines for people."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from blinkrun.errors import UsageError
from blinkrun.schedule.ir import Program
from blinkrun.simulator.run import Critical, Run, Usage
from blinkrun.simulator.seen_tree import SeenTree, tree_of
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import DEVICES_PER_HOST
from blinkrun.types import Rank

_LONG = 12  # devices of a path that are named
_NAMED = 3  # links of it


def critical_text(run: Run, topology: Topology, program: Program) -> list[str]:
    """Return what the run's time is made of and what bounds it.

    Parameters
    ----------
    run : Run
        Simulated with ``trace=True``.
    topology : Topology
        That it ran over; its devices are named.
    program : Program
        That ran.

    Returns
    -------
    list of str
        Up to four lines, such as ``last is the depth 3 tree over 0-3-2-1 with 1/8 of the data: link
        3->2 is busy 97 %``, in this order: which tree is the last and how busy its links are; how
        the time splits; where its transfers spend the most of it; which resource of all carries
        the most. Only the split where nothing is moved.

    Raises
    ------
    UsageError
        If the run kept no critical path although it took some time.
    """
    if run.time_ns and not run.critical:
        raise UsageError("this run kept no critical path; simulate it with trace=True")
    if not run.transfers:
        return [_split_text(run, topology)]
    last = run.critical[-1]
    whose = (last.rank, last.channel, last.end_ns)
    before = {(s.rank, s.channel, s.end_ns) for s in run.steps if s.is_prologue}
    tree = [] if last.what == "launch" or whose in before else [_last_text(run, topology, program)]
    return [
        *tree,
        _split_text(run, topology),
        _longest_text(run, topology),
        _bound_text(run),
    ]


def _last_text(run: Run, topology: Topology, program: Program) -> str:
    """Name the tree, or ring, whose channel ends last, and the links on its longest path."""
    last = run.critical[-1]
    tree = tree_of(program, (last.rank, last.channel), _spent_by_pair(run, topology))
    names = [_device(rank, topology) for rank in tree.path]
    over = "-".join(names if len(names) <= _LONG else [*names[: _LONG - 1], "…", names[-1]])
    what = "ring" if program.name == "ring" else f"depth {tree.depth} tree"
    part = program.ranks[last.rank].channels[last.channel].part
    blocks = max(program.input_blocks, program.output_blocks)
    share = _percent(Fraction(part.stop - part.start, program.shares * blocks))
    busy = _path_text(run, topology, tree)
    return f"last is the {what} over {over} with {share} of the data{busy}"


def _path_text(run: Run, topology: Topology, tree: SeenTree) -> str:
    """Say how busy the links of a tree's path are, the busiest first."""
    pairs = {frozenset(pair) for pair in pairwise(tree.path)}
    links = {
        each.link
        for each in run.transfers
        if (each.rank, each.channel) in tree.channels and frozenset((each.src, each.dst)) in pairs
    }
    usage = {each.name: each for each in run.usage}

    def busy(link: int) -> Fraction:
        return max(run.utilisation(usage[name]) for name in topology.links[link].resources)

    ordered = sorted(links, key=lambda link: (-busy(link), link))[:_NAMED]
    if not ordered:
        return ""
    words = [f"link {_link_name(ordered[0], topology)} is busy {_percent(busy(ordered[0]))}"]
    words += [f"{_link_name(link, topology)} {_percent(busy(link))}" for link in ordered[1:]]
    return f": {', '.join(words)}"


def _spent_by_pair(run: Run, topology: Topology) -> dict[frozenset[Rank], int]:
    """Return how long the critical path moves data between two ranks, either way."""
    spent: dict[frozenset[Rank], int] = {}
    for part in run.critical:
        if part.what == "transfer":
            pair = frozenset((topology.links[part.link].src, topology.links[part.link].dst))
            spent[pair] = spent.get(pair, 0) + part.end_ns - part.start_ns
    return spent


def _split_text(run: Run, topology: Topology) -> str:
    """Say how the time splits over launch, steps, latency and transfers."""
    spent: dict[str, list[int]] = {}
    for part in run.critical:
        spent.setdefault(part.what, []).append(part.end_ns - part.start_ns)
    words = []
    for what in ("launch", "switch", "step", "latency", "memory", "transfer"):
        if what in spent:
            count = len(spent[what])
            many = f" of {count} steps" if what != "launch" and count > 1 else ""
            words.append(f"{what} {_time(sum(spent[what]))}{many}")
    if "transfer" in spent:
        words[-1] += f", at {_percent(_speed(run, topology))} of what its links can"
    return f"{_time(run.time_ns)} are {'; '.join(words) or 'nothing at all'}"


def _speed(run: Run, topology: Topology) -> Fraction:
    """Return which part of their links' capacity the transfers of the critical path got."""
    sizes = {
        (each.rank, each.channel, each.step, each.chunk, each.link): each.size_bytes
        for each in run.transfers
    }
    width = {each.name: each.capacity_mb_per_s for each in run.usage}
    got = 0
    could = Fraction(0)
    for part in run.critical:
        if part.what == "transfer":
            got += 1000 * sizes[part.rank, part.channel, part.step, part.chunk, part.link]
            narrowest = min(width[name] for name in topology.links[part.link].resources)
            could += (part.end_ns - part.start_ns) * narrowest
    return got / could


def _longest_text(run: Run, topology: Topology) -> str:
    """Name the link over which the critical path spends most."""
    spent: dict[int, list[Critical]] = {}
    for part in run.critical:
        if part.what == "transfer":
            spent.setdefault(part.link, []).append(part)
    if not spent:
        return "no transfer is on the critical path: memory is slower than all links"

    def total(link: int) -> int:
        return sum(part.end_ns - part.start_ns for part in spent[link])

    link = min(spent, key=lambda link: (-total(link), link))
    count = len(spent[link])
    return (
        f"most of it on link {_link_name(link, topology)} ({topology.links[link].kind.value}): "
        f"{_time(total(link))} in {count} transfer{'s' if count > 1 else ''}"
    )


def _bound_text(run: Run) -> str:
    """Name the resource that carries the most of what it could."""

    def carried(usage: Usage) -> Fraction:
        return Fraction(usage.size_bytes * 1000) / (usage.capacity_mb_per_s * run.time_ns)

    top = max(run.usage, key=carried)  # of several the first by name
    alike = sum(carried(usage) == carried(top) for usage in run.usage) - 1
    rate = Fraction(top.size_bytes, run.time_ns)
    return (
        f"bound by {top.name}{f' and {alike} more' if alike else ''}: busy "
        f"{_percent(run.utilisation(top))}, carries {float(rate):.4g} of "
        f"{float(top.capacity_mb_per_s / 1000):.4g} GB/s ({_percent(carried(top))})"
    )


def _link_name(link: int, topology: Topology) -> str:
    src, dst = topology.links[link].src, topology.links[link].dst
    return f"{_device(src, topology)}->{_device(dst, topology)}"


def _device(rank: Rank, topology: Topology) -> str:
    """Return a device's name; of several hosts, with the host's before it."""
    host, device = divmod(topology.devices[rank], DEVICES_PER_HOST)
    return f"{host}:{device}" if max(topology.devices) >= DEVICES_PER_HOST else str(device)


def _percent(part: Fraction) -> str:
    """Return a part of 1, rounded down: 100 % is all.

    >>> _percent(Fraction(1999, 2000)), _percent(Fraction(1, 1))
    ('99 %', '100 %')
    """
    return f"{part.numerator * 100 // part.denominator} %"


def _time(time_ns: int) -> str:
    """Return a time for people.

    >>> _time(7_458_150), _time(20_000), _time(520)
    ('7.458 ms', '20 us', '520 ns')
    """
    if time_ns < 1000:
        return f"{time_ns} ns"
    return f"{time_ns / 1e3:.4g} us" if time_ns < 10**6 else f"{time_ns / 1e6:.4g} ms"
