"""The control plane of processes that share a secret."""

import os
import secrets
import socket
import threading
import time

import pytest

from blinkrun.comm.sockets import SocketControl
from blinkrun.errors import CollectiveTimeoutError, LaunchError, PeerLeftError, UsageError


def on_threads(bodies):
    """What each of the callables returned, or the exception that it raised."""
    results = [None] * len(bodies)

    def run(index):
        try:
            results[index] = bodies[index]()
        except Exception as err:
            results[index] = err

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def meet(size, body, timeout_s=10.0):
    secret = secrets.token_bytes(128)

    def rank(number):
        control = SocketControl(secret, rank=number, size=size, timeout_s=timeout_s)
        try:
            return body(control)
        finally:
            control.finalize()

    return on_threads([lambda number=number: rank(number) for number in range(size)])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_everyone_hears_everyone(size):
    def body(control):
        large = b"x" * (control.rank * 300_000)
        return (
            control.allgather((control.rank, large)),
            control.broadcast(control.rank, root=size - 1),
        )

    everything = [(rank, b"x" * (rank * 300_000)) for rank in range(size)]
    assert meet(size, body) == [(everything, size - 1)] * size


def test_subsets_meet_without_the_first_rank():
    def body(control):
        if control.rank == 0:
            return control.sub([0], timeout_s=5).allgather("alone")
        both = [control.sub([2, 1], timeout_s=5) for _ in range(2)]
        said = [each.allgather(control.rank) for each in both]
        for each in both:
            each.finalize()
        return both[0].rank, said

    assert meet(3, body) == [["alone"], (1, [[2, 1]] * 2), (0, [[2, 1]] * 2)]


def test_ranks_that_do_not_come_are_named():
    secret = secrets.token_bytes(16)
    first, last = on_threads(
        [
            lambda: SocketControl(secret, rank=0, size=4, timeout_s=0.3),
            lambda: SocketControl(secret, rank=2, size=4, timeout_s=0.3),
        ]
    )
    assert isinstance(first, CollectiveTimeoutError)
    assert first.ranks == (1, 3)
    assert "rank 0 waited 0.3 s for ranks 1, 3 to come; all 4 ranks must be there" in str(first)
    assert isinstance(last, (CollectiveTimeoutError, PeerLeftError))


def test_a_first_rank_that_does_not_come():
    with pytest.raises(CollectiveTimeoutError) as caught:
        SocketControl(secrets.token_bytes(16), rank=1, size=2, timeout_s=0.1)
    assert caught.value.ranks == (0,)


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([(0, 3), (1, 2), (2, 3)], "rank 1 says that there are 2 ranks, rank 0 says 3"),
        ([(0, 3), (1, 3), (1, 3)], "two processes say that they are rank 1"),
        ([(0, 3), (1, 3), (3, 4)], "rank 3 says that there are 4 ranks, rank 0 says 3"),
    ],
)
def test_ranks_that_disagree_all_hear_why(ranks, problem):
    secret = secrets.token_bytes(16)
    errors = on_threads(
        [
            lambda rank=rank, size=size: SocketControl(secret, rank=rank, size=size, timeout_s=2)
            for rank, size in ranks
        ]
    )
    told = [each for each in errors if isinstance(each, LaunchError)]
    assert len(told) >= 2  # a rank that comes too late finds nobody
    assert all(problem in str(each) for each in told)


def test_two_first_ranks():
    secret = secrets.token_bytes(16)
    errors = on_threads([lambda: SocketControl(secret, rank=0, size=2, timeout_s=0.5)] * 2)
    kinds = sorted(type(each).__name__ for each in errors)
    assert kinds == ["CollectiveTimeoutError", "LaunchError"]


def test_strangers_are_sent_away():
    """Who does not know the secret but finds the socket gets nothing, and disturbs nobody."""
    secret = secrets.token_bytes(16)
    stop = threading.Event()

    def stranger():
        address = SocketControl._address(type("Named", (), {"_secret": secret})())
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as knock:
                try:
                    knock.connect(address)
                    knock.sendall(b"\0" * 48)
                except OSError:
                    continue
                return knock.recv(1)
        return b"never"

    def rank(number):
        if number == 1:
            thread.join(10)
        control = SocketControl(secret, rank=number, size=2, timeout_s=5)
        try:
            return control.allgather(number)
        finally:
            stop.set()
            control.finalize()

    heard = []
    thread = threading.Thread(target=lambda: heard.append(stranger()))
    thread.start()
    assert on_threads([lambda: rank(0), lambda: rank(1)]) == [[0, 1], [0, 1]]
    thread.join(10)
    assert heard == [b""]


def test_a_rank_that_is_gone_is_named():
    def body(control):
        if control.rank == 1:
            control.abort(1)
            return None
        return control.allgather(0)

    for error in meet(3, body)[::2]:
        assert isinstance(error, PeerLeftError)


def test_what_is_no_rank():
    with pytest.raises(UsageError, match="rank 2 is none of the ranks 0 to 1"):
        SocketControl(b"x" * 16, rank=2, size=2, timeout_s=1)
    with pytest.raises(UsageError, match="need at least 16"):
        SocketControl(b"short", rank=0, size=1, timeout_s=1)


def test_nothing_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    started = time.monotonic()
    for _ in range(5):
        meet(3, lambda control: control.allgather(1))
    assert len(os.listdir("/proc/self/fd")) == before
    assert time.monotonic() - started < 5
