"""Which GPU each rank of a host takes: the ones that plan best, by local rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

from blinkrun.errors import LaunchError, UsageError
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import LinkSet, topology_of

Order = Callable[[Sequence[str], int], Sequence[str]]


def choose_devices(
    seen: Sequence[Sequence[str]], per_rank: Fraction, order: Order
) -> tuple[int, ...]:
    """Return the device of every rank of a host, as an index into what that rank sees.

    Parameters
    ----------
    seen : sequence of sequence of str
        By local rank: the GPUs that its process sees, in the order in which it sees them. All
        ranks may see all, or each only its own, as batch systems have it.
    per_rank : Fraction
        GPUs that each rank has; 1/n where n ranks share one.
    order : callable
        ``order(gpus, count)`` returns which of GPUs that all ranks see are the best to take, the
        first rank's first.

    Raises
    ------
    LaunchError
        If a rank sees no GPU, or there are too few.

    Examples
    --------
    >>> first = lambda gpus, count: gpus[:count]
    >>> choose_devices([["a", "b"], ["a", "b"]], Fraction(1), first)
    (0, 1)
    >>> choose_devices([["a"], ["b"]], Fraction(1), first)
    (0, 0)
    >>> choose_devices([["a"], ["a"]], Fraction(1, 2), first)
    (0, 0)
    """
    for rank, gpus in enumerate(seen):
        if not gpus:
            raise LaunchError(
                f"local rank {rank} sees no GPU: `blinkrun doctor` says what there is, and"
                " CUDA_VISIBLE_DEVICES what is hidden"
            )
    if all(list(gpus) == list(seen[0]) for gpus in seen):
        return _of_common(seen[0], len(seen), per_rank, order)
    return _of_own(seen, per_rank)


def best_gpus(machine: Machine, free: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the `count` of the free GPUs on which an allreduce is fastest, in their order.

    By NVLink alone where that joins so many of them; the first ones where no links are known.

    >>> from blinkrun.topology.catalog import described
    >>> best_gpus(described("dgx-1v"), [1, 2, 4, 6, 7], 2)
    (1, 2)
    """
    from blinkrun.planner.advise import advise  # noqa: PLC0415 - plans many, which few need

    if not 1 < count < len(free):
        return tuple(free[:count])
    for links in (LinkSet.NVLINK, LinkSet.ALL):
        try:
            best = advise(topology_of(machine, links), free, count)[0]
        except UsageError:  # there are no such links, or too many ways to choose
            continue
        if best.rate:
            return tuple(gpu for gpu in free if gpu in best.example)
    return tuple(free[:count])


def _of_common(
    gpus: Sequence[str], num_ranks: int, per_rank: Fraction, order: Order
) -> tuple[int, ...]:
    """Return the devices of ranks that all see the same."""
    shares, each = per_rank.denominator, per_rank.numerator
    needed = -(-num_ranks // shares) * each
    if needed > len(gpus):
        raise LaunchError(_too_few(num_ranks, len(gpus), per_rank))
    chosen = order(gpus, needed)
    return tuple(gpus.index(chosen[rank // shares * each]) for rank in range(num_ranks))


def _of_own(seen: Sequence[Sequence[str]], per_rank: Fraction) -> tuple[int, ...]:
    """Return the devices of ranks that see different ones: the first that is not taken."""
    taken: Counter[str] = Counter()
    found = []
    for gpus in seen:
        free = [at for at, gpu in enumerate(gpus) if taken[gpu] < per_rank.denominator]
        if not free:
            all_gpus = {gpu for other in seen for gpu in other}
            raise LaunchError(_too_few(len(seen), len(all_gpus), per_rank))
        taken.update(gpus[at] for at in free[: per_rank.numerator])
        found.append(free[0])
    return tuple(found)


def _too_few(num_ranks: int, num_gpus: int, per_rank: Fraction) -> str:
    """Return what is wrong, and the two ways out."""
    each = f", {per_rank} for each rank" if per_rank > 1 else ""
    part = f" (1/{per_rank.denominator} for each)" if per_rank < 1 else ""
    fits = int(num_gpus / per_rank)
    shared = -(-num_ranks // num_gpus)
    return (
        f"{num_ranks} ranks on this host{part} and {num_gpus} GPU{'s' * (num_gpus > 1)}{each}:"
        f" start {fits} rank{'s' * (fits != 1)}, or let ranks share a GPU with"
        f" --gpus-per-rank 1/{shared}: they then share its memory and take turns on it, which is"
        " slow without NVIDIA's MPS"
    )
