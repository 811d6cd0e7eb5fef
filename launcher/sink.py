"""Where the ranks' output goes: the terminal (or pipe), or a file per rank."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Sequence

from blinkrun.errors import UsageError
from blinkrun.launcher.agent_tools import STDERR, STDOUT
from blinkrun.launcher.output import Tail, plain, prefixed

MAX_PENDING = 1 << 20  # output that waits to be written; beyond it, the ranks have to wait
_PIPE_BYTES = 4096  # a pipe that is writable takes this much at once, so write() does not block
_FILE_BYTES = 1 << 20


class Stream:
    """One output of the launcher, written without ever waiting for its reader."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = bytearray()
        self.closed = False
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            self.closed = True
            is_file = False
        self._piece_bytes = _FILE_BYTES if is_file else _PIPE_BYTES

    def add(self, data: bytes) -> None:
        """Queue `data`; it is written by `push`."""
        if not self.closed:
            self._pending += data

    @property
    def num_pending(self) -> int:
        """Bytes that are not yet written."""
        return len(self._pending)

    def push(self, wait_s: float = 0.0) -> bool:
        """Write what the reader takes, waiting `wait_s` for it at most; whether any was written."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        start = 0
        try:
            while start < len(self._pending) and poll.poll(wait_s * 1e3):
                piece = self._pending[start : start + self._piece_bytes]
                start += os.write(self.fd, piece)
        except OSError:  # the reader is gone
            self.closed = True
            self._pending.clear()
            return False
        del self._pending[:start]
        return start > 0


class Sink:
    """Takes the output of all ranks, keeps their last lines, and writes it where it belongs."""

    def __init__(self, num_ranks: int, *, prefix: bool, output_dir: str | None) -> None:
        self.tails = [Tail() for _ in range(num_ranks)]
        self.num_chunks = 0
        self._alone = num_ranks == 1
        self._prefix = prefix
        self.streams = {STDOUT: Stream(1), STDERR: Stream(2)}
        self._files = _open_files(output_dir, num_ranks) if output_dir is not None else []

    def take(self, rank: int, kind: int, chunk: bytes) -> None:
        """Take whole lines of one rank's stdout or stderr."""
        self.num_chunks += 1
        self.tails[rank].add(chunk)
        if self._files:
            _write_all(self._files[rank], chunk)
            return
        shown = prefixed(rank, chunk) if self._prefix else plain(chunk, alone=self._alone)
        self.streams[kind].add(shown)

    @property
    def is_full(self) -> bool:
        """Whether the ranks have to wait until more has been written."""
        return any(stream.num_pending > MAX_PENDING for stream in self.streams.values())

    @property
    def is_closed(self) -> bool:
        """Whether nobody reads the ranks' stdout any more."""
        return self.streams[STDOUT].closed

    def waiting(self) -> Sequence[Stream]:
        """Return the streams that have something to write."""
        return [stream for stream in self.streams.values() if stream.num_pending]

    def close(self) -> None:
        """Close the files."""
        for fd in self._files:
            os.close(fd)
        self._files = []


def _open_files(folder: str, num_ranks: int) -> list[int]:
    """Return open files ``rank.N.log`` in `folder`, which is made if need be."""
    try:
        os.makedirs(folder, exist_ok=True)
        return [
            os.open(
                os.path.join(folder, f"rank.{rank}.log"),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o666,
            )
            for rank in range(num_ranks)
        ]
    except OSError as err:
        raise UsageError(f"--output-dir {folder}: {err.strerror} ({err.filename})") from err


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
