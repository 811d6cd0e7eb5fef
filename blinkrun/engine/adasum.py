r"""Adasum: adding gradients so that what they have in common counts once.

Two vectors are combined to

.. math:: (1 - \frac{a \cdot b}{2 |a|^2}) a + (1 - \frac{a \cdot b}{2 |b|^2}) b

the sum of orthogonal vectors, the mean of equal ones. More are combined over a binary tree [1]_:
0 with 1, 2 with 3, then the results, and so on; who has no partner waits for the next level.

Each rank takes one slice of every rank's vector, so all levels work on whole slices without moving
data again; only the products of the slices are summed over the ranks.

References
----------
.. [1] S. Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.communicator import Communicator
from blinkrun.errors import InvalidBufferError

_Array = npt.NDArray[Any]
_CHUNK = 1 << 16  # elements whose products are taken at once: in float64 they fit the cache


def adasum(communicator: Communicator, array: _Array) -> _Array:
    """Return the adaptive sum of every rank's `array`, bitwise the same on all ranks.

    Collective over the ranks of `communicator`, which give arrays of one shape and dtype. Blocks
    like the communicator's own calls, under its timeout.

    Parameters
    ----------
    communicator : Communicator
        Any number of ranks.
    array : array of a floating-point type
        16-bit types are combined in float32.

    Raises
    ------
    InvalidBufferError
        If the elements are not floating-point numbers.
    """
    wide = _wide(array.dtype)
    size = communicator.size
    if size == 1 or array.size == 0:
        return array.copy()
    width = -(-array.size // size)
    padded = communicator.empty(width * size, wide)
    padded[: array.size] = array.reshape(-1)
    padded[array.size :] = 0  # counts for nothing in any product
    slices = communicator.alltoall(padded.reshape(size, width))
    vectors = [np.asarray(row) for row in slices]
    with np.errstate(all="ignore"):  # infinities are the caller's, and reach it as they are
        while len(vectors) > 1:
            vectors = _combine_level(communicator, vectors)
        whole = communicator.allgather(np.ascontiguousarray(vectors[0]))
        result: _Array = whole[: array.size].astype(array.dtype, copy=True)
    return result.reshape(array.shape)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that vectors of `dtype` are combined in."""
    if dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return dtype
    if dtype.name in ("float16", "bfloat16"):
        return np.dtype(np.float32)
    raise InvalidBufferError(f"adasum takes floating-point tensors, not {dtype.name}")


def _combine_level(communicator: Communicator, vectors: list[_Array]) -> list[_Array]:
    """Combine neighbours; `vectors` are this rank's slices of them."""
    pairs = list(zip(vectors[::2], vectors[1::2], strict=False))
    products = np.array([(_dot(a, b), _dot(a, a), _dot(b, b)) for a, b in pairs])
    communicator.allreduce(products, out=products)
    rows = products.tolist()
    combined = [_combine(a, b, *row) for (a, b), row in zip(pairs, rows, strict=True)]
    return combined + vectors[2 * len(pairs) :]


def _combine(a: _Array, b: _Array, dot: float, a_square: float, b_square: float) -> _Array:
    """Return the combination of two slices, given the products of the whole vectors."""
    of_a = 1.0 if a_square == 0 else 1.0 - dot / (2.0 * a_square)
    of_b = 1.0 if b_square == 0 else 1.0 - dot / (2.0 * b_square)
    combined: _Array = a * a.dtype.type(of_a) + b * b.dtype.type(of_b)
    return combined


def _dot(a: _Array, b: _Array) -> float:
    """Return the dot product in float64; a product taken in float32 would lose half its digits."""
    return sum(
        float(np.dot(_exact(a[start : start + _CHUNK]), _exact(b[start : start + _CHUNK])))
        for start in range(0, a.size, _CHUNK)
    )


def _exact(part: _Array) -> npt.NDArray[np.float64]:
    return part.astype(np.float64, copy=False)
