"""One thing to measure: a collective of a given size, its data and the right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkrun.errors import UsageError
from blinkrun.types import DType, Op

# Factor from algbw to busbw over n ranks, as nccl-tests defines it: what a link of a machine with
# equal links must carry for each byte of the result.
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}
COLLECTIVES = tuple(BUS_FACTOR)
REDUCING = ("allreduce", "reduce", "reducescatter")
ROOTED = ("broadcast", "reduce")
IN_PLACE = ("allreduce", "broadcast", "reduce")
PERIOD = 1021  # prime: a chunk that lands in another's place is seen

Array = NDArray[Any]


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return numpy's name for `dtype`; bfloat16 is ml_dtypes'."""
    if dtype is DType.BFLOAT16:
        import ml_dtypes  # noqa: PLC0415  (loaded for one type only)

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype.label)


def num_blocks(collective: str, num_ranks: int) -> int:
    """Return into how many equal blocks the buffer of `collective` falls."""
    return 1 if collective in IN_PLACE else num_ranks


@dataclass(frozen=True, slots=True)
class Work:
    """A collective over `num_ranks` ranks on `size_bytes` bytes.

    `size_bytes` is what nccl-tests prints: the vector of allreduce, broadcast and reduce, and the
    blocks of all ranks together of allgather, reducescatter and alltoall.
    """

    collective: str
    dtype: DType
    op: Op
    root: int
    num_ranks: int
    size_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.root < self.num_ranks:
            raise UsageError(f"--root {self.root} is no rank; ranks are 0 to {self.num_ranks - 1}")
        if self.op is Op.AVERAGE and self.dtype is DType.BOOL:
            raise UsageError("--op average has no meaning for --dtype bool")
        unit = self.dtype.itemsize * self.num_blocks
        if self.size_bytes < unit or self.size_bytes % unit:
            raise UsageError(
                f"size {self.size_bytes} is no multiple of {unit} bytes, one element of"
                f" {self.dtype.label} in every block"
            )

    @property
    def num_blocks(self) -> int:
        """Into how many equal blocks the buffer falls."""
        return num_blocks(self.collective, self.num_ranks)

    @property
    def elements(self) -> int:
        """Elements of the whole buffer."""
        return self.size_bytes // self.dtype.itemsize

    @property
    def count(self) -> int:
        """Elements of a block: nccl-tests' column `count`."""
        return self.elements // self.num_blocks

    @property
    def op_label(self) -> str:
        """The operation, or ``none`` where nothing is reduced."""
        return self.op.name.lower() if self.collective in REDUCING else "none"

    @property
    def root_label(self) -> int:
        """The root, or -1 where there is none."""
        return self.root if self.collective in ROOTED else -1

    def algbw(self, time_us: float) -> float:
        """Return bytes over time, in GB/s."""
        return self.size_bytes / time_us / 1e3

    def busbw(self, time_us: float) -> float:
        """Return what each link would carry, in GB/s."""
        return self.algbw(time_us) * BUS_FACTOR[self.collective](self.num_ranks)


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a rank gives and gets; the same array where the call is in place."""

    send: Array
    recv: Array

    @staticmethod
    def of(work: Work, first: Array, second: Array) -> Buffers:
        """Cut the buffers of `work` from two large enough arrays."""
        blocks = {"allgather": (1, work.num_blocks), "reducescatter": (work.num_blocks, 1)}
        given, got = blocks.get(work.collective, (work.num_blocks, work.num_blocks))
        send = first[: work.count * given]
        in_place = work.collective in IN_PLACE
        return Buffers(send, send if in_place else second[: work.count * got])


def fill(work: Work, rank: int, buffers: Buffers) -> None:
    """Write the data of `rank`, and something else where the answer goes."""
    if buffers.recv is not buffers.send:
        buffers.recv.fill(0)
    if work.collective == "alltoall":
        for peer, block in enumerate(buffers.send.reshape(work.num_ranks, -1)):
            _tile(block, _cast(work, _values(work, rank * work.num_ranks + peer)))
    else:
        _tile(buffers.send, _cast(work, _values(work, rank)))


def count_wrong(work: Work, rank: int, buffers: Buffers) -> int:
    """Return how many elements of the result at `rank` differ from what they must be."""
    got = buffers.recv
    if work.collective == "allgather":
        blocks = got.reshape(work.num_ranks, -1)
        return sum(_differ(b, _cast(work, _values(work, r)), work) for r, b in enumerate(blocks))
    if work.collective == "alltoall":
        keys = [peer * work.num_ranks + rank for peer in range(work.num_ranks)]
        blocks = got.reshape(work.num_ranks, -1)
        return sum(
            _differ(b, _cast(work, _values(work, k)), work)
            for k, b in zip(keys, blocks, strict=True)
        )
    if work.collective == "broadcast":
        return _differ(got, _cast(work, _values(work, work.root)), work)
    if work.collective == "reduce" and rank != work.root:
        return 0
    start = rank * work.count if work.collective == "reducescatter" else 0
    return _differ(got, np.roll(_reduced(work), -start), work)


def _values(work: Work, key: int) -> NDArray[np.int64]:
    """One period of the data with number `key`: whole numbers that every type holds exactly."""
    base = (np.arange(PERIOD) * (2 * key + 1) + key) % PERIOD % 8
    return 1 + base % 2 if work.op is Op.PRODUCT else base


def _reduced(work: Work) -> Array:
    """One period of the reduction over the ranks, in the type of the result."""
    values = np.stack([_values(work, rank) for rank in range(work.num_ranks)])
    if work.dtype is DType.BOOL:
        both = np.logical_and if work.op in (Op.MIN, Op.PRODUCT) else np.logical_or
        return np.asarray(both.reduce(_cast(work, values), axis=0))
    if work.op is Op.AVERAGE:
        if work.dtype.is_float:
            return _cast(work, values.sum(axis=0) / work.num_ranks)
        wrapped = _cast(work, values.sum(axis=0)).astype(np.int64)
        return _cast(work, wrapped // work.num_ranks)
    reduce = {Op.SUM: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PRODUCT: np.multiply}
    return _cast(work, np.asarray(reduce[work.op].reduce(values, axis=0)))


def _cast(work: Work, values: Array) -> Array:
    if work.dtype is DType.BOOL:
        odd: Array = values % 2 == 1
        return odd
    with np.errstate(over="ignore"):  # a product may leave float16: infinity is the answer then
        cast: Array = values.astype(numpy_dtype(work.dtype))
    return cast


def _tile(target: Array, period: Array) -> None:
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[...] = period
    target[whole:] = period[: len(target) - whole]


def _differ(got: Array, period: Array, work: Work) -> int:
    whole = len(got) // PERIOD * PERIOD
    pieces = [(got[:whole].reshape(-1, PERIOD), period), (got[whole:], period[: len(got) - whole])]
    return sum(int(np.count_nonzero(_unequal(piece, right, work))) for piece, right in pieces)


def _unequal(got: Array, right: Array, work: Work) -> NDArray[np.bool_]:
    if work.op is Op.AVERAGE and work.dtype.is_float and work.collective in REDUCING:
        # Dividing by the ranks and multiplying by their inverse differ in the last place.
        bits = {DType.BFLOAT16: 7, DType.FLOAT16: 10, DType.FLOAT32: 23, DType.FLOAT64: 52}
        wide = right.astype(np.float64)
        return np.abs(got.astype(np.float64) - wide) > 2.0 ** -bits[work.dtype] * np.abs(wide)
    return np.asarray(got != right)
