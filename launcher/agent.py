"""The supervisor of one rank: starts the rank's program, forwards its output, sees that it ends.

`mpiexec` starts this file once per rank, as ``python -S -E agent.py 'program args'``. It is one
file on the fewest possible built-in modules because its start is paid N times per job (site,
socket and json alone would triple it); it also defines the frames that it exchanges with the
launcher.

What it runs comes from the launcher over a socket, as the list of arguments that it is; the word
on the command line is for people (and for running the command of ``--dry-run`` by hand). An MPI
gives meanings of its own to words such as ``:``.

The process forks at once. The parent, the *stub*, is what the MPI knows as the rank: it waits for
the rank's exit code and ends with it. The child, the *supervisor*, is in a process group of its
own, so that an MPI that kills its ranks (MPICH does so with SIGKILL) kills the stub only and the
supervisor can still end the program in order and report. The program runs in a third process
group; it inherits every file descriptor (``PMI_FD``) and variable of the MPI.
"""

from __future__ import annotations

import _socket as socket
import marshal
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL = "BLINKRUN_CONTROL"  # abstract unix socket of the launcher
TOKEN = "BLINKRUN_TOKEN"  # secret that the launcher gave to this job
JOB = "BLINKRUN_LAUNCHED"  # set in every process of a rank; the job's name
RANK = "BLINKRUN_RANK"
SIZE = "BLINKRUN_SIZE"
REPORT_FD = "BLINKRUN_REPORT_FD"  # where the runner of Python programs says how they ended

HELLO, STARTED, STDOUT, STDERR, REPORT, EXIT, TOLD, DONE = b"HSoeRXTD"
GO, KILL = b"GK"

HEADER = struct.Struct("<BI")
MAX_FRAME = 1 << 24
READ_BYTES = 1 << 16
MAX_LINE = 1 << 16  # a longer line is forwarded in pieces: memory stays bounded
MAX_PENDING = 1 << 18  # output that waits for the launcher; then the program has to wait
MPI_GRACE_S = 0.05  # how long a program may take to end by itself once the MPI ends the job
LEAVE_S = 1.0  # the same for one that has said that it ends: it may be printing a traceback
CONNECT_S = 10.0
SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25  # as signal has them, which takes long to import
SHARED_MEMORY = "/dev/shm"
SEGMENTS = ("sm_segment.", "vader_segment.", "mpich_shm_", "Intel_MPI_")

RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", SIZE),
)


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


def rank_and_size(environ: dict[str, str]) -> tuple[int, int]:
    """Return what the MPI says about this process, or (-1, -1) if it says nothing."""
    for rank, size in RANK_VARIABLES:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return int(environ[rank]), int(environ[size])
    return -1, -1


def job_processes(job: str) -> list[int]:
    """Return the processes that carry this job's name in their environment, except this one."""
    mark = f"{JOB}={job}".encode()
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


def close_process_manager() -> None:
    """Close this process's copy of the program's line to MPICH's or Intel's process manager.

    When the program ends, the manager must see the line close: before it sees the stub end, or it
    does not tell a rank that left without MPI_Finalize from one that ended well.
    """
    text = os.environ.get("PMI_FD", "")
    if text.isdigit():
        with Quietly():
            os.close(int(text))


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


class Supervisor:
    """Event loop of one rank: launcher's orders in; the program's output and end out."""

    def __init__(self, control: socket.socket, stub: int, code: int) -> None:
        self.control = control
        self.stub = stub  # readable once the stub is gone
        self.code_fd = code  # the exit code for the stub goes here
        self.decoder = Decoder()
        self.outbox = bytearray()
        self.streams: dict[int, tuple[int, Lines]] = {}
        self.job = ""
        self.child = 0
        self.child_fd = -1
        self.stdin = -1  # the launcher's, where this rank gets it
        self.code: int | None = None
        self.ordered = False
        self.is_leaving = False
        self.deadline: float | None = None  # when the MPI's grace is over
        self.rank = -1
        self.since_s = time.time()

    def run(self, token: str, hello: dict[str, Any]) -> int:
        """Serve until the program has ended and all is sent; return the exit code."""
        self.rank = hello["rank"]
        self.outbox += encode(HELLO, token.encode() + marshal.dumps(hello))
        while self.code is None or self.streams or self.outbox:
            self.step()
        return self.code if self.code >= 0 else 128 - self.code

    def send(self, kind: int, payload: object) -> None:
        """Queue a frame for the launcher."""
        self.outbox += encode(kind, payload)

    def step(self) -> None:
        """Wait for one round of events and serve them."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN | (select.POLLOUT if self.outbox else 0))
        if self.stub >= 0:
            poll.register(self.stub, select.POLLIN)
        if self.child_fd >= 0:
            poll.register(self.child_fd, select.POLLIN)
        if len(self.outbox) < MAX_PENDING:
            for fd in self.streams:
                poll.register(fd, select.POLLIN)
        wait_ms = None
        if self.deadline is not None:
            wait_ms = max(0.0, self.deadline - time.monotonic()) * 1e3
        ready = dict(poll.poll(wait_ms))
        self.serve(ready)

    def serve(self, ready: dict[int, int]) -> None:
        """Handle what has happened; the launcher's orders come first."""
        control = ready.pop(self.control.fileno(), 0)
        if control & ~select.POLLOUT:
            self.receive()
        if control & select.POLLOUT:
            self.flush()
        if ready.pop(self.stub, 0):
            self.told_to_end()
        child_ended = ready.pop(self.child_fd, 0)
        for fd in ready:
            self.forward(fd)
        if child_ended:
            self.reap()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            self.kill(SIGKILL)

    def flush(self) -> None:
        """Send what the launcher takes now."""
        try:
            sent = self.control.send(self.outbox[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self.orphaned()
        del self.outbox[:sent]

    def receive(self) -> None:
        """Read and carry out the launcher's orders; its end is ours."""
        try:
            data, ancillary, _, _ = self.control.recvmsg(READ_BYTES, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.orphaned()
        for _, _, body in ancillary:
            self.stdin = struct.unpack("i", body[:4])[0]
        for kind, body in self.decoder.feed(data):
            if kind == GO and not self.child and self.code is None:
                self.start(marshal.loads(body))
            elif kind == KILL:
                self.kill(marshal.loads(body))

    def start(self, order: dict[str, Any]) -> None:
        """Start `order`'s program in its environment."""
        self.job = order["job"]
        argv = order["argv"]
        environ = {**os.environ, **order["environ"]}
        pipes = {kind: os.pipe() for kind in (STDOUT, STDERR, REPORT)}
        environ[JOB] = self.job
        environ[RANK] = str(self.rank)
        environ[REPORT_FD] = str(pipes[REPORT][1])
        if self.rank > 0:  # TensorFlow's hints when it starts: rank 0 passes them on
            environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        os.set_inheritable(pipes[REPORT][1], True)
        stdin = os.open(os.devnull, os.O_RDONLY) if self.stdin < 0 else self.stdin
        targets = ((stdin, 0), (pipes[STDOUT][1], 1), (pipes[STDERR][1], 2))
        try:
            self.child = os.posix_spawnp(
                argv[0],
                argv,
                environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in targets],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(SIGPIPE, SIGXFSZ),
            )
        except OSError as err:
            self.code = 127 if err.errno == 2 else 126
            self.send(REPORT, {"kind": "spawn", "message": f"{argv[0]}: {err.strerror}"})
            self.send(EXIT, {"code": self.code, "time": time.monotonic(), "ordered": False})
            self.send(DONE, None)
            return
        os.close(stdin)
        for kind, (read_end, write_end) in pipes.items():
            os.close(write_end)
            os.set_blocking(read_end, False)
            self.streams[read_end] = (kind, Lines())
        self.child_fd = os.pidfd_open(self.child)
        close_process_manager()
        self.send(STARTED, {"pid": self.child, "time": time.monotonic()})

    def forward(self, fd: int) -> bool:
        """Forward what can be read from `fd` now; whether there may be more."""
        kind, lines = self.streams[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        whole = lines.feed(data) if data else lines.finish()
        if whole and kind == REPORT:
            self.is_leaving = True
            self.send(REPORT, {"json": whole, "time": time.monotonic()})
        elif whole:
            self.send(kind, whole)
        if not data:
            os.close(fd)
            del self.streams[fd]
        return bool(data)

    def reap(self) -> None:
        """The program has ended: report it, end its group, forward what it had written."""
        if self.code is None:
            _, status = os.waitpid(self.child, 0)
            self.code = os.waitstatus_to_exitcode(status)
            kill_group(self.child, SIGKILL)
            for fd, (kind, _) in list(self.streams.items()):
                while kind == REPORT and self.forward(fd):
                    pass
            ended = {"code": self.code, "time": time.monotonic(), "ordered": self.ordered}
            self.send(EXIT, ended)
        # Children that left the group may hold the pipes open: what is there now is all we take.
        for fd in list(self.streams):
            while len(self.outbox) < MAX_PENDING and self.forward(fd):
                pass
        if len(self.outbox) < MAX_PENDING:
            for fd, (kind, lines) in self.streams.items():
                rest = lines.finish()
                if rest and kind != REPORT:
                    self.send(kind, rest)
                os.close(fd)
            self.streams.clear()
            os.close(self.child_fd)
            self.child_fd = -1
            self.deadline = None
            self.send(DONE, None)

    def told_to_end(self) -> None:
        """The MPI has ended this rank: let the program end by itself for a moment, then kill."""
        self.stub = -1
        self.send(TOLD, {"time": time.monotonic()})
        if self.code is None:
            self.deadline = time.monotonic() + (LEAVE_S if self.is_leaving else MPI_GRACE_S)
            if not self.child:
                self.code = 1
                self.send(DONE, None)

    def kill(self, number: int) -> None:
        """End the program by a signal to its group; SIGKILL reaches all that it has started."""
        if self.code is not None:
            return
        self.ordered = True
        if not self.child:
            self.code = 128 + number
            self.send(EXIT, {"code": self.code, "time": time.monotonic(), "ordered": True})
            self.send(DONE, None)
            return
        kill_group(self.child, number)

    def orphaned(self) -> None:
        """The launcher is gone: nothing of this job may stay."""
        if self.child and self.code is None:
            kill_group(self.child, SIGKILL)
        if self.job:
            for pid in job_processes(self.job):
                kill_quietly(pid, SIGKILL)
        remove_segments(self.since_s)
        os._exit(1)


def connect(name: str) -> socket.socket:
    """Return the connection to the launcher, which must run as the same user."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(CONNECT_S)
    control.connect("\0" + name)
    peer = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", peer)[1] != os.getuid():
        raise OSError("the launcher's socket belongs to another user")
    control.setblocking(False)
    return control


def main(argv: list[str]) -> int:
    """Run as the stub and the supervisor of one rank; return the rank's exit code."""
    name = os.environ.pop(CONTROL, "")
    token = os.environ.pop(TOKEN, "")
    if not name:  # the command of --dry-run, started by hand: the MPI alone looks after it
        os.execv("/bin/sh", ["sh", "-c", f"exec {argv[0]}"])
    code_read, code_write = os.pipe()
    stub_read, stub_write = os.pipe()
    if os.fork():
        close_process_manager()
        os.close(code_write)
        os.close(stub_read)
        code = os.read(code_read, 1)
        return code[0] if code else 1
    os.setpgid(0, 0)
    os.close(code_read)
    os.close(stub_write)
    rank, size = rank_and_size(dict(os.environ))
    hello = {
        "rank": rank,
        "size": size,
        "host": os.uname().nodename,
        "pid": os.getpid(),
    }
    try:
        control = connect(name)
    except OSError as err:
        sys.stderr.write(f"blinkrun: rank {rank} cannot reach the launcher: {err}\n")
        return 1
    exit_code = Supervisor(control, stub_read, code_write).run(token, hello)
    with Quietly():  # the MPI may have ended the stub already
        os.write(code_write, bytes([exit_code & 255]))
    return exit_code


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(exit_status)  # nothing of the interpreter needs tearing down
