"""The communicator's contract: containers, errors before anything moves, async, the arena."""

import array as plain
import gc

import numpy as np
import pytest
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.errors import (
    CollectiveTimeoutError,
    InvalidBufferError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    UsageError,
)
from blinkrun.types import Op

SIZE = 3


def on_ranks(body, size=SIZE, **options):
    return run_threads(star_plan(size), body, **options)


def refused(call, *args, **options):
    """Return the message of the error that `call` raises, and its class's name."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        call(*args, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_buffers_of_every_kind():
    def body(comm):
        one = plain.array("f", [1.0, 2.0])
        two = bytearray(b"\1\2\3")
        return (
            list(comm.allreduce(one)),
            list(comm.allreduce(two, Op.MAX)),
            float(comm.allreduce(np.float64(2.0))[()]),
            comm.allgather(np.float32(comm.rank)).tolist(),
        )

    for result in on_ranks(body):
        assert result == ([3.0, 6.0], [1, 2, 3], 6.0, [0.0, 1.0, 2.0])


def test_shapes_follow_the_input():
    def body(comm):
        x = np.ones((6, 2), np.int32)
        root = comm.reduce(x, root=1)
        return (
            comm.allreduce(x).shape,
            comm.allgather(x).shape,
            comm.reducescatter(x).shape,
            comm.alltoall(x).shape,
            None if root is None else root.shape,
        )

    for rank, shapes in enumerate(on_ranks(body)):
        assert shapes == ((6, 2), (18, 2), (2, 2), (6, 2), (6, 2) if rank == 1 else None)


def test_in_place_forms():
    def body(comm):
        x = np.full(4, comm.rank + 1.0)
        assert comm.allreduce(x, out=x) is x
        whole = np.zeros(2 * SIZE)
        mine = whole[2 * comm.rank : 2 * comm.rank + 2]
        mine[:] = comm.rank
        comm.allgather(mine, out=whole)
        parts = np.arange(2.0 * SIZE)
        comm.reducescatter(parts, out=parts[2 * comm.rank : 2 * comm.rank + 2])
        swapped = np.arange(SIZE) + 10 * comm.rank
        comm.alltoall(swapped, out=swapped)
        return x.tolist(), whole.tolist(), parts[2 * comm.rank], swapped.tolist()

    for rank, (x, whole, part, swapped) in enumerate(on_ranks(body)):
        assert x == [6.0] * 4
        assert whole == [0, 0, 1, 1, 2, 2]
        assert part == 2 * rank * SIZE
        assert swapped == [rank, 10 + rank, 20 + rank]


def test_arena_arrays_stay_in_the_arena_and_are_given_back():
    def body(comm):
        x = comm.empty((100, 3), "float16")
        x[:] = 1
        y = comm.allreduce(x)
        where = [comm.executor.contains(a.ctypes.data) for a in (x, y, np.ones(3))]
        used = comm.executor.group.arena_in_use()
        value = float(y[0, 0])
        del x, y
        gc.collect()
        return where, used >= 1200, comm.executor.group.arena_in_use(), value

    for result in on_ranks(body):
        assert result == ([True, True, False], True, 0, 3.0)


def test_refused_before_anything_moves():
    def body(comm):
        x = np.ones(6, np.float32)
        frozen = np.ones(6, np.float32)
        frozen.flags.writeable = False
        return [
            refused(comm.allreduce, np.ones(3, np.complex64)),
            refused(comm.allreduce, np.ones((4, 4))[:, 1]),
            refused(comm.allreduce, x, out=np.ones((6, 2), np.float32)[:, 1]),
            refused(comm.allreduce, x, out=frozen),
            refused(comm.allreduce, x, out=np.ones(6)),
            refused(comm.allreduce, x, out=np.ones(5, np.float32)),
            refused(comm.allreduce, x[:5], out=x[1:]),
            refused(comm.allreduce, [1.0, 2.0]),
            refused(comm.allreduce, x, 17),
            refused(comm.allreduce, np.ones(2, bool), Op.AVERAGE),
            refused(comm.broadcast, x, root=3),
            refused(comm.broadcast, x, root="0"),
            refused(comm.reducescatter, x[:5]),
            refused(comm.alltoall, x[:4]),
            refused(comm.empty, 3, "complex128"),
            float(comm.allreduce(x)[0]),  # and the ranks still agree afterwards
        ]

    for messages in on_ranks(body):
        assert messages.pop() == 3.0
        for message, part in zip(
            messages,
            [
                "dtype complex64",
                "array is not contiguous; pass numpy.ascontiguousarray(array)",
                "out is not contiguous; give one that is, and copy from it",
                "out is read-only",
                "array is float32, out is float64",
                "out has 5 elements, needs 6",
                "overlap",
                "a list, which has no memory",
                "17 is no operation",
                "bool has no averages",
                "root 3 is none of the ranks 0 to 2",
                "root '0' is no rank; give a whole number",
                "no multiple of the 3 ranks",
                "no multiple of the 3 ranks",
                "dtype complex128",
            ],
            strict=True,
        ):
            assert part in message


def test_mismatch_names_ranks_and_the_group_goes_on():
    def body(comm):
        x = np.ones(4 + comm.rank // 2, np.int32)
        with pytest.raises(MismatchError, match=r"rank 2: allreduce of 5 int32 \(sum\)"):
            comm.allreduce(x)
        with pytest.raises(MismatchError, match="rank 1: broadcast"):
            comm.barrier() if comm.rank != 1 else comm.broadcast(x)
        with pytest.raises(MismatchError, match="other scales"):
            comm.allreduce(np.ones(2), prescale=1.0 + comm.rank)
        return int(comm.allreduce(np.ones(1, np.int32))[0])

    assert on_ranks(body) == [SIZE] * SIZE


def test_a_late_rank_is_named():
    def body(comm):
        if comm.rank == 1:
            return None
        with pytest.raises(CollectiveTimeoutError, match="rank 1") as caught:
            comm.allreduce(np.ones(3))
        return caught.value.ranks, caught.value.timeout_s

    # The rank that stays away must not leave either: that would be another error.
    def stay(comm):
        result = body(comm)
        if comm.rank == 1:
            while not comm.executor.group.aborted():
                pass
        return result

    assert on_ranks(stay, timeout_s=0.4) == [((1,), 0.4), None, ((1,), 0.4)]


def test_a_rank_that_left_is_named():
    def body(comm):
        comm.barrier()
        if comm.rank == 2:
            comm.close()
            with pytest.raises(NotInitializedError):
                comm.allreduce(np.ones(2))
            return None
        with pytest.raises(PeerLeftError, match="rank 2 has left") as caught:
            comm.allreduce(np.ones(100_000))
        return caught.value.rank

    assert on_ranks(body) == [2, 2, None]


def test_async_calls_keep_their_order():
    def body(comm):
        x = np.ones(1000)
        handles = [comm.allreduce_async(x * i) for i in range(20)]
        inline = float(comm.allreduce(np.ones(1))[0])  # after all of them, on every rank
        assert all(handle.done() for handle in handles)
        gathered = comm.allgather_async(np.array([comm.rank])).wait()
        comm.barrier_async().wait()
        return [float(h.wait()[7]) for h in handles], inline, gathered.tolist()

    for sums, inline, gathered in on_ranks(body):
        assert sums == [3.0 * i for i in range(20)]
        assert inline == 3.0
        assert gathered == [0, 1, 2]


def test_async_errors_come_with_wait():
    def body(comm):
        handle = comm.reduce_async(np.ones(2 + comm.rank), root=0)
        with pytest.raises(MismatchError, match="rank 1: reduce of 3"):
            handle.wait()
        return True

    assert all(on_ranks(body))


def test_usage_errors_have_their_class():
    def body(comm):
        with pytest.raises(UsageError):
            comm.broadcast(np.ones(1), root=-1)
        with pytest.raises(InvalidBufferError):
            comm.empty_bytes(-1)
        with pytest.raises(InvalidBufferError, match="BLINKRUN_ARENA_BYTES"):
            comm.empty(1 << 40, "uint8")
        return True

    assert all(on_ranks(body, size=1))


def test_describe_says_ranks_and_trees():
    text = on_ranks(lambda comm: comm.describe(), size=2)[0]
    assert text.startswith("2 ranks on 1 host")
    assert "one-hop" in text


def test_a_dropped_handle_does_not_drop_the_memory():
    """The helper thread still writes when nobody holds handle, input or output any more."""

    def body(comm):
        for step in range(40):
            comm.allreduce_async(np.full(20_000, float(step)))
        total = comm.allreduce(np.ones(3))
        assert len(comm._in_flight) <= 40
        comm.allreduce_async(np.ones(1)).wait()
        comm.allreduce_async(np.ones(1)).wait()
        return float(total[0]), len(comm._in_flight) <= 2

    assert on_ranks(body) == [(3.0, True)] * SIZE
