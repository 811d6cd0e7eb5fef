"""Whether all ranks have the same parameters, bit by bit, and who has given a NaN."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import torch

from blinkrun.errors import MismatchError, NonFiniteError
from blinkrun.torch.exchange import Exchange
from blinkrun.torch.forms import dense
from blinkrun.types import Op, Rank


def check_parameters(
    exchange: Exchange, named: Sequence[tuple[str, torch.Tensor]], step: int
) -> None:
    """Raise on every rank if parameters differ between ranks; every rank of the set calls it.

    Each rank reads its parameters once, at about 1 GB/s, and copies those of a device to the host
    for it; what travels is a number for each.

    Raises
    ------
    MismatchError
        Names the first parameter that differs and the ranks that agree with each other.
    """
    digests = torch.tensor([digest(param) for _, param in named], dtype=torch.int64)
    low, high = digests.clone(), digests.clone()
    exchange.run(
        [
            exchange.call("check.low", low, low, op=Op.MIN),
            exchange.call("check.high", high, high, op=Op.MAX),
        ]
    )
    differing = (low != high).nonzero().flatten().tolist()
    if not differing:
        return
    first = differing[0]
    found = torch.zeros(len(exchange.ranks), dtype=torch.int64)
    found[exchange.ranks.index(exchange.rank)] = digests[first]
    exchange.agree_on("check.who", found)
    raise MismatchError(
        f"parameter '{named[first][0]}' {parties(exchange.ranks, found.tolist())} after step {step}"
        f" ({len(differing)} of {len(named)} parameters differ); begin with broadcast_parameters() "
        "and change parameters on all ranks alike",
        {rank: f"digest {value:x}" for rank, value in zip(exchange.ranks, found.tolist())},  # noqa: B905
    )


def traced(
    exchange: Exchange, named: Sequence[tuple[str, torch.Tensor]], err: NonFiniteError
) -> NonFiniteError:
    """Return an error about a bucket as one about a gradient; every rank that has got it calls."""
    found = torch.zeros(len(named), dtype=torch.int64)
    if exchange.rank == err.rank:
        grads = [(i, dense(p.grad)) for i, (_, p) in enumerate(named) if p.grad is not None]
        found[[i for i, grad in grads if not grad.isfinite().all()]] = 1
    exchange.agree_on("blame", found)
    names = [named[index][0] for index in found.nonzero().flatten().tolist()]
    if not names:  # it became so in the type that it travels in
        return err
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return NonFiniteError(
        f"rank {err.rank}: the gradient of parameter '{names[0]}'{others} holds NaN or infinity, "
        "which --check-nan (BLINKRUN_CHECK_NAN) refuses",
        names[0],
        err.rank,
    )


def digest(param: torch.Tensor) -> int:
    """Return a number made from dtype, shape and bits of `param`, never 0.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)) != digest(-torch.zeros(2))
    True
    """
    values = param.detach().contiguous().resolve_conj().resolve_neg()
    data = hashlib.blake2b(digest_size=8)
    data.update(f"{values.dtype} {tuple(values.shape)}".encode())
    if values.numel():
        data.update(memoryview(values.view(-1).view(torch.uint8).cpu().numpy()))
    return int.from_bytes(data.digest(), "little", signed=True) | 1


def parties(ranks: Sequence[Rank], digests: Sequence[int]) -> str:
    """Return in words who has the same values; a digest of 0 is that of a rank that has joined.

    >>> parties([0, 1, 2, 5], [7, 9, 7, 0])
    'has one value on ranks 0, 2, another on rank 1'
    """
    having: defaultdict[int, list[Rank]] = defaultdict(list)
    for rank, value in zip(ranks, digests, strict=True):
        if value:
            having[value].append(rank)
    told = [
        f"rank{'s'[: len(group) > 1]} {', '.join(map(str, group))}" for group in having.values()
    ]
    return f"has one value on {told[0]}, " + ", ".join(f"another on {each}" for each in told[1:])
