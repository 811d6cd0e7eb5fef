"""Arena memory that is lent out and comes back when the last array that looks at it is gone.

A step that repeats the last one allocates nothing, and results stay valid for as long as somebody
holds them: the next step takes other memory then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.buffers import View, numpy_dtype
from blinkrun.types import DType

Array = npt.NDArray[Any]
Piece = tuple[int, tuple[int, ...]]  # first byte and shape of an array in a block


class Block:
    """One piece of arena, as the arrays that lie in it.

    Attributes
    ----------
    memory : array of uint8
        All of it.
    pieces : tuple of arrays
        The arrays in it, for whoever fills it.
    """

    __slots__ = ("interface", "memory", "pieces", "pointer")

    def __init__(
        self, memory: npt.NDArray[np.uint8], dtype: np.dtype[Any], pieces: Sequence[Piece]
    ) -> None:
        memory[...] = 0  # gaps are reduced too
        self.memory = memory
        self.interface = dict(memory.__array_interface__)
        self.pointer: int = self.interface["data"][0]
        self.pieces = tuple(np.ndarray(shape, dtype, memory, begin) for begin, shape in pieces)


class Lease:
    """A block in use. Arrays made of it keep it alive; when it is gone, the block is free."""

    __slots__ = ("__array_interface__", "_free", "block")

    def __init__(self, block: Block, free: list[Block]) -> None:
        self.block = block
        self._free = free
        self.__array_interface__ = block.interface

    def __del__(self) -> None:
        self._free.append(self.block)  # in one step, whatever thread drops the last array


class Pool:
    """Blocks of one kind, as many as are in use at the same time.

    Parameters
    ----------
    dtype : DType
        Of the elements.
    count : int
        Elements of a block.
    pieces : sequence of (int, tuple of int)
        Where each array begins in the block, in bytes, and its shape.
    make : callable
        Gives bytes in the arena, aligned to 64.
    """

    def __init__(
        self,
        dtype: DType,
        count: int,
        pieces: Sequence[Piece],
        make: Callable[[int], npt.NDArray[np.uint8]],
    ) -> None:
        self._dtype = dtype
        self._numpy_dtype = numpy_dtype(dtype)
        self._count = count
        self._pieces = tuple(pieces)
        self._make = make
        self._free: list[Block] = []

    def lend(self) -> Loan:
        """Return a block that nobody looks at, made now if there is none."""
        try:
            block = self._free.pop()
        except IndexError:
            memory = self._make(self._count * self._dtype.itemsize)
            block = Block(memory, self._numpy_dtype, self._pieces)
        whole = np.asarray(Lease(block, self._free))
        view = View(block.pointer, self._count, (self._count,), self._dtype, True, whole)
        return Loan(block, view, whole)

    def arrays(self, loan: Loan) -> list[Array]:
        """Return the arrays in a block that is lent; while one of them is held, it stays so."""
        dtype, whole = self._numpy_dtype, loan.whole
        return [np.ndarray(shape, dtype, whole, begin) for begin, shape in self._pieces]


class Loan:
    """A block that is lent: where to write, what the engine is given, and what keeps it."""

    __slots__ = ("block", "view", "whole")

    def __init__(self, block: Block, view: View, whole: Array) -> None:
        self.block = block
        self.view = view
        self.whole = whole
