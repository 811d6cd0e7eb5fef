"""The journal of the native core, on ranks that are threads: one order, whole messages, ends."""

import signal
import threading
import time

import pytest
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.comm.loopback import LoopbackControl
from blinkrun.errors import (
    AbortedError,
    CollectiveTimeoutError,
    NotInitializedError,
    PeerLeftError,
)
from blinkrun.executors import native
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.executors.journal import NativeJournal

LONG_S = 15.0
SIZES = [0, 1, 7, 1009, 65_537, native.JOURNAL_BYTES + 1]


def on_ranks(body, size=3, **options):
    return run_threads(star_plan(size), body, **options)


def read_exactly(journal, count):
    messages = []
    while len(messages) < count:
        assert journal.wait(LONG_S, may_spin=len(messages) % 2 == 0)
        messages += journal.read()
    assert len(messages) == count
    return messages


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_ranks_read_the_same_messages_in_the_same_order(size):
    def body(comm):
        journal = comm.journal
        assert journal is comm.journal

        def write(writer):
            for number, length in enumerate(SIZES * 3):
                mark = bytes([comm.rank, writer, number])
                journal.post(mark + bytes([number]) * length, urgent=number % 5 == 0)

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(2)]
        for writer in writers:
            writer.start()
        messages = read_exactly(journal, size * 2 * len(SIZES) * 3)
        for writer in writers:
            writer.join()
        assert not journal.read()
        assert not journal.wait(0.0, may_spin=True)
        return messages

    orders = on_ranks(body, size, timeout_s=40.0)
    assert all(order == orders[0] for order in orders)
    numbers = {}
    for sender, message in orders[0]:
        rank, writer, number = message[:3]
        assert sender == rank
        assert number == numbers.get((rank, writer), 0)  # a thread's own messages keep their order
        assert message[3:] == bytes([number]) * SIZES[number % len(SIZES)]
        numbers[rank, writer] = number + 1
    assert set(numbers.values()) == {len(SIZES) * 3}


def test_only_urgent_posts_and_kicks_end_a_sleep():
    def body(comm):
        journal = comm.journal
        if comm.rank == 0:
            for _ in range(100):
                journal.post(b"ordinary")
            comm.barrier()
            comm.barrier()
            journal.post(b"urgent", urgent=True)
        elif comm.rank == 1:
            comm.barrier()
            ordinary = journal.sleep(0.05)
            comm.barrier()
            assert not ordinary
            assert journal.sleep(LONG_S)
            assert journal.read()[-1] == (0, b"urgent")
        else:
            comm.barrier()
            comm.barrier()
            assert journal.sleep(LONG_S)  # the urgent one ends every rank's
            assert not journal.sleep(0.0)
            journal.kick()
            assert journal.sleep(LONG_S)
            assert not journal.sleep(0.0)
        comm.barrier()

    on_ranks(body)


def test_a_rank_that_only_sleeps_leaves_room():
    sent = 4 * native.JOURNAL_BYTES // 100_003

    def body(comm):
        if comm.rank == 0:
            for _ in range(sent):
                comm.journal.post(b"x" * 100_003)
            comm.journal.post(b"end", urgent=True)
        got = []
        while not got or got[-1] != (0, b"end"):
            assert comm.journal.sleep(LONG_S)
            got += comm.journal.read()
        return len(got)

    assert on_ranks(body) == [sent + 1] * 3


def test_a_rank_that_waits_in_a_collective_leaves_room():
    def body(comm):
        if comm.rank == 0:
            comm.journal.post(b"x" * (4 * native.JOURNAL_BYTES + 1))
        comm.barrier()
        return [(sender, len(message)) for sender, message in comm.journal.read()]

    assert on_ranks(body) == [[(0, 4 * native.JOURNAL_BYTES + 1)]] * 3


def test_a_rank_that_never_reads_is_named():
    def body(comm):
        if comm.rank == 1:
            return None
        with pytest.raises(CollectiveTimeoutError) as caught:
            comm.journal.post(b"x" * (2 * native.JOURNAL_BYTES))
        return caught.value.ranks, str(caught.value)

    def meeting(comm):
        result = body(comm)
        met.wait(LONG_S)  # rank 1 stays, as one that computes for long does
        return result

    met = threading.Barrier(2)
    ranks, text = on_ranks(meeting, size=2, timeout_s=0.5)[0]
    assert list(ranks) == [1]
    assert "waited 0.5 s in the journal, which is full, for rank 1" in text


def test_an_abort_ends_every_wait():
    waiting = threading.Barrier(3)

    def body(comm):
        waiting.wait(LONG_S)
        if comm.rank == 0:
            comm.executor.group.abort("that was enough")
        wait = {
            0: lambda: comm.journal.post(b"x"),
            1: lambda: comm.journal.wait(LONG_S, may_spin=False),
            2: lambda: comm.journal.sleep(LONG_S),
        }[comm.rank]
        with pytest.raises(AbortedError, match="that was enough"):
            wait()

    on_ranks(body)


def test_who_left_is_known_and_not_waited_for():
    left = threading.Barrier(2)

    def body(comm):
        journal = comm.journal
        if comm.rank == 1:
            comm.close()
            left.wait(LONG_S)
            for refused in (
                lambda: journal.post(b"x"),
                lambda: journal.wait(LONG_S, may_spin=True),
                lambda: journal.sleep(LONG_S),
            ):
                with pytest.raises(NotInitializedError):
                    refused()
            assert journal.read() == []
            return None
        left.wait(LONG_S)
        for _ in range(5):
            journal.post(b"x" * (native.JOURNAL_BYTES // 2))
        assert journal.gone() == (1,)
        with pytest.raises(PeerLeftError):
            comm.barrier()
        return len(journal.read())

    assert on_ranks(body, size=2)[0] == 5


def test_a_signal_ends_a_wait_and_harms_nothing():
    """Ctrl-C in a wait for a message: the journal is as it was."""

    class StoppedError(Exception):
        pass

    def stop(*_):
        raise StoppedError

    executor = CpuExecutor(
        LoopbackControl(), [0], star_plan(1), arena_bytes=40 << 20, timeout_s=LONG_S, cores=1
    )
    journal = NativeJournal(executor.group, LONG_S)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for wait in (lambda: journal.wait(LONG_S, may_spin=True), lambda: journal.sleep(LONG_S)):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            started = time.monotonic()
            with pytest.raises(StoppedError):
                wait()
            assert time.monotonic() - started < 0.7  # not when it would have looked anyway
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    journal.post(b"on we go")
    assert journal.wait(LONG_S, may_spin=True)
    assert journal.read() == [(0, b"on we go")]
    executor.group.leave()
