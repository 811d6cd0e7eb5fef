"""The paper's figures as numbers, from the files in ``data/`` (its README says how they were read).

Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

from blinkrun.errors import InternalError

GOAL_BYTES = 500_000_000
"""What figures 14 to 16 and 26 move: 500 MB."""


@cache
def rows(name: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of one file by column, as text.

    Parameters
    ----------
    name : str
        Of the file, without ``.csv``.

    Raises
    ------
    InternalError
        If the installation lacks the file.

    Examples
    --------
    >>> rows("fig19b_two_hosts_sim_gb_s")[2]["blink"]
    '34.7'
    """
    file = resources.files("blinkrun.paper") / "data" / f"{name}.csv"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise InternalError(f"the installation lacks blinkrun/paper/data/{name}.csv") from err
    return tuple(csv.DictReader(text.splitlines()))


def gpus_of(text: str) -> tuple[int, ...]:
    """Return the GPUs that a row names; ``any 7`` stands for sets that are all alike.

    >>> gpus_of("1 4 5"), gpus_of("any 3")
    ((1, 4, 5), (0, 1, 2))
    """
    first, *rest = text.split()
    return tuple(range(int(rest[0]))) if first == "any" else tuple(map(int, (first, *rest)))


def size_of(text: str) -> int:
    """Return the bytes of a size as the paper writes it: KB, MB and GB are powers of 1024.

    >>> size_of("1KB"), size_of("512MB")
    (1024, 536870912)
    """
    powers = {"KB": 10, "MB": 20, "GB": 30}
    return int(text[:-2]) << powers[text[-2:]]
