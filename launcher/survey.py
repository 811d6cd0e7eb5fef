"""Asks all hosts at once what they are: one call of the launch agent each, with one deadline.

The agent has ssh's calling convention: ``AGENT [options] HOST "one line for a shell"``. It gets no
terminal and no input, so that nothing it starts can wait for a password. What runs on the other
side is `probe`, which is sent along.

A host answers in three steps: a word that says that its shell runs, its facts as a line of JSON
once it has tried to connect back here, and, when all that can have connected, a second line that
says which of the other hosts it reaches.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blinkrun.launcher import probe
from blinkrun.launcher.addresses import listening_addresses
from blinkrun.launcher.ending import Ending
from blinkrun.launcher.questions import Answer, Question, addresses_of

MARK = "blinkrun-probe"  # the other side's shell writes it before anything else of ours runs
MAX_KEPT = 1 << 20  # bytes of an answer; what an agent says on stderr beyond that is dropped
MAX_TRIED = 32  # hosts that each one connects to: a firewall shows with fewer
_PROMPT = re.compile(r"(password|passphrase|passcode|verification code|\(yes/no[^)]*\)).*[:?]\s*$")
_BOOT = (
    "import sys,zlib,base64;sys.version_info<(3,7) and"
    ' sys.exit("this is Python "+sys.version.split()[0]);'
    'exec(zlib.decompress(base64.b64decode("%s")))'
)


def ask_all(
    hosts: Sequence[str], *, agent: Sequence[str], question: Question, deadline_s: float
) -> list[Answer]:
    """Return what each of `hosts` answers; takes no longer than `deadline_s` and a moment.

    Parameters
    ----------
    hosts : sequence of str
        Names as the agent takes them, this host not among them.
    agent : sequence of str
        The launch agent with its options.
    question : Question
        What to ask.
    deadline_s : float
        Seconds after which a host that has not answered is given up.
    """
    survey = _Survey(hosts, agent=agent, question=question, deadline_s=deadline_s)
    with survey.ending.installed():
        try:
            survey.run()
        finally:
            survey.close()
    return [call.answer for call in survey.calls]


@dataclass(slots=True)
class _Call:
    """One agent's process and what has come from it."""

    answer: Answer
    process: subprocess.Popen[bytes] | None = None
    out: bytes = b""
    err: bytes = b""
    link: socket.socket | None = None
    port: int = 0
    open_streams: int = 0
    has_peers: bool = False
    targets: list[_Call] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.open_streams == 0

    @property
    def is_settled(self) -> bool:
        """Whether it is known if this host takes part in the second step."""
        facts = self.answer.facts
        return self.is_over or (
            facts is not None and (self.link is not None or not facts["reached"])
        )


class _Survey:
    """The loop over all calls; `run` once, then `close`."""

    def __init__(
        self, hosts: Sequence[str], *, agent: Sequence[str], question: Question, deadline_s: float
    ) -> None:
        self.calls = [_Call(Answer(host)) for host in hosts]
        self._agent = list(agent)
        self._question = question
        self._word = secrets.token_hex(8)  # no secret: tells our own hosts from a stray caller
        self._end_s = time.monotonic() + deadline_s
        self._deadline_s = deadline_s
        self._selector = selectors.DefaultSelector()
        self._listener = probe.listen()
        self._guests: dict[socket.socket, bytes] = {}
        self._is_second_step = False
        self.ending = Ending()

    def run(self) -> None:
        """Start all agents and take their answers until all have ended or it is too late."""
        hosts = [call.answer.host for call in self.calls]
        addresses = list(listening_addresses(hosts, self._question.interfaces))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for index, call in enumerate(self.calls):
            with self.ending.held():  # a process that is just being made would be lost
                self._start(call, self._command(index, addresses))
        while not all(call.is_over for call in self.calls):
            left_s = self._end_s - time.monotonic()
            if left_s <= 0:
                break
            for key, _ in self._selector.select(left_s):
                action: Callable[[], None] = key.data
                action()
            if not self._is_second_step and all(call.is_settled for call in self.calls):
                self._begin_second_step()
            self._hang_up_when_done()
        for call in self.calls:
            if not call.is_over and not call.answer.problem:
                call.answer.problem = "late"

    def close(self) -> None:
        """End all agents and leave nothing open."""
        for call in self.calls:
            self._end(call)
        for link in [*self._guests, *(call.link for call in self.calls)]:
            if link is not None:
                link.close()
        self._listener.close()
        self._selector.close()

    def _command(self, index: int, addresses: list[str]) -> str:
        """Return the line for the other side's shell."""
        back = {
            "addresses": addresses,
            "port": self._listener.getsockname()[1],
            "word": self._word,
            "index": index,
        }
        request = self._question.request() | {"back": back, "deadline_s": self._deadline_s}
        code = f"{Path(probe.__file__).read_text(encoding='utf-8')}\nmain({request!r})\n"
        blob = base64.b64encode(zlib.compress(code.encode())).decode()
        program = [self._question.python, "-c", _BOOT % blob]
        # the first echo ends a line that the shell's start may have left open
        return f"echo && echo {MARK} && exec {shlex.join(program)}"

    def _start(self, call: _Call, command: str) -> None:
        try:
            call.process = subprocess.Popen(
                [*self._agent, call.answer.host, command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # no terminal: it cannot ask for a password
            )
        except OSError as err:
            call.answer.problem = f"agent: {err.strerror}"
            return
        for stream, take in ((call.process.stdout, self._out), (call.process.stderr, self._err)):
            assert stream is not None  # both are pipes
            os.set_blocking(stream.fileno(), False)
            call.open_streams += 1
            self._selector.register(stream, selectors.EVENT_READ, self._reader(call, stream, take))

    def _reader(
        self, call: _Call, stream: Any, take: Callable[[_Call, bytes], None]
    ) -> Callable[[], None]:
        def read() -> None:
            try:
                data = os.read(stream.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if data:
                take(call, data)
                return
            self._selector.unregister(stream)
            stream.close()
            call.open_streams -= 1

        return read

    def _out(self, call: _Call, data: bytes) -> None:
        call.out = (call.out + data)[-MAX_KEPT:]
        self._watch_for_prompt(call, call.out)
        *lines, call.out = call.out.split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            if text == MARK:
                call.answer.shell = True
            elif call.answer.shell and text.startswith("{"):
                self._take(call, text)

    def _take(self, call: _Call, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            return
        if call.answer.facts is None:
            call.answer.facts = found
        elif "reached_peers" in found:
            pairs = zip(call.targets, found["reached_peers"], strict=False)
            call.answer.unreached = tuple(peer.answer.host for peer, is_ok in pairs if not is_ok)
            call.has_peers = True

    def _err(self, call: _Call, data: bytes) -> None:
        call.err = (call.err + data)[-MAX_KEPT:]
        call.answer.said = call.err.decode(errors="replace")
        self._watch_for_prompt(call, call.err)

    def _watch_for_prompt(self, call: _Call, said: bytes) -> None:
        """End a call whose agent asks for something: nobody will answer."""
        last = said[said.rfind(b"\n") + 1 :].decode(errors="replace").lower()
        if not call.answer.shell and _PROMPT.search(last):
            call.answer.problem = "prompt"
            self._end(call)

    def _accept(self) -> None:
        with suppress(OSError):
            guest, _ = self._listener.accept()
            guest.setblocking(False)
            self._guests[guest] = b""
            self._selector.register(guest, selectors.EVENT_READ, lambda: self._greet(guest))

    def _greet(self, guest: socket.socket) -> None:
        """Take a hello; whoever says something else is sent away."""
        try:
            data = guest.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._guests[guest] += data
        if data and not self._guests[guest].endswith(b"\n") and len(self._guests[guest]) < 4096:
            return
        self._selector.unregister(guest)
        hello = _hello(self._guests.pop(guest))
        if hello.get("word") != self._word or not 0 <= hello.get("index", -1) < len(self.calls):
            guest.close()
            return
        call = self.calls[hello["index"]]
        call.link, call.port = guest, hello["port"]
        call.answer.address = guest.getpeername()[0].removeprefix("::ffff:")
        call.answer.clock_s = hello["time"] - time.time()

    def _begin_second_step(self) -> None:
        """Let every host that has connected try the others, and try them from here."""
        self._is_second_step = True
        able = [call for call in self.calls if call.link is not None and not call.is_over]
        for call in able:
            call.targets = _others(call, able)
            order = {"targets": [self._target(each) for each in call.targets]}
            line = json.dumps({**order, "limit_s": probe.REACH_S}) + "\n"
            assert call.link is not None
            call.link.setblocking(True)
            call.link.settimeout(1.0)
            with suppress(OSError):
                call.link.sendall(line.encode())
        reached = probe.reach([self._target(call) for call in able], probe.REACH_S)
        for call, link in zip(able, reached, strict=True):
            call.answer.is_reached = link is not None

    def _target(self, call: _Call) -> tuple[list[str], int]:
        assert call.answer.facts is not None
        wanted = self._question.interfaces
        on_them = addresses_of(call.answer.facts["interfaces"], wanted) if wanted else []
        return on_them or [call.answer.address], call.port

    def _hang_up_when_done(self) -> None:
        able = [call for call in self.calls if call.link is not None and not call.is_over]
        if self._is_second_step and all(call.has_peers for call in able):
            for call in able:
                assert call.link is not None
                with suppress(OSError):
                    call.link.shutdown(socket.SHUT_RDWR)

    def _end(self, call: _Call) -> None:
        """End an agent with all that it has started; take its exit code."""
        if call.process is None:
            return
        if call.process.poll() is None and not call.is_over:
            with suppress(OSError):
                os.killpg(call.process.pid, signal.SIGKILL)
        try:
            call.answer.code = call.process.wait(1.0)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(call.process.pid, signal.SIGKILL)
        for stream in (call.process.stdout, call.process.stderr):
            if stream is not None and not stream.closed:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(stream)
                stream.close()
                call.open_streams -= 1


def _others(call: _Call, able: list[_Call]) -> list[_Call]:
    """Return the hosts that one tries: all others, of very many those behind it in a ring."""
    at = able.index(call)
    return [*able[at + 1 :], *able[:at]][:MAX_TRIED]


def _hello(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
