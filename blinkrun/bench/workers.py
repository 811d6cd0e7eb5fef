"""Processes of a benchmark that do what its ranks cannot: another Keras, another runtime.

A rank starts a worker and asks it for one thing at a time, as a line of JSON over a pipe; between
two requests a worker sleeps. It ends when it is closed, and by itself when its rank is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from blinkrun.errors import LaunchError

START_S = 150.0
REPLY_S = 120.0
_CLOSE_S = 5.0
_CHATTER = re.compile(
    r"[IW]\d{4} |WARNING: All log messages before absl"
)  # TensorFlow's, of no use


class Worker:
    """A process that answers requests; `argv` is what this Python runs.

    Parameters
    ----------
    name : str
        What errors call it.
    argv : sequence of str
        Arguments of the interpreter, as ``-m module word``.
    environ : mapping
        Its whole environment.
    """

    def __init__(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        self._process = subprocess.Popen(
            [sys.executable, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=dict(environ),
            bufsize=0,
        )
        self._rest = b""

    def ask(self, limit_s: float = REPLY_S, **request: Any) -> dict[str, Any]:
        """Return the worker's answer to `request`.

        Raises
        ------
        LaunchError
            If the worker fails, ends, or takes longer than `limit_s` seconds; it is ended then.
        """
        self.tell(**request)
        return self.answer(limit_s)

    def tell(self, **request: Any) -> None:
        """Send `request`; the answer is to be taken before the next one."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is told by `answer`
            stdin.write(json.dumps(request).encode() + b"\n")

    def answer(self, limit_s: float = REPLY_S) -> dict[str, Any]:
        """Return the answer to what was told; raises as `ask`."""
        line = self._line(time.monotonic() + limit_s)
        if line is None:
            self._fail(f"took longer than {limit_s:.0f} s")
        if not line:
            code = self._process.wait(_CLOSE_S)
            self._fail(f"ended with exit code {code}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._fail(f"failed: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker: asked first, killed if it does not."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()
        self._said.close()

    def _line(self, deadline_s: float) -> bytes | None:
        """Return the next line, nothing at the end of the pipe, None if it is late."""
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    return None
                more = os.read(stdout.fileno(), 65536)
                if not more:
                    return b""
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _fail(self, what: str) -> NoReturn:
        self._process.kill()
        self.close()
        raise LaunchError(f"bench: {self.name} {what}")

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        words = [line.strip() for line in lines if line.strip() and not _CHATTER.match(line)]
        return words[-1] if words else "it said nothing"


def clean_environ(environ: Mapping[str, str], **changes: str) -> dict[str, str]:
    """Return `environ` without what belongs to the MPI job or points gRPC at a proxy.

    >>> clean_environ({"PATH": "/bin", "PMIX_RANK": "1", "http_proxy": "x"}, A="b")
    {'PATH': '/bin', 'A': 'b'}
    """
    ours = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "BLINKRUN_")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(ours) and not name.lower().endswith("_proxy")
    }
    return kept | changes


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
