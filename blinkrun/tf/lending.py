"""Arrays whose memory TensorFlow uses, kept until it says that it no longer does.

It says so by a word that the core's `GIVE_BACK` sets: in whichever thread the last tensor goes, and
without Python. The words are looked at whenever an array is lent, and now and then by `reclaim`.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from blinkrun.executors import native

GIVE_BACK: int = native.GIVE_BACK
BLOCK = 1024  # arrays whose words lie together


class _Block:
    """Words of which each says whether the array lent with it has come back."""

    def __init__(self) -> None:
        self.words = np.zeros(BLOCK, np.int32)
        self.arrays: list[Any] = [None] * BLOCK
        self.free = list(range(BLOCK))
        self.address = self.words.__array_interface__["data"][0]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.words))  # written to after Python's end

    def sweep(self) -> list[Any]:
        """Return the arrays that have come back."""
        if not self.words.any():
            return []
        back = []
        for place in np.flatnonzero(self.words).tolist():
            self.words[place] = 0
            back.append(self.arrays[place])
            self.arrays[place] = None
            self.free.append(place)
        return back


_lock = threading.Lock()
_blocks: list[_Block] = []


def lend(array: Any) -> int:
    """Keep `array` and return the address of the word to hand to `GIVE_BACK`."""
    with _lock:
        gone = [block.sweep() for block in _blocks]
        block = next((block for block in _blocks if block.free), None)
        if block is None:
            block = _Block()
            _blocks.append(block)
        place = block.free.pop()
        block.arrays[place] = array
    del gone  # without the lock: what goes may do anything
    return int(block.address + place * block.words.itemsize)


def reclaim() -> int:
    """Let go what has come back, and return how many arrays are still lent."""
    with _lock:
        gone = [block.sweep() for block in _blocks]
        left = sum(BLOCK - len(block.free) for block in _blocks)
    del gone
    return left
