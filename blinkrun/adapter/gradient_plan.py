"""What ranks must agree on before they reduce gradients, and in which words they do not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blinkrun.engine.request import CPU
from blinkrun.types import DType, Rank

Facts = tuple[tuple[str, str], ...]  # names with what is to be said of them

_ADVICE = "every rank must give gradients of the same variables"


class Gradient(NamedTuple):
    """What is known of a dense gradient before it exists."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def describe(self) -> str:
        """Return dtype and shape in words.

        >>> Gradient("w", DType.FLOAT32, (2, 3)).describe()
        'float32 (2, 3)'
        """
        return f"{self.dtype.label} {tuple(self.shape)}"


class Agreement(NamedTuple):
    """What one rank takes for common; picklable, to be compared when reductions do not fit.

    Attributes
    ----------
    gradients : tuple of (str, str)
        Name and description of each gradient, those that are absent or sparse too.
    arguments : tuple of (str, str)
        How they are reduced.
    requests : tuple of str
        The names of the requests that a step consists of.
    """

    gradients: Facts
    arguments: Facts
    requests: tuple[str, ...]

    def device(self, place: str = CPU) -> str:
        """Return what stands for the device in requests, so that ranks that differ are told.

        Requests whose devices differ are refused on all ranks.
        """
        told = repr((self.gradients, self.arguments)).encode()
        return f"{place} {hashlib.blake2b(told, digest_size=8).hexdigest()}"


def first_difference(everyone: Mapping[Rank, Agreement]) -> str | None:
    """Return a line that names the first rank that differs from the lowest, and in what.

    None if all are the same.

    >>> one = Agreement((("w", "float32 (2,)"),), (), ())
    >>> other = Agreement((("w", "float32 (3,)"),), (), ())
    >>> print(first_difference({0: one, 2: other}))
    rank 2: gradient 'w' is float32 (3,), rank 0 has float32 (2,); every rank must give gradients \
of the same variables
    """
    base_rank = min(everyone)
    base = everyone[base_rank]
    for rank in sorted(everyone):
        theirs = everyone[rank]
        if theirs.gradients != base.gradients:
            return _in_gradients(rank, theirs.gradients, base_rank, base.gradients)
        for (what, found), (_, wanted) in zip(theirs.arguments, base.arguments, strict=True):
            if found != wanted:
                return (
                    f"rank {rank}: gradients are reduced with {what}={found}, on rank {base_rank} "
                    f"with {what}={wanted}; every rank must give the same arguments"
                )
    return None


def _in_gradients(other: Rank, theirs: Facts, me: Rank, mine: Facts) -> str:
    for (their_name, their_kind), (my_name, my_kind) in zip(theirs, mine, strict=False):
        if their_name != my_name:
            return (
                f"rank {other} has gradient '{their_name}' where rank {me} has '{my_name}'; "
                f"{_ADVICE}"
            )
        if their_kind != my_kind:
            return (
                f"rank {other}: gradient '{my_name}' is {their_kind}, rank {me} has {my_kind}; "
                f"{_ADVICE}"
            )
    longer, names = (other, theirs) if len(theirs) > len(mine) else (me, mine)
    return (
        f"rank {other} has {len(theirs)} gradients, rank {me} has {len(mine)}; only rank "
        f"{longer} has '{names[min(len(theirs), len(mine))][0]}'; {_ADVICE}"
    )


def kinds(gradients: Sequence[Gradient]) -> Facts:
    """Return names and descriptions of dense gradients."""
    return tuple((each.name, each.describe()) for each in gradients)
