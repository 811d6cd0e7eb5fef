"""The mean of metrics that ranks may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blinkrun.errors import MismatchError

Number = float | np.ndarray[Any, Any]


def averages(everyone: Sequence[Mapping[str, Number]], ranks: Sequence[int]) -> dict[str, Number]:
    """Return the mean of each metric over the ranks that have it, by name in order.

    Parameters
    ----------
    everyone : sequence of mapping of str to number or array
        The metrics of each rank.
    ranks : sequence of int
        The ranks that they are of.

    Raises
    ------
    MismatchError
        If a metric has more than one shape.

    Examples
    --------
    >>> averages([{"loss": 1.0, "acc": 0.5}, {"loss": 2.0}], [0, 1])
    {'acc': 0.5, 'loss': 1.5}
    """
    means: dict[str, Number] = {}
    for name in sorted({name for metrics in everyone for name in metrics}):
        having = {
            rank: metrics[name]
            for rank, metrics in zip(ranks, everyone, strict=True)
            if name in metrics
        }
        shapes = {rank: np.shape(value) for rank, value in having.items()}
        first = next(iter(shapes))
        for rank, shape in shapes.items():
            if shape != shapes[first]:
                raise MismatchError(
                    f"rank {rank}: metric '{name}' has shape {shape}, rank {first} has "
                    f"{shapes[first]}; a metric must have one shape to be averaged"
                )
        with np.errstate(all="ignore"):  # infinities of both signs make a NaN
            mean = np.sum([*having.values()], axis=0, dtype=np.float64) / len(having)
        means[name] = mean if shapes[first] else float(mean)
    return means
