"""Names for calls that have none, the same on all ranks whatever else they call."""

from __future__ import annotations

from collections import Counter

_MARK = ".noname."


class Names:
    """Numbers calls without a name, for each process set and kind. The caller holds a lock.

    A count for each kind, so that ranks agree whatever else they call; and anew when all ranks of a
    set have joined: until then some make calls that others do not.

    Attributes
    ----------
    joins : Counter
        How often all ranks of a process set have joined, by its number.
    """

    def __init__(self) -> None:
        self.joins: Counter[int] = Counter()
        self._counts: Counter[tuple[str, int]] = Counter()

    def next(self, kind_label: str, process_set: int) -> str:
        """Return the next name of a kind of call in a process set.

        >>> Names().next("allreduce", 0)
        'allreduce.noname.0.1'
        """
        key = kind_label, process_set
        self._counts[key] += 1
        joins = self.joins[process_set]
        since = f".join{joins}" if joins else ""
        return f"{kind_label}{_MARK}{process_set}{since}.{self._counts[key]}"

    def joined(self, process_set: int) -> None:
        """Begin anew: all ranks of the set have joined."""
        self.joins[process_set] += 1
        for key in [key for key in self._counts if key[1] == process_set]:
            del self._counts[key]


def is_made_up(name: str) -> bool:
    """Whether `name` was given to a call without one, and so will not come again."""
    return _MARK in name
