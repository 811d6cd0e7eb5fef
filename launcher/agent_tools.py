"""What the supervisors and the launcher share: their frames, lines of output, and tidying up.

On the fewest possible built-in modules, as `agent` is.
"""

from __future__ import annotations

import marshal
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JOB = "BLINKRUN_LAUNCHED"  # set in every process of a rank; the job's name
HELLO, STARTED, STDOUT, STDERR, REPORT, EXIT, TOLD, DONE = b"HSoeRXTD"
GO, KILL = b"GK"

HEADER = struct.Struct("<BI")
MAX_FRAME = 1 << 24
MAX_LINE = 1 << 16  # a longer line is forwarded in pieces: memory stays bounded
SIGKILL = 9
SHARED_MEMORY = "/dev/shm"
SEGMENTS = ("sm_segment.", "vader_segment.", "mpich_shm_", "Intel_MPI_")


def encode(kind: int, payload: Any) -> bytes:
    """Return a frame: output as it is, everything else marshalled (both ends run one Python)."""
    body = payload if isinstance(payload, bytes) else marshal.dumps(payload)
    return HEADER.pack(kind, len(body)) + body


class Quietly:
    """Lets errors of the system pass, as contextlib.suppress(OSError), which takes an import."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, OSError)


class Decoder:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that `data` completes, as (kind, body)."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise OSError(f"frame of {length} bytes")
            stop = start + HEADER.size + length
            if len(self._buffer) < stop:
                break
            frames.append((kind, bytes(self._buffer[start + HEADER.size : stop])))
            start = stop
        del self._buffer[:start]
        return frames


class Lines:
    """Holds back the unfinished line of one stream.

    A carriage return ends a line too (progress bars); one at the very end of the data is held
    back, because a newline may follow it.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the whole lines of what has come so far, or a piece of a line that is too long."""
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1
        if len(data) - end > MAX_LINE:
            end = len(data)
        self._rest = data[end:]
        return data[:end]

    def finish(self) -> bytes:
        """Return the last line, which has no end."""
        rest, self._rest = self._rest, b""
        return rest


def job_processes(job: str, variable: str = JOB) -> list[int]:
    """Return the processes that carry this job's name in their environment, except this one."""
    mark = f"{variable}={job}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue  # gone meanwhile, or another user's
        if mark in environ.split(b"\0"):
            found.append(int(name))
    return found


def kill_job(job: str, variable: str = JOB) -> None:
    """Kill every process of a job, wherever it has moved: they carry it in their environment.

    Repeats until none is found, because one that is being killed may just have forked.
    """
    for _ in range(50):
        found = job_processes(job, variable)
        if not found:
            return
        for pid in found:
            kill_quietly(pid, SIGKILL)


def kill_quietly(pid: int, number: int) -> None:
    """Send a signal; a process that is gone already is fine."""
    with Quietly():
        os.kill(pid, number)


def kill_group(group: int, number: int) -> None:
    """Send a signal to a process group; one that is gone already is fine."""
    with Quietly():
        os.killpg(group, number)


def remove_segments(since_s: float) -> None:
    """Remove shared memory that killed ranks have left in /dev/shm.

    What goes: files that an MPI names so, of this user, made after `since_s` (as `time.time`), and
    mapped by no process.
    """
    found = set()
    for name in os.listdir(SHARED_MEMORY) if os.path.isdir(SHARED_MEMORY) else ():
        path = f"{SHARED_MEMORY}/{name}"
        try:
            status = os.lstat(path)
        except OSError:
            continue
        is_ours = name.startswith(SEGMENTS) and status.st_uid == os.getuid()
        if is_ours and status.st_ctime >= since_s - 1:
            found.add(path)
    for pid in os.listdir("/proc") if found else ():
        try:
            with open(f"/proc/{pid}/maps") as file:
                text = file.read()
        except OSError:
            continue  # not a process, gone, or another user's
        found = {path for path in found if path not in text}
    for path in found:
        with Quietly():  # another supervisor may be faster
            os.unlink(path)
