"""How gradients are reduced, as it was asked for and as it fits the machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from blinkrun import env
from blinkrun.adapter.bucket_sizes import choose_bucket_bytes
from blinkrun.adapter.operations import checked_compressor
from blinkrun.adapter.overlap import Overlap, choose_overlap
from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.engine import engine
from blinkrun.engine.request import ADASUM
from blinkrun.errors import UsageError
from blinkrun.tf.compression import Compression
from blinkrun.tf.variables import plain
from blinkrun.types import Op


@dataclass(frozen=True, eq=False)
class How:
    """How gradients are reduced; the same on all ranks.

    Attributes
    ----------
    owner : str
        What the names of the requests begin with: the same on all ranks, and given to nothing else
        that is reduced at the same time. Reductions of one graph are numbered.
    op : int
        `Average`, `Sum` or `Adasum`.
    compression : compressor
        Converts what travels.
    sparse_as_dense : bool
        Whether `tf.IndexedSlices` become dense first.
    gradient_predivide_factor : float
        By what gradients are divided before they are added up instead of after; with `Average`.
    process_set : ProcessSet
        Whose gradients they are. A rank outside of it keeps its own.
    bucket_bytes : int or None
        Largest bucket; None asks the environment.
    groups : int, sequence of sequences of variables, or None
        Gradients that are reduced together: so many groups, or those of these variables.
    scale_local_gradients : bool
        Whether gradients that are not reduced are divided by the number of ranks.

    Raises
    ------
    UsageError
        If an argument is none of those. A ValueError.
    """

    owner: str
    op: int = Op.AVERAGE
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    process_set: ProcessSet = field(default=global_process_set)
    bucket_bytes: int | None = None
    groups: Any = None
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.op not in (Op.AVERAGE, Op.SUM, ADASUM) or isinstance(self.op, bool):
            raise UsageError(f"op is {self.op!r}; gradients are reduced by Average, Sum or Adasum")
        factor = self.gradient_predivide_factor
        if factor != 1.0 and self.op != Op.AVERAGE:
            raise UsageError("gradient_predivide_factor goes with op=Average only")
        if not factor > 0:
            raise UsageError(f"gradient_predivide_factor is {factor}, need above 0")
        if not isinstance(self.process_set, ProcessSet):
            number_of(self.process_set)
        choose_bucket_bytes(self.bucket_bytes)
        _check_groups(self.groups)
        checked_compressor(self.compression)

    @property
    def scales(self) -> tuple[float, float]:
        """Factors before and after the reduction."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells reductions apart whose gradients and groups are alike."""
        return (
            self.op,
            self.compression,
            bool(self.sparse_as_dense),
            self.scales,
            self.process_set,
            self.bucket_bytes,
        )

    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with: one rank, or this one is not in the set.

        Raises
        ------
        NotInitializedError
            Before ``init()``.
        ProcessSetError
            If the process set is not registered.
        """
        ranks = engine.current().ranks(number_of(self.process_set))
        return len(ranks) < 2 or engine.current().world.rank not in ranks


def identity(variable: Any) -> int:
    """Return what tells variables apart, whether given as Keras' or as TensorFlow's."""
    return id(plain(variable))


def overlap() -> Overlap:
    """Return whether buckets are reduced while backward runs: BLINKRUN_OVERLAP, or what fits."""
    world = engine.current().world
    threads = tf.config.threading.get_intra_op_parallelism_threads() or world.cores
    return choose_overlap(
        env.choice(env.OVERLAP, ("auto", "on", "off"), "auto"),
        cores=world.cores,
        local_size=world.local_size,
        cross_size=world.cross_size,
        threads=threads,
    )


def positions(
    groups: Any, dense: Sequence[int], variables: Sequence[Any] | None
) -> tuple[tuple[int, ...], ...]:
    """Return groups as positions among the dense gradients."""
    if not groups or not dense:
        return ()
    if isinstance(groups, int):
        count = min(groups, len(dense))
        bounds = [len(dense) * k // count for k in range(count + 1)]
        return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(bounds))
    if variables is None:
        raise UsageError("groups of variables need the variables of the gradients")
    place = {identity(variables[number]): position for position, number in enumerate(dense)}
    found = ([place.get(identity(variable)) for variable in group] for group in groups)
    return tuple(tuple(p for p in group if p is not None) for group in found)


def _check_groups(groups: Any) -> None:
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return
    if isinstance(groups, list | tuple) and all(
        isinstance(group, list | tuple) for group in groups
    ):
        every = [identity(variable) for group in groups for variable in group]
        if len(set(every)) == len(every):
            return
        raise UsageError("groups have a variable twice")
    raise UsageError(f"groups is {groups!r}; give a number above 0 or a list of lists of variables")
