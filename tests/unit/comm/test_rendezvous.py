"""How ranks come to share memory, and what they hear when they cannot."""

import mmap
import os
import socket
import threading

import pytest

from blinkrun.comm.loopback import LoopbackControl
from blinkrun.comm.threads import thread_controls
from blinkrun.errors import LaunchError
from blinkrun.executors import rendezvous
from blinkrun.executors.rendezvous import SharedFiles, exchange, make_memory


def control_file():
    return make_memory("control", 4096)


def meet(size, timeout_s=10.0, absent=()):
    """Let `size` threads exchange; returns each one's files or error."""
    controls = thread_controls(size)
    results = [None] * size

    def rank(number):
        if number in absent:  # takes part in the control plane, then stays away
            controls[number].allgather((b"", b""))
            return
        try:
            results[number] = exchange(
                controls[number],
                range(size),
                make_control=control_file,
                arena_bytes=8192,
                timeout_s=timeout_s,
            )
        except LaunchError as err:
            results[number] = err

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everyone_gets_everyones_memory(size):
    files = meet(size)
    for rank, mine in enumerate(files):
        with mmap.mmap(mine.arenas[rank], 8192) as memory:
            memory[0] = 100 + rank
    for mine in files:
        for rank, arena in enumerate(mine.arenas):
            with mmap.mmap(arena, 8192) as memory:
                assert memory[0] == 100 + rank
    with mmap.mmap(files[0].control, 4096) as memory:
        memory[7] = 77
    with mmap.mmap(files[-1].control, 4096) as memory:
        assert memory[7] == 77
    for mine in files:
        mine.close()


def test_a_rank_that_does_not_come_is_named():
    first, second, third = meet(3, timeout_s=0.3, absent=(2,))
    assert "rank 0" in str(first)
    assert "ranks [2] did not come within 0.3 s" in str(first)
    assert isinstance(second, LaunchError)
    assert third is None


def test_strangers_are_not_answered(monkeypatch):
    """A process that guesses the name but not the secret, or sends rubbish, gets nothing."""
    asked = []

    def listen(backlog):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("\0blinkrun-test-" + os.urandom(6).hex())
        listener.listen(backlog + 5)
        for message in (b"x", rendezvous._HELLO.pack(b"0" * 16, 1)):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stranger.connect(listener.getsockname())
            fd = make_memory("stranger", 4096)
            socket.send_fds(stranger, [message], [fd])
            os.close(fd)
            asked.append(stranger)
        return listener

    monkeypatch.setattr(rendezvous, "_listen", listen)
    files = meet(2)
    assert all(isinstance(each, SharedFiles) for each in files)
    for each in files:
        each.close()
    for stranger in asked:
        stranger.settimeout(5)
        assert stranger.recv(100) == b""
        stranger.close()


def test_unreachable_ranks_are_told_why(monkeypatch):
    """As in two network namespaces: the name is known, nobody listens there."""
    monkeypatch.setattr(
        rendezvous.socket.socket, "getsockname", lambda _: b"\0blinkrun-nobody-listens-here"
    )
    first, second = meet(2, timeout_s=0.3)
    assert "ranks [1] did not come" in str(first)
    assert "different containers or network namespaces" in str(second)


def test_one_rank_needs_nobody():
    files = exchange(
        LoopbackControl(), [0], make_control=control_file, arena_bytes=4096, timeout_s=1
    )
    assert len(files.arenas) == 1
    files.close()
