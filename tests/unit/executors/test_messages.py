"""Messages between two ranks: order by tag, any size, many threads, and ends."""

import random
import threading
import time

import numpy as np
import pytest
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.errors import (
    AbortedError,
    CollectiveTimeoutError,
    InvalidBufferError,
    MismatchError,
    NotInitializedError,
    PeerLeftError,
    UsageError,
)
from blinkrun.messages import Recv, Send

RING = 256 << 10  # kPipeRing of csrc/p2p.hpp
SIZES = [0, 1, 15, 16, 17, 4099, RING - 16, RING, RING + 1, 1_000_003]


def on_ranks(body, size=3, **options):
    return run_threads(star_plan(size), body, **options)


def pattern(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def error_of(call):
    try:
        call()
    except Exception as err:
        return err
    return None


def test_messages_of_every_size_arrive_whole():
    def body(comm):
        ahead, behind = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        wrong = 0
        for seed, size in enumerate(SIZES):
            if comm.rank == 0:
                comm.send(pattern(size, seed), ahead, seed)
            got = np.zeros(size + 2, np.uint8)
            comm.recv(got[1:-1], behind, seed)
            wrong += int((got[1:-1] != pattern(size, seed)).sum() + got[0] + got[-1])
            if comm.rank:
                comm.send(got[1:-1], ahead, seed)
        return wrong

    assert on_ranks(body) == [0, 0, 0]


def test_every_element_type_travels_as_it_is():
    torch = pytest.importorskip("torch")
    arrays = [
        np.array([1 + 2j, 3]),
        np.array(["blink", "run"]),
        np.array(5, "datetime64[s]"),
        torch.arange(6, dtype=torch.int16).reshape(2, 3),
        torch.tensor(2.5, dtype=torch.bfloat16),
        bytearray(b"bytes"),
    ]

    def body(comm):
        if comm.rank == 0:
            for each in arrays:
                comm.send(each, 1)
            return True
        same = []
        for each in arrays:
            if isinstance(each, bytearray):
                got = bytearray(len(each))
            else:
                got = each.copy() if isinstance(each, np.ndarray) else each.clone()
                got[...] = np.zeros(1, each.dtype)[0] if isinstance(each, np.ndarray) else 0
            comm.recv(got, 0)
            same.append(
                bool((np.array(got) == np.array(each)).all())
                if isinstance(each, np.ndarray)
                else (got == each if isinstance(each, bytearray) else torch.equal(got, each))
            )
        return all(same)

    assert on_ranks(body, 2) == [True, True]


def test_tags_are_taken_in_any_order_and_each_in_its_own():
    order = [(tag, number) for tag in (7, -1, 2**62) for number in range(4)]
    random.Random(3).shuffle(order)

    def body(comm):
        if comm.rank == 0:
            for tag in (7, -1, 2**62):
                for number in range(4):
                    comm.send(np.array([tag, number]), 1, tag)
            return None
        seen = {7: [], -1: [], 2**62: []}
        got = np.zeros(2, np.int64)
        for tag, _ in order:
            comm.recv(got, 0, tag)
            assert got[0] == tag
            seen[tag].append(int(got[1]))
        return seen

    assert on_ranks(body, 2)[1] == {tag: [0, 1, 2, 3] for tag in (7, -1, 2**62)}


def test_both_may_send_first_what_fits():
    def body(comm):
        mine = np.full(64 << 10, comm.rank, np.uint8)
        got = np.empty_like(mine)
        for _ in range(3):
            comm.send(mine, 1 - comm.rank)
        for _ in range(3):
            comm.recv(got, 1 - comm.rank)
        return int(got[-1])

    assert on_ranks(body, 2) == [1, 0]


def test_an_exchange_of_large_messages_blocks_in_no_order():
    """Every rank sends to all before it receives from any: more than the rings hold."""
    size = 3 * RING + 5

    def body(comm):
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        got = {rank: np.empty(size, np.uint8) for rank in others}
        sends = [Send(pattern(size, 10 * comm.rank + rank), rank) for rank in others]
        receives = [Recv(got[rank], rank) for rank in others]
        comm.exchange(sends + receives if comm.rank else receives + sends)
        return sum(int((got[r] != pattern(size, 10 * r + comm.rank)).sum()) for r in others)

    assert on_ranks(body, 4) == [0] * 4


def test_threads_get_what_is_theirs():
    """Each of four threads has a tag; whoever reads sets aside what is for the others."""
    rounds, threads = 40, 4

    def worker(comm, tag, wrong):
        rng = random.Random(tag)
        peer = 1 - comm.rank
        for number in range(rounds):
            size = rng.choice([0, 1, 509, 70_001, RING + 3])
            if comm.rank == 0:
                comm.send(pattern(size, number), peer, tag)
            got = np.empty(size, np.uint8)
            comm.recv(got, peer, tag)
            wrong.append(int((got != pattern(size, number)).sum()))
            if comm.rank == 1:
                comm.send(got, peer, tag)

    def body(comm):
        wrong = []
        workers = [
            threading.Thread(target=worker, args=(comm, tag, wrong)) for tag in range(threads)
        ]
        for each in workers:
            each.start()
        for each in workers:
            comm.allreduce(np.ones(1000))  # beside collectives
            each.join(60)
        return len(wrong), sum(wrong)

    assert on_ranks(body, 2, timeout_s=60) == [(rounds * threads, 0)] * 2


def test_what_has_arrived_can_be_asked_for():
    def body(comm):
        if comm.rank == 0:
            before = comm.arrived(1, 5)
            comm.barrier()
            comm.barrier()
            return before, comm.arrived(1, 5), comm.arrived(1, 4), comm.arrived(1, 6)
        comm.barrier()
        comm.send(np.zeros(3), 0, 4)
        comm.send(np.zeros(RING // 16), 0, 5)
        comm.barrier()
        return None

    assert on_ranks(body, 2)[0] == (False, True, True, False)


def test_a_message_of_another_size_is_told_and_kept():
    def body(comm):
        if comm.rank == 0:
            comm.send(np.arange(3, dtype=np.int32), 1, 9)
            comm.send(np.arange(5, dtype=np.int8), 1, 8)
            return None
        small, right, other = np.zeros(2, np.int32), np.zeros(3, np.int32), np.zeros(5, np.int8)
        error = error_of(lambda: comm.exchange([Recv(small, 0, 9), Recv(other, 0, 8)]))
        comm.recv(right, 0, 9)
        return error, small.tolist(), right.tolist(), other.tolist()

    error, small, right, other = on_ranks(body, 2)[1]
    assert isinstance(error, MismatchError)
    assert "recv from rank 0, tag 9: rank 1 wants 8 bytes, rank 0 sent 12" in str(error)
    assert (small, right, other) == ([0, 0], [0, 1, 2], [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda c: c.send(np.ones(1), c.rank), UsageError, "send: rank 1 is this rank"),
        (lambda c: c.recv(np.ones(1), 5), UsageError, "recv: rank 5 is none of the ranks 0 to 1"),
        (lambda c: c.send(np.ones(1), 0, 2**63), UsageError, "more than 64 bits"),
        (lambda c: c.recv(b"abc", 0), InvalidBufferError, "recv: array is read-only"),
        (lambda c: c.send(np.ones((4, 4))[:, 1], 0), InvalidBufferError, "not contiguous"),
        (lambda c: c.send([1.0], 0), InvalidBufferError, "has no memory"),
        (lambda c: c.send(np.array([{}]), 0), InvalidBufferError, "pickle them"),
    ],
)
def test_bad_arguments_move_nothing(call, kind, said):
    def body(comm):
        error = error_of(lambda: call(comm)) if comm.rank == 1 else None
        comm.barrier()
        return error

    error = on_ranks(body, 2)[1]
    assert isinstance(error, kind)
    assert said in str(error)


def test_after_close():
    def body(comm):
        comm.close()
        return [error_of(lambda: comm.send(np.ones(1), 1 - comm.rank)), error_of(comm.barrier)]

    for errors in on_ranks(body, 2):
        assert all(isinstance(each, NotInitializedError) for each in errors)


def test_a_message_that_does_not_come_ends_at_the_deadline():
    def body(comm):
        if comm.rank == 1:
            while not comm.executor.group.aborted():
                time.sleep(0.01)
            return error_of(lambda: comm.send(np.ones(1), 0))
        return error_of(lambda: comm.recv(np.ones(5), 1, 3))

    late, after = on_ranks(body, 2, timeout_s=0.2)
    for error in (late, after):  # the first cause is what everyone reads
        assert isinstance(error, CollectiveTimeoutError)
        assert error.ranks == (1,)
        assert "rank 0 waited 0.2 s in recv of 40 bytes from rank 1, tag 3 for rank 1" in str(error)


def test_nobody_takes_a_large_message():
    def body(comm):
        if comm.rank == 0:
            return error_of(lambda: comm.send(np.ones(RING), 1))
        while not comm.executor.group.aborted():
            time.sleep(0.01)
        return None

    error = on_ranks(body, 2, timeout_s=0.2)[0]
    assert isinstance(error, CollectiveTimeoutError)
    assert "in send of 2097152 bytes to rank 1, tag 0 for rank 1" in str(error)


def test_a_rank_that_has_left_is_missed_only_by_what_it_has_not_sent():
    def body(comm):
        if comm.rank == 1:
            comm.send(np.array([4.0]), 0)
            comm.close()
            return None
        got = np.zeros(1)
        while 1 not in comm.executor.group.gone():
            time.sleep(0.01)
        comm.recv(got, 1)
        return got[0], error_of(lambda: comm.recv(got, 1))

    value, error = on_ranks(body, 2)[0]
    assert value == 4.0
    assert isinstance(error, PeerLeftError)
    assert error.rank == 1
    assert "rank 1 has left the job while rank 0 waits for it in recv of 8 bytes" in str(error)


def test_an_abort_ends_the_wait():
    def body(comm):
        if comm.rank == 1:
            comm.executor.group.abort("no more")
            return None
        return error_of(lambda: comm.recv(np.ones(5), 1))

    error = on_ranks(body, 2)[0]
    assert isinstance(error, AbortedError)
    assert "no more" in str(error)


def test_a_message_waits_without_burning():
    def body(comm):
        got = np.zeros(1)
        if comm.rank == 1:
            comm.recv(got, 0, 1)  # until the other has measured
            comm.send(got, 0)
            return None
        used = time.thread_time()
        waker = threading.Timer(0.5, comm.send, (got, 1, 1))
        waker.start()
        comm.recv(got, 1)
        waker.join(20)
        return time.thread_time() - used

    assert on_ranks(body, 2)[0] < 0.05
