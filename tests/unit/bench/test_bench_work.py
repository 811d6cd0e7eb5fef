import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.bench.work import (
    COLLECTIVES,
    REDUCING,
    Buffers,
    Work,
    count_wrong,
    fill,
    numpy_dtype,
)
from blinkrun.types import DType, Op


def make_work(collective="allreduce", dtype=DType.FLOAT32, op=Op.SUM, num_ranks=3, count=2053):
    blocks = 1 if collective in ("allreduce", "broadcast", "reduce") else num_ranks
    return Work(
        collective=collective,
        dtype=dtype,
        op=op,
        root=num_ranks - 1,
        num_ranks=num_ranks,
        size_bytes=count * blocks * dtype.itemsize,
    )


def filled(work):
    """The buffers of all ranks, with their data."""
    every = []
    for rank in range(work.num_ranks):
        first, second = (np.empty(work.elements, numpy_dtype(work.dtype)) for _ in range(2))
        buffers = Buffers.of(work, first, second)
        fill(work, rank, buffers)
        every.append(buffers)
    return every


def carry_out(work, every):
    """The collective in plain numpy, written apart from what is tested."""
    sends = [buffers.send.copy() for buffers in every]
    if work.collective in REDUCING:
        total = combine(work, sends)
    for rank, buffers in enumerate(every):
        if work.collective == "allreduce" or (work.collective == "reduce" and rank == work.root):
            buffers.recv[...] = total
        elif work.collective == "broadcast":
            buffers.recv[...] = sends[work.root]
        elif work.collective == "allgather":
            buffers.recv[...] = np.concatenate(sends)
        elif work.collective == "reducescatter":
            buffers.recv[...] = total[rank * work.count : (rank + 1) * work.count]
        elif work.collective == "alltoall":
            blocks = [send[rank * work.count : (rank + 1) * work.count] for send in sends]
            buffers.recv[...] = np.concatenate(blocks)


def combine(work, sends):
    if work.dtype is DType.BOOL:
        each = np.logical_and if work.op in (Op.MIN, Op.PRODUCT) else np.logical_or
        return each.reduce(sends)
    wide = [s.astype(np.float64 if work.dtype.is_float else s.dtype) for s in sends]
    if work.op is Op.AVERAGE:
        total = np.add.reduce(wide)
        return total / work.num_ranks if work.dtype.is_float else total // work.num_ranks
    each = {Op.SUM: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PRODUCT: np.multiply}
    return each[work.op].reduce(wide)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_right_answer_has_no_wrong_element(collective, dtype):
    for op in Op if collective in REDUCING else [Op.SUM]:
        if op is Op.AVERAGE and dtype is DType.BOOL:
            continue
        work = make_work(collective, dtype, op)
        every = filled(work)
        carry_out(work, every)
        assert [count_wrong(work, rank, b) for rank, b in enumerate(every)] == [0, 0, 0]


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(data=st.data())
def test_each_spoiled_element_is_counted(collective, data):
    work = make_work(collective, count=1500)
    every = filled(work)
    carry_out(work, every)
    got = every[work.root].recv
    spoiled = data.draw(st.sets(st.integers(0, len(got) - 1), max_size=5))
    for index in spoiled:
        got[index] += 1
    assert count_wrong(work, work.root, every[work.root]) == len(spoiled)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_doing_nothing_is_wrong(collective):
    work = make_work(collective)
    every = filled(work)
    ranks = [r for r in range(3) if not (collective == "reduce" and r != work.root)]
    ranks = [r for r in ranks if not (collective == "broadcast" and r == work.root)]
    assert all(count_wrong(work, rank, every[rank]) > work.count / 4 for rank in ranks)


def test_bandwidths_are_those_of_nccl_tests():
    work = make_work("allreduce", num_ranks=4, count=250_000)  # 1 MB in 1 ms: 1 GB/s
    assert work.algbw(1000.0) == pytest.approx(1.0)
    assert work.busbw(1000.0) == pytest.approx(2 * 3 / 4)
    gather = make_work("allgather", num_ranks=4, count=62_500)
    assert (gather.size_bytes, gather.count) == (1_000_000, 62_500)
    assert gather.algbw(1000.0) == pytest.approx(1.0)
    assert gather.busbw(1000.0) == pytest.approx(3 / 4)
    assert make_work("broadcast", num_ranks=4, count=250_000).busbw(1000.0) == pytest.approx(1.0)


def test_columns_say_none_where_there_is_no_operation_and_minus_one_where_no_root():
    assert (make_work("allgather").op_label, make_work("allgather").root_label) == ("none", -1)
    assert (make_work("reduce").op_label, make_work("reduce").root_label) == ("sum", 2)
