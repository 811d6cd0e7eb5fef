"""Connections over TCP: both ends prove who they are before either trusts the other's words."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from blinkrun.launcher import agent_remote, far
from blinkrun.launcher.agent import CONTROL, TOKEN, host_mark
from blinkrun.launcher.agent_tools import (
    EXIT,
    HELLO,
    STARTED,
    STDOUT,
    Decoder,
    encode,
)
from blinkrun.launcher.control import SPARE_LINKS, ControlServer
from blinkrun.launcher.far import FarConnection, FarSide, Spread, meeting_point
from blinkrun.launcher.hosts import Placement
from blinkrun.launcher.remote import agent_script

WAIT_S = 20.0
HELLO_FIELDS = {"rank": 1, "size": 2, "host": "h1", "pid": 7, "port": 4711}


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[ControlServer]:
    try:
        made = ControlServer(2, [request.param], 7.5)
    except OSError:
        pytest.skip(f"needs ipv6: no address {request.param} here")
    yield made
    made.close()


def accept(server: ControlServer, num_links: int = 0) -> FarConnection | None:
    """Return the next connection."""
    assert server.far is not None
    ready, _, _ = select.select(list(server.far.fds), [], [], WAIT_S)
    return server.far.accept(ready[0], num_links)


def address_and_token(server: ControlServer) -> tuple[str, str]:
    """Return what a supervisor on another host goes by."""
    environ = server.environ()
    _, mark, limit, addresses = environ[CONTROL].split("|")
    assert (mark, limit) == (host_mark(), "7.5")
    return addresses, environ[TOKEN]


def serve(link: FarConnection, until_proven: bool = True) -> list[tuple[int, bytes]] | None:
    """Let the launcher's end work until there are frames, or it gives the connection up."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        link.flush()
        select.select([link.fd], [], [], 0.01)
        frames = link.read()
        link.flush()
        if frames is None or frames or (until_proven and link.is_proven):
            return frames
    raise AssertionError("nothing comes")


def met(server: ControlServer, token: str | None = None) -> tuple[FarConnection, list[object]]:
    """Let a supervisor with `token` connect; return the launcher's end, and what it got."""
    addresses, own = address_and_token(server)
    got: list[object] = []

    def supervisor() -> None:
        try:
            got.append(agent_remote.connect(addresses, own if token is None else token))
        except OSError as err:
            got.append(str(err))

    thread = threading.Thread(target=supervisor)
    thread.start()
    link = accept(server)
    assert link is not None
    if serve(link) is None:
        link.link.close()
    thread.join(WAIT_S)
    return link, got


def test_two_who_know_the_secret_talk(server: ControlServer) -> None:
    link, (peer,) = met(server)
    assert isinstance(peer, agent_remote.socket.socket)
    sent_s = time.monotonic() - 1000  # its clock is another one
    try:
        peer.send(encode(HELLO, {**HELLO_FIELDS, "time": sent_s}))
        frames = serve(link, until_proven=False)
        assert frames is not None
        assert server.greet(link, *frames[0])
        assert (link.rank, link.size, link.host, link.port) == (1, 2, "h1", 4711)
        assert link.is_far
        assert meeting_point(link, ["10.0.0.1"])[1] == 4711
        code = {"code": 3, "time": sent_s + 5, "ordered": False}
        peer.send(encode(STARTED, {"pid": 9, "time": sent_s}) + encode(EXIT, code))
        for kind, body in serve(link, until_proven=False) or []:
            link.note(kind, body, time.monotonic())
        record = link.record(())
        assert (record.code, link.pid) == (3, 9)
        assert record.ended_s is not None
        assert 0 <= record.ended_s - (sent_s + 1005) < WAIT_S  # on the launcher's clock
    finally:
        peer.close()
        link.link.close()


def test_one_who_does_not_know_the_secret_gets_no_word_in(server: ControlServer) -> None:
    link, (said,) = met(server, "0" * 32)
    assert not link.is_proven
    assert "the connection was closed; it is not this job's launcher" in str(said)
    assert "is a firewall between? --network-interface" in str(said)


def test_what_comes_before_the_proof_is_never_read_as_frames(server: ControlServer) -> None:
    """A hello in the place of the proof, and bytes behind a claim that is too long."""
    addresses, _ = address_and_token(server)
    for words in (encode(HELLO, b"x" * 64), os.urandom(4000)):
        with socket.create_connection(agent_remote.split_address(addresses), WAIT_S) as peer:
            link = accept(server)
            assert link is not None
            peer.sendall(words)
            assert serve(link) is None
            assert link.rank == -1
            link.link.close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n" + bytes(100), agent_remote.MAGIC + bytes(96)]
)
def test_a_supervisor_trusts_nobody_else_at_the_launchers_address(answer: bytes) -> None:
    """Nor does the right greeting do, without the proof."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def serve_once() -> None:
            link, _ = other.accept()
            with link:
                link.sendall(answer)
                with contextlib.suppress(ConnectionResetError):
                    while link.recv(100):
                        pass

        thread = threading.Thread(target=serve_once)
        thread.start()
        with pytest.raises(OSError, match=r"something else|not this job's launcher") as caught:
            agent_remote.connect(f"127.0.0.1:{port}", "secret")
        thread.join(WAIT_S)
    assert "secret" not in str(caught.value)


def test_the_next_address_is_tried(server: ControlServer) -> None:
    addresses, token = address_and_token(server)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    got = []
    both = f"127.0.0.1:{port},{addresses}"
    thread = threading.Thread(target=lambda: got.append(agent_remote.connect(both, token)))
    thread.start()
    link = accept(server)
    assert link is not None
    serve(link)
    thread.join(WAIT_S)
    got[0].close()
    link.link.close()


def test_strangers_cannot_use_up_descriptors(server: ControlServer) -> None:
    addresses, _ = address_and_token(server)
    with socket.create_connection(agent_remote.split_address(addresses), WAIT_S) as peer:
        assert accept(server, num_links=2 + SPARE_LINKS) is None
        assert peer.recv(1) == b""


class Pair:
    """A supervisor that has proven itself and said hello, and the launcher's end of it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname(), WAIT_S)
            link, _ = server.accept()
        self.link = FarConnection(link, "secret")
        self.link.is_proven = True
        self.link.flush()
        self.peer.recv(1000)
        self.link.hello({**HELLO_FIELDS, "rank": 0, "time": time.monotonic()})

    def frames(self) -> list[tuple[int, bytes]]:
        """Return what the launcher has sent."""
        self.peer.setblocking(False)
        try:
            return Decoder().feed(self.peer.recv(1 << 20))
        except BlockingIOError:
            return []


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.peer.close()
    made.link.link.close()


def test_beats_go_out_and_silence_is_seen(pair: Pair) -> None:
    side = FarSide(8.0, wants_cpu=True)
    start_s = pair.link.heard_s
    assert side.tick([pair.link], start_s, reads=True) == []
    assert pair.frames() == [(agent_remote.BEAT, marshal.dumps(True))]
    assert side.tick([pair.link], start_s + 0.5, reads=True) == []
    assert pair.frames() == []
    assert side.tick([pair.link], start_s + 7.9, reads=True) == []
    assert len(pair.frames()) == 1
    assert side.tick([pair.link], start_s + 8.1, reads=True) == [pair.link]
    pair.peer.send(encode(agent_remote.BEAT, {"time": time.monotonic(), "cpu_s": 2.5}))
    for kind, body in serve(pair.link, until_proven=False) or []:
        pair.link.note(kind, body, 0.0)
    assert pair.link.cpu_s == 2.5
    assert side.tick([pair.link], pair.link.heard_s + 1, reads=True) == []


def test_who_is_not_read_is_not_silent(pair: Pair) -> None:
    """As long as nobody takes the job's output, ranks and their supervisors have to wait."""
    side = FarSide(8.0, wants_cpu=False)
    assert side.tick([pair.link], pair.link.heard_s + 100, reads=False) == []
    assert side.tick([pair.link], pair.link.heard_s + 7, reads=True) == []


def test_a_probe_names_who_does_not_answer(pair: Pair) -> None:
    side = FarSide(60.0, wants_cpu=False)
    now_s = pair.link.heard_s + 1
    side.probe([pair.link], now_s)
    assert len(pair.frames()) == 1
    assert side.unanswered([pair.link]) == [pair.link]
    pair.link.heard_s = now_s + 0.1
    assert side.unanswered([pair.link]) == []


def test_one_that_never_proves_itself_is_dropped(pair: Pair) -> None:
    pair.link.rank = -1
    side = FarSide(60.0, wants_cpu=False)
    assert side.tick([pair.link], pair.link.since_s + far.PROOF_S + 1, reads=True) == [pair.link]


def test_a_host_that_takes_nothing_does_not_hold_up_the_launcher(pair: Pair) -> None:
    started_s = time.monotonic()
    for _ in range(200):
        pair.link.send(STDOUT, bytes(1 << 16))
    assert pair.link.has_to_write
    assert time.monotonic() - started_s < WAIT_S


def test_ranks_on_a_wrong_host_are_seen_and_what_a_rank_gets_depends_on_its_place() -> None:
    with agent_script(["true"]) as script:
        places = (Placement("a", 0, 1), Placement("b", 1, 2))
        spread = Spread(places, ("10.0.0.1",), script, {"HOME": "/h", "A": "1"}, 60.0)
        assert spread.misplaced({0: "a", 1: "b.lab", 2: "b.lab"}) is None
        said = spread.misplaced({0: "a", 1: "a", 2: "b.lab"})
        assert said is not None
        assert said.startswith("mpiexec put rank 2 on host b.lab, it belongs on host b;")
        order = {"environ": {"A": "2"}, "threads": (("OMP_NUM_THREADS",), 3)}
        numbers = {"BLINKRUN_HOST_INDEX": "1", "BLINKRUN_NUM_HOSTS": "2"}
        assert spread.of_rank(2, order, is_far=True) == {
            "environ": {"HOME": "/h", "A": "2", **numbers},
            "threads": (("OMP_NUM_THREADS",), 2),
        }
        assert spread.of_rank(2, order, is_far=False)["environ"] == {"A": "2", **numbers}
        text = "noise\n[b] blinkrun: rank 1 on host b cannot reach the launcher: refused\nmore"
        assert spread.problems(text) == ["rank 1 on host b cannot reach the launcher: refused"]
        assert spread.problems(text.replace("refused\nmore", "refu")) == []


def test_where_ranks_of_torch_meet() -> None:
    assert meeting_point(None, ["fe80::1", "10.0.0.1"]) == ("10.0.0.1", None)
