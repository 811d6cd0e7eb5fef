"""The supervisor of one rank: starts the rank's program, forwards its output, sees that it ends.

`mpiexec` starts this file once per rank, as ``python -S -E agent.py 'program args'``. It stands
on the fewest possible built-in modules because its start is paid N times per job (site, socket and
json alone would triple it), and on `agent_tools` beside it. Where the launcher is on another host,
`agent_remote` is loaded as well.

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

if TYPE_CHECKING or __name__ != "__main__":
    from blinkrun.launcher import agent_tools as tools
else:  # run by its path: the folder of this file comes first where modules are looked for
    tools = __import__("agent_tools")

CONTROL = "BLINKRUN_CONTROL"  # where the launcher is: see `ControlServer.environ`
TOKEN = "BLINKRUN_TOKEN"  # secret that the launcher gave to this job
RANK = "BLINKRUN_RANK"
SIZE = "BLINKRUN_SIZE"
REPORT_FD = "BLINKRUN_REPORT_FD"  # where the runner of Python programs says how they ended

READ_BYTES = 1 << 16
MAX_PENDING = 1 << 18  # output that waits for the launcher; then the program has to wait
MPI_GRACE_S = 0.05  # how long a program may take to end by itself once the MPI ends the job
LEAVE_S = 1.0  # the same for one that has said that it ends: it may be printing a traceback
CONNECT_S = 10.0
SIGPIPE, SIGXFSZ = 13, 25  # as signal has them, which takes long to import

RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", SIZE),
)


def rank_and_size(environ: dict[str, str]) -> tuple[int, int]:
    """Return what the MPI says about this process, or (-1, -1) if it says nothing."""
    for rank, size in RANK_VARIABLES:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return int(environ[rank]), int(environ[size])
    return -1, -1


def close_process_manager() -> None:
    """Close this process's copy of the program's line to MPICH's or Intel's process manager.

    When the program ends, the manager must see the line close: before it sees the stub end, or it
    does not tell a rank that left without MPI_Finalize from one that ended well.
    """
    text = os.environ.get("PMI_FD", "")
    if text.isdigit():
        with tools.Quietly():
            os.close(int(text))


class Supervisor:
    """Event loop of one rank: launcher's orders in; the program's output and end out."""

    def __init__(
        self, control: socket.socket, stub: int, code: int, remote: Any | None = None
    ) -> None:
        self.control = control
        self.remote = remote  # an `agent_remote.Remote` where the launcher is on another host
        self.stub = stub  # readable once the stub is gone
        self.code_fd = code  # the exit code for the stub goes here
        self.decoder = tools.Decoder()
        self.outbox = bytearray()
        self.streams: dict[int, tuple[int, tools.Lines]] = {}
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
        self.outbox += tools.encode(tools.HELLO, token.encode() + marshal.dumps(hello))
        while self.code is None or self.streams or self.outbox:
            self.step()
        if self.remote:
            self.remote.linger(self)
            while True:  # until the launcher says that the job is over, or is gone
                self.step()
        return self.exit_code()

    def exit_code(self) -> int:
        """Return the rank's exit code, as a shell has it."""
        code = 1 if self.code is None else self.code
        return code if code >= 0 else 128 - code

    def send(self, kind: int, payload: object) -> None:
        """Queue a frame for the launcher."""
        self.outbox += tools.encode(kind, payload)

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
        if self.remote:
            wait_ms = self.remote.wait_ms(wait_ms)
            self.remote.register(poll)
        ready = dict(poll.poll(wait_ms))
        self.serve(ready)
        if self.remote:
            self.remote.tick(self)

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
            if fd in self.streams:
                self.forward(fd)
        if child_ended:
            self.reap()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            self.kill(tools.SIGKILL)

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
            ancillary: list[tuple[int, int, bytes]] = []
            if self.remote:
                data = self.control.recv(READ_BYTES)
                self.remote.heard_s = time.monotonic()
            else:
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
            if kind == tools.GO and not self.child and self.code is None:
                self.start(marshal.loads(body))
            elif kind == tools.KILL:
                self.kill(marshal.loads(body))
            elif self.remote:
                self.remote.take(self, kind, body)

    def start(self, order: dict[str, Any]) -> None:
        """Start `order`'s program in its environment."""
        self.job = order["job"]
        argv = order["argv"]
        environ = {**os.environ, **order["environ"]}
        names, local_ranks = order["threads"]
        share = max(1, len(os.sched_getaffinity(0)) // local_ranks)
        environ.update(dict.fromkeys(names, str(share)))
        if self.remote and order["stdin"]:
            self.stdin = self.remote.open_stdin()
        pipes = {kind: os.pipe() for kind in (tools.STDOUT, tools.STDERR, tools.REPORT)}
        environ[tools.JOB] = self.job
        environ[RANK] = str(self.rank)
        environ[REPORT_FD] = str(pipes[tools.REPORT][1])
        if self.rank > 0:  # TensorFlow's hints when it starts: rank 0 passes them on
            environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        os.set_inheritable(pipes[tools.REPORT][1], True)
        stdin = os.open(os.devnull, os.O_RDONLY) if self.stdin < 0 else self.stdin
        targets = ((stdin, 0), (pipes[tools.STDOUT][1], 1), (pipes[tools.STDERR][1], 2))
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
            self.send(tools.REPORT, {"kind": "spawn", "message": f"{argv[0]}: {err.strerror}"})
            self.send(tools.EXIT, {"code": self.code, "time": time.monotonic(), "ordered": False})
            self.send(tools.DONE, None)
            return
        os.close(stdin)
        for kind, (read_end, write_end) in pipes.items():
            os.close(write_end)
            os.set_blocking(read_end, False)
            self.streams[read_end] = (kind, tools.Lines())
        self.child_fd = os.pidfd_open(self.child)
        close_process_manager()
        self.send(tools.STARTED, {"pid": self.child, "time": time.monotonic()})

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
        if whole and kind == tools.REPORT:
            self.is_leaving = True
            self.send(tools.REPORT, {"json": whole, "time": time.monotonic()})
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
            tools.kill_group(self.child, tools.SIGKILL)
            for fd, (kind, _) in list(self.streams.items()):
                while kind == tools.REPORT and self.forward(fd):
                    pass
            ended = {"code": self.code, "time": time.monotonic(), "ordered": self.ordered}
            self.send(tools.EXIT, ended)
        # Children that left the group may hold the pipes open: what is there now is all we take.
        for fd in list(self.streams):
            while len(self.outbox) < MAX_PENDING and self.forward(fd):
                pass
        if len(self.outbox) < MAX_PENDING:
            for fd, (kind, lines) in self.streams.items():
                rest = lines.finish()
                if rest and kind != tools.REPORT:
                    self.send(kind, rest)
                os.close(fd)
            self.streams.clear()
            os.close(self.child_fd)
            self.child_fd = -1
            self.deadline = None
            self.send(tools.DONE, None)

    def told_to_end(self) -> None:
        """The MPI has ended this rank: let the program end by itself for a moment, then kill."""
        self.stub = -1
        self.send(tools.TOLD, {"time": time.monotonic()})
        if self.code is None:
            self.deadline = time.monotonic() + (LEAVE_S if self.is_leaving else MPI_GRACE_S)
            if not self.child:
                self.code = 1
                self.send(tools.DONE, None)

    def kill(self, number: int) -> None:
        """End the program by a signal to its group; SIGKILL reaches all that it has started."""
        if self.code is not None:
            return
        self.ordered = True
        if self.remote and self.job and number == tools.SIGKILL:
            tools.kill_job(self.job)
        if not self.child:
            self.code = 128 + number
            self.send(tools.EXIT, {"code": self.code, "time": time.monotonic(), "ordered": True})
            self.send(tools.DONE, None)
            return
        tools.kill_group(self.child, number)

    def clear(self) -> None:
        """Leave nothing of this job on this host."""
        if self.child and self.code is None:
            tools.kill_group(self.child, tools.SIGKILL)
        if self.job:
            tools.kill_job(self.job)
        tools.remove_segments(self.since_s)

    def orphaned(self) -> None:
        """The launcher is gone: nothing of this job may stay."""
        self.clear()
        if self.remote:
            self.remote.end_helper()
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


def host_mark() -> str:
    """Return what tells this host (or container) from others: its name, and its process ids'."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{os.uname().nodename} {space}"


def supervise(control: str, token: str, stub: int, code: int, helper: int) -> int:
    """Run as the supervisor of one rank; return the rank's exit code."""
    rank, size = rank_and_size(dict(os.environ))
    hello = {"rank": rank, "size": size, "host": os.uname().nodename, "pid": os.getpid()}
    name, _, elsewhere = control.partition("|")
    mark, _, rest = elsewhere.partition("|")
    try:
        if not elsewhere or mark == host_mark():
            return Supervisor(connect(name), stub, code).run(token, hello)
        remote = __import__("agent_remote")  # beside this file
        limit_s, _, addresses = rest.partition("|")
        link = remote.connect(addresses, token)
    except OSError as err:
        host = hello["host"]
        sys.stderr.write(f"blinkrun: rank {rank} on host {host} cannot reach the launcher: {err}\n")
        return 1
    hello["time"] = time.monotonic()
    if rank == 0:
        hello["port"] = remote.free_port(link)
    return Supervisor(link, stub, code, remote.Remote(float(limit_s), helper)).run("", hello)


def main(argv: list[str]) -> int:
    """Run as the stub and the supervisor of one rank; return the rank's exit code."""
    control = os.environ.pop(CONTROL, "")
    token = os.environ.pop(TOKEN, "")
    if not control:  # the command of --dry-run, started by hand: the MPI alone looks after it
        os.execv("/bin/sh", ["sh", "-c", f"exec {argv[0]}"])
    code_read, code_write = os.pipe()
    stub_read, stub_write = os.pipe()
    helper = os.getppid()
    if os.fork():
        close_process_manager()
        os.close(code_write)
        os.close(stub_read)
        code = os.read(code_read, 1)
        return code[0] if code else 1
    os.setpgid(0, 0)
    os.close(code_read)
    os.close(stub_write)
    exit_code = supervise(control, token, stub_read, code_write, helper)
    with tools.Quietly():  # the MPI may have ended the stub already
        os.write(code_write, bytes([exit_code & 255]))
    return exit_code


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(exit_status)  # nothing of the interpreter needs tearing down
