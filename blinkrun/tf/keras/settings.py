"""How a DistributedOptimizer for Keras reduces: its arguments, checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.adapter.operations import checked_compressor
from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.engine import engine
from blinkrun.errors import UsageError
from blinkrun.tf.keras.backend import native
from blinkrun.types import Op


@dataclass(frozen=True)
class Settings:
    """The arguments of `DistributedOptimizer`.

    Attributes
    ----------
    name : str or None
        What the names of requests begin with.
    groups : int, list of lists of variables, or None
        Gradients that are reduced together.
    """

    name: str | None
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    groups: int | Sequence[Sequence[Any]] | None
    process_set: ProcessSet
    scale_local_gradients: bool
    bucket_bytes: int | None

    def __post_init__(self) -> None:
        if self.op not in (Op.AVERAGE, Op.SUM) or isinstance(self.op, bool):
            raise UsageError(f"op is {self.op!r}; Keras optimizers take Average or Sum")
        _at_least("backward_passes_per_step", self.backward_passes_per_step, 1)
        factor = self.gradient_predivide_factor
        if not (math.isfinite(factor) and factor > 0):
            raise UsageError(f"gradient_predivide_factor is {factor!r}, need a number above 0")
        if factor != 1.0 and self.op != Op.AVERAGE:
            raise UsageError("gradient_predivide_factor goes with op=Average only")
        if self.bucket_bytes is not None:
            _at_least("bucket_bytes", self.bucket_bytes, 1)
        _check_groups(self.groups)
        checked_compressor(self.compression)
        number_of(self.process_set)

    def __deepcopy__(self, memo: Any) -> Settings:
        """Return itself: it does not change, and a process set is what it is."""
        return self

    def __reduce__(self) -> Any:
        """Return what makes it again in another process; groups of variables cannot go there."""
        if not (self.groups is None or isinstance(self.groups, int)):
            raise UsageError("an optimizer whose groups name variables cannot be pickled")
        fields = dict(self.__dict__)
        if number_of(self.process_set) == 0:
            fields["process_set"] = None
        return _again, (fields,)

    @property
    def scales(self) -> tuple[float, float]:
        """Factors before and after the reduction."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that reduce with this one; empty if this one is not in the process set.

        Raises NotInitializedError before ``init()``.
        """
        current = engine.current()
        members = current.process_sets()[number_of(self.process_set)]
        return members if current.world.rank in members else ()

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        return len(self.ranks) < 2


def _again(fields: dict[str, Any]) -> Settings:
    from blinkrun.adapter.process_sets import global_process_set  # noqa: PLC0415

    return Settings(**{**fields, "process_set": fields["process_set"] or global_process_set})


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}, need a whole number of at least {least}")


def _check_groups(groups: Any) -> None:
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups > 0):
        return
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, list | tuple) for group in groups
    ):
        raise UsageError(
            f"groups is {groups!r}; give a number above 0 or a list of lists of variables"
        )


def group_places(groups: Any, variables: Sequence[Any]) -> list[list[int]]:
    """Return groups as positions in `variables`; a number divides them evenly.

    >>> group_places(2, ["a", "b", "c", "d", "e"])
    [[0, 1, 2], [3, 4]]
    >>> group_places([["d", "a"], ["x"]], ["a", "b", "c", "d"])
    [[3, 0]]
    """
    if groups is None:
        return []
    if isinstance(groups, int):
        count = min(groups, len(variables))
        sizes = [len(variables) // count + (g < len(variables) % count) for g in range(count)]
        ends = list(itertools.accumulate(sizes))
        return [[*range(end - size, end)] for size, end in zip(sizes, ends, strict=True)]
    places = {id(native(variable)): place for place, variable in enumerate(variables)}
    found = [[places[id(native(v))] for v in group if id(native(v)) in places] for group in groups]
    return [group for group in found if group]
