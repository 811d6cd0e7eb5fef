"""NCCL's calls where all ranks belong to this process."""

import pickle
import threading

import ml_dtypes
import numpy as np
import pytest

from blinkrun import nccl
from blinkrun.nccl import NcclCommunicator, NcclError, groupEnd, groupStart

TYPES = {
    nccl.NCCL_INT8: np.int8,
    nccl.NCCL_UINT8: np.uint8,
    nccl.NCCL_INT32: np.int32,
    nccl.NCCL_UINT32: np.uint32,
    nccl.NCCL_INT64: np.int64,
    nccl.NCCL_UINT64: np.uint64,
    nccl.NCCL_FLOAT16: np.float16,
    nccl.NCCL_FLOAT32: np.float32,
    nccl.NCCL_FLOAT64: np.float64,
    nccl.NCCL_BFLOAT16: ml_dtypes.bfloat16,
}
INTEGERS = [number for number in TYPES if number <= nccl.NCCL_UINT64]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_TIMEOUT_S", "20")
    monkeypatch.setenv("BLINKRUN_ARENA_BYTES", "48M")
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))


@pytest.fixture
def three():
    comms = NcclCommunicator.initAll([4, 0, 7])
    yield comms
    for comm in comms:
        comm.destroy()


def pointer(array):
    return array.ctypes.data


def together(comms, call):
    """Let `call(comm, rank)` of every communicator run in one group."""
    groupStart()
    for rank, comm in enumerate(comms):
        call(comm, rank)
    groupEnd()


def values(dtype, count, rank):
    """Numbers of the whole range of an integer type, small whole ones of a float."""
    rng = np.random.default_rng(rank)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype, endpoint=True)
    return rng.integers(-4, 4, count).astype(dtype)


def truncated_mean(total, size):
    """As C divides: towards zero."""
    return np.array([int(x) // size if x >= 0 else -(-int(x) // size) for x in total], total.dtype)


EXPECTED = {
    nccl.NCCL_SUM: lambda stack: stack.sum(0, dtype=stack.dtype),
    nccl.NCCL_PROD: lambda stack: stack.prod(0, dtype=stack.dtype),
    nccl.NCCL_MAX: lambda stack: stack.max(0),
    nccl.NCCL_MIN: lambda stack: stack.min(0),
    nccl.NCCL_AVG: lambda stack: (
        truncated_mean(stack.sum(0, dtype=stack.dtype), len(stack))
        if stack.dtype.kind in "iu"
        else (stack.astype(np.float64).sum(0) / len(stack)).astype(stack.dtype)
    ),
}


@pytest.mark.parametrize("datatype", TYPES)
def test_reductions_of_every_type(three, datatype):
    """Every operation by all three ways to reduce, on numbers that wrap and have the top bit."""
    dtype, size, count = TYPES[datatype], 3, 7
    for op, expected in EXPECTED.items():
        given = [values(dtype, count * size, rank) for rank in range(size)]
        with np.errstate(over="ignore"):
            wanted = expected(np.stack(given))
        reduced = [np.zeros(count * size, dtype) for _ in range(size)]
        rooted = [np.zeros(count * size, dtype) for _ in range(size)]
        scattered = [np.zeros(count, dtype) for _ in range(size)]
        everything = count * size

        def call(comm, rank):
            ours = pointer(given[rank])  # noqa: B023 - called in this round
            comm.allReduce(ours, pointer(reduced[rank]), everything, datatype, op, 0)  # noqa: B023
            comm.reduce(ours, pointer(rooted[rank]), everything, datatype, op, 1, 0)  # noqa: B023
            comm.reduceScatter(ours, pointer(scattered[rank]), count, datatype, op, 0)  # noqa: B023

        before = [each.copy() for each in given]
        together(three, call)
        for rank in range(size):
            assert (reduced[rank] == wanted).all(), op
            assert (scattered[rank] == wanted[rank * count : (rank + 1) * count]).all(), op
            assert (rooted[rank] == (wanted if rank == 1 else 0)).all(), op
            assert (given[rank] == before[rank]).all()


def test_averages_of_more_ranks_than_a_byte_counts():
    """The divisor of int8 sums need not be an int8."""
    sums = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    from blinkrun.nccl.calls import _divide

    _divide(sums, 200)
    assert sums.tolist() == [0] * 6


def test_in_place(three):
    shared = [np.zeros(9, np.int32) for _ in range(3)]
    for rank, each in enumerate(shared):
        each[rank * 3 : rank * 3 + 3] = rank + 1
    int32 = nccl.NCCL_INT32
    together(
        three,
        lambda c, r: c.allGather(pointer(shared[r][3 * r :]), pointer(shared[r]), 3, int32, 0),
    )
    assert [each.tolist() for each in shared] == [[1] * 3 + [2] * 3 + [3] * 3] * 3
    sums = nccl.NCCL_SUM
    together(
        three, lambda c, r: c.allReduce(pointer(shared[r]), pointer(shared[r]), 9, int32, sums, 0)
    )
    assert [each.tolist() for each in shared] == [[3] * 3 + [6] * 3 + [9] * 3] * 3
    together(
        three,
        lambda c, r: c.reduceScatter(
            pointer(shared[r]), pointer(shared[r][3 * r :]), 3, int32, sums, None
        ),
    )
    assert [each[3 * r : 3 * r + 3].tolist() for r, each in enumerate(shared)] == [
        [9] * 3,
        [18] * 3,
        [27] * 3,
    ]


def test_broadcasts_need_no_buffer_where_none_is_used(three):
    source, got = np.arange(5.0), [np.zeros(5) for _ in range(3)]
    double = nccl.NCCL_DOUBLE
    together(
        three,
        lambda c, r: c.broadcast(
            pointer(source) if r == 2 else 0, pointer(got[r]), 5, double, 2, 0
        ),
    )
    assert all((each == source).all() for each in got)
    got[0][:] = 7
    together(three, lambda c, r: c.bcast(pointer(got[r]), 5, double, 0, 0))
    assert all((each == 7).all() for each in got)
    total = np.zeros(5)
    together(
        three,
        lambda c, r: c.reduce(
            pointer(got[r]), pointer(total) if r == 0 else 0, 5, double, nccl.NCCL_SUM, 0, 0
        ),
    )
    assert (total == 21).all()


def test_nothing_and_empty_groups(three):
    groupStart()
    groupEnd()
    together(three, lambda c, r: c.allReduce(0, 0, 0, nccl.NCCL_FLOAT, nccl.NCCL_SUM, 0))
    together(three, lambda c, r: c.allGather(0, 0, 0, nccl.NCCL_FLOAT, 0))


def test_sends_and_receives_of_a_group_wait_for_no_order(three):
    """An alltoall of more than the rings hold, with a message to oneself, beside a collective."""
    count = 200_003
    given = [np.arange(3 * count, dtype=np.int32).reshape(3, count) + 10 * r for r in range(3)]
    got = [np.zeros((3, count), np.int32) for _ in range(3)]
    total = [np.zeros(count, np.int32) for _ in range(3)]

    def call(comm, rank):
        for peer in range(3):
            comm.send(pointer(given[rank][peer]), count, nccl.NCCL_INT32, peer, 0)
        groupStart()  # nested: ends nothing
        comm.allReduce(
            pointer(given[rank][0]), pointer(total[rank]), count, nccl.NCCL_INT32, nccl.NCCL_MAX, 0
        )
        groupEnd()
        assert not total[rank].any()
        for peer in reversed(range(3)):
            comm.recv(pointer(got[rank][peer]), count, nccl.NCCL_INT32, peer, 0)

    together(three, call)
    for rank in range(3):
        for peer in range(3):
            assert (got[rank][peer] == given[peer][rank]).all()
        assert (total[rank] == given[2][0]).all()


def test_who_is_who(three):
    assert [comm.rank_id() for comm in three] == [0, 1, 2]
    assert [comm.device_id() for comm in three] == [4, 0, 7]
    assert {comm.size() for comm in three} == {3}
    assert len({comm.comm for comm in three}) == 3
    assert [comm.check_async_error() for comm in three] == [None] * 3


def test_splits_by_color_and_key(three):
    groupStart()
    parts = [comm.commSplit(rank % 2, -rank) for rank, comm in enumerate(three)]
    with pytest.raises(NcclError, match="its group has not ended"):
        parts[0].rank_id()
    groupEnd()
    assert [(part.rank_id(), part.size()) for part in parts] == [(1, 2), (0, 1), (0, 2)]
    x = [np.full(3, rank + 1.0) for rank in range(3)]
    together(
        parts,
        lambda c, r: c.allReduce(
            pointer(x[r]), pointer(x[r]), 3, nccl.NCCL_DOUBLE, nccl.NCCL_SUM, 0
        ),
    )
    assert [each[0] for each in x] == [4.0, 2.0, 4.0]
    groupStart()
    colors = [nccl.NCCL_SPLIT_NOCOLOR, 5, 5]
    rest = [comm.commSplit(color, 0) for comm, color in zip(three, colors, strict=True)]
    groupEnd()
    assert rest[0] is None
    assert [rest[1].rank_id(), rest[2].rank_id()] == [0, 1]
    for each in parts + rest[1:]:
        each.destroy()


def test_communicators_by_id_within_a_group_of_one_thread():
    unique_id = nccl.get_unique_id()
    assert len(unique_id) == nccl.NCCL_UNIQUE_ID_BYTES
    assert all(-128 <= each <= 127 for each in unique_id)
    assert unique_id != nccl.get_unique_id()
    groupStart()
    comms = [NcclCommunicator(2, unique_id, rank) for rank in range(2)]
    groupEnd()
    x = [np.full(3, rank + 1.0) for rank in range(2)]
    together(
        comms,
        lambda c, r: c.allReduce(
            pointer(x[r]), pointer(x[r]), 3, nccl.NCCL_DOUBLE, nccl.NCCL_SUM, 0
        ),
    )
    assert x[0].tolist() == x[1].tolist() == [3.0] * 3
    for each in comms:
        each.destroy()
        each.destroy()
        assert each.comm == 0
        with pytest.raises(NcclError, match="was destroyed or aborted"):
            each.size()


BAD = {
    "count is -1": lambda c: c.allReduce(1, 1, -1, nccl.NCCL_INT, nccl.NCCL_SUM, 0),
    "datatype 10 is none of 0 (int8)": lambda c: c.allGather(1, 1, 1, 10, 0),
    "op 5 is none of 0 (sum)": lambda c: c.allReduce(1, 1, 1, nccl.NCCL_INT, 5, 0),
    "root 3 is none of the ranks 0 to 2": lambda c: c.bcast(1, 1, nccl.NCCL_INT, 3, 0),
    "root -1 is none": lambda c: c.reduce(1, 1, 1, nccl.NCCL_INT, nccl.NCCL_SUM, -1, 0),
    "peer 3 is none of the ranks 0 to 2": lambda c: c.send(1, 1, nccl.NCCL_INT, 3, 0),
    "sendbuf is null, but count is 4": lambda c: c.allReduce(0, 1, 4, 7, nccl.NCCL_SUM, 0),
    "recvbuf is null, but count is 4": lambda c: c.recv(0, 4, nccl.NCCL_INT, 1, 0),
    "stream is 0x7f00": lambda c: c.bcast(1, 1, nccl.NCCL_INT, 0, 0x7F00),
    "color is -2": lambda c: c.commSplit(-2, 0),
}


@pytest.mark.parametrize("problem", BAD)
def test_bad_arguments_are_refused_at_once(three, problem):
    for grouped in (False, True):
        if grouped:
            groupStart()
        with pytest.raises(NcclError) as caught:
            BAD[problem](three[0])
        if grouped:
            groupEnd()
        assert caught.value.status == 4
        assert str(caught.value).startswith("NCCL_ERROR_INVALID_ARGUMENT: invalid argument: ")
        assert problem in str(caught.value)


def test_what_makes_no_communicator():
    unique_id = nccl.get_unique_id()
    for ndev, given, rank in [(0, unique_id, 0), (2, unique_id, 2), (2, (1, 2), 0), (2, 3, 0)]:
        with pytest.raises(NcclError) as caught:
            NcclCommunicator(ndev, given, rank)
        assert caught.value.status == 4
    with pytest.raises(NcclError, match="one comes twice"):
        NcclCommunicator.initAll([1, 1])
    with pytest.raises(NcclError, match="need at least 1"):
        NcclCommunicator.initAll(0)
    with pytest.raises(ValueError, match="should be an int or a list"):
        NcclCommunicator.initAll("2")


def test_groups_that_do_not_fit(three):
    with pytest.raises(NcclError, match="groupEnd without groupStart") as caught:
        groupEnd()
    assert caught.value.status == 5
    x = np.zeros(4, np.int32)
    with pytest.raises(NcclError, match="needs its recv in the same group"):
        three[1].send(pointer(x), 1, nccl.NCCL_INT, 1, 0)
    groupStart()
    three[1].send(pointer(x), 1, nccl.NCCL_INT, 1, 0)
    with pytest.raises(
        NcclError, match=r"sends \[4\] bytes to itself in this group, and receives \[\]"
    ):
        groupEnd()


def test_ranks_that_call_different_things_all_hear_it(three):
    x = np.zeros(4, np.int32)
    groupStart()
    for rank, comm in enumerate(three):
        comm.allReduce(pointer(x), pointer(x), 3 + (rank == 1), nccl.NCCL_INT, nccl.NCCL_SUM, 0)
    with pytest.raises(NcclError, match="rank 1: allreduce of 4 int32") as caught:
        groupEnd()
    assert caught.value.status == 5
    y = [np.ones(4, np.int32) for _ in range(3)]  # and the communicators go on
    together(
        three,
        lambda c, r: c.allReduce(pointer(y[r]), pointer(y[r]), 4, nccl.NCCL_INT, nccl.NCCL_SUM, 0),
    )
    assert [each.tolist() for each in y] == [[3] * 4] * 3


@pytest.mark.parametrize("way", ["abort", "destroy"])
def test_an_end_of_one_rank_ends_the_waits_of_the_others(three, way):
    errors = []
    x = np.zeros(3)

    def wait(comm):
        try:
            comm.bcast(pointer(x), 3, nccl.NCCL_DOUBLE, 0, 0)
        except NcclError as err:
            errors.append(err)

    threads = [threading.Thread(target=wait, args=(comm,)) for comm in three[1:]]
    for thread in threads:
        thread.start()
    getattr(three[0], way)()
    for thread in threads:
        thread.join(15)
    assert [each.status for each in errors] == [6, 6]
    for comm in three[1:]:
        with pytest.raises(NcclError, match="remote process exited"):
            comm.check_async_error()


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(NcclError(6, "rank 1 died")))
    assert (error.status, error.detail) == (6, "rank 1 died")
    assert str(NcclError(5)) == "NCCL_ERROR_INVALID_USAGE: invalid usage"
    assert nccl.available
    assert nccl.get_version() == nccl.get_build_version() >= 2700
