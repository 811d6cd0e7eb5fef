"""What a host says of itself: runs there before a job, with nothing but the standard library.

The launcher sends this file's own text to every host (`survey`), so that it also works where
blinkrun is missing or another version. It may therefore import nothing of blinkrun and stays with
what Python 3.7 understands. It answers with lines of JSON on stdout: first what it has found, then,
if the launcher could be reached from here, which of the other hosts can be.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

REACH_S = 3.0  # longest wait for a connection: within it a SYN is sent twice
VERSION_S = 10.0  # longest wait for `mpiexec --version`
LOAD_S = 30.0  # the same for a Python that loads mpi4py and the core
TRY_S = 55.0  # the same for one that tries GPUs: compiles a kernel, starts a process
BACKLOG = 256
MAX_LINE = 1 << 20
MAX_HASHED = 1 << 23  # bytes of a file: a script is shorter, an image of a container is not read
_OFF = (errno.EINPROGRESS, errno.EWOULDBLOCK)
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFMTU = 0x8913, 0x8915, 0x891B, 0x8921
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_CGROUPS = "/sys/fs/cgroup"
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # the latter is WSL's
CUPYS = ("cupy-cuda12x", "cupy-cuda13x")
FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "keras", "numpy", *CUPYS)

# Loads what a rank loads, in a process of its own: an MPI that cannot start may end it.
_LOADER = """
import json, sys
sys.path[:] = filter(None, sys.path)
found = {}
def attempt(name, function):
    try:
        found[name] = function()
    except BaseException as err:
        found[name] = {"error": f"{type(err).__name__}: {err}".splitlines()[0]}
def mpi():
    from mpi4py import MPI
    levels = {MPI.THREAD_SINGLE: "SINGLE", MPI.THREAD_FUNNELED: "FUNNELED",
              MPI.THREAD_SERIALIZED: "SERIALIZED", MPI.THREAD_MULTIPLE: "MULTIPLE"}
    text = MPI.Get_library_version().strip(" \\0").splitlines()[0]
    return {"library": text, "threads": levels[MPI.Query_thread()]}
def core():
    from blinkrun import _core
    return {"isa": _core.isa()}
attempt("core", core)
attempt("mpi", mpi)
print("loaded " + json.dumps(found), flush=True)
"""


def main(request: dict[str, Any]) -> None:
    """Answer `request`: see `survey.request`. Ends when the launcher hangs up, or by its deadline.

    Parameters
    ----------
    request : dict
        ``paths`` (put before sys.path), ``files`` to hash, ``cwd``, ``mpiexec``, ``deep`` (load
        mpi4py and the core), ``back`` (addresses, port and word of the launcher, or None),
        ``deadline_s``.
    """
    end_s = time.monotonic() + request["deadline_s"]
    # without the folder that it starts in: a clone of blinkrun there is not what is installed
    sys.path[:] = [*request["paths"], *filter(None, sys.path)]
    listener = listen()
    link, reached = _call_back(request["back"], listener.getsockname()[1])
    answer = facts(request)
    answer["reached"] = reached
    _print(answer)
    if link is None:
        return
    line = _line(link, end_s)
    if line is None:
        return
    peers = json.loads(line)
    targets = [(addresses, port) for addresses, port in peers["targets"]]
    _print({"reached_peers": [bool(found) for found in reach(targets, peers["limit_s"])]})
    _line(link, end_s)  # the listener stays until all have tried: the launcher then hangs up


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return what this host is and has; parts that cannot be found are None or empty."""
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id").strip(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "blinkrun": blinkrun_here(),
        "mpi4py": version_of("mpi4py"),
        "mpiexec": mpiexec_here(request["mpiexec"]),
        "files": {path: file_hash(path) for path in request["files"]},
        "cwd": None if request["cwd"] is None else os.path.isdir(request["cwd"]),
        "cores": len(os.sched_getaffinity(0)),
        "quota": cpu_quota(),
        "load": os.getloadavg()[0],
        "memory": memory(),
        "interfaces": interfaces(),
    }
    if request["deep"]:
        found["shared"] = shared_memory()
        found["frameworks"] = {name: version_of(name) for name in FRAMEWORKS}
        found["loaded"] = loaded(request["paths"])
        found["gpus"] = gpu_readers()
        if request["gpus"] or any(map(os.path.exists, _DRIVERS)):
            found["devices"] = devices(request["paths"])
    found["time"] = time.time()
    return found


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


# --- the network


def listen() -> socket.socket:
    """Return a listener on any free port, of all addresses of this host."""
    if socket.has_ipv6:
        try:
            listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::", 0))
            listener.listen(BACKLOG)
            return listener
        except OSError:  # switched off in the kernel
            listener.close()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("0.0.0.0", 0))
    listener.listen(BACKLOG)
    return listener


def _call_back(back: dict[str, Any] | None, port: int) -> tuple[socket.socket | None, str]:
    """Connect to whichever address of the launcher answers first, and say hello."""
    if back is None:
        return None, ""
    link = reach([(back["addresses"], back["port"])], REACH_S, keep=True)[0]
    if link is None:
        return None, ""
    hello = {"word": back["word"], "index": back["index"], "port": port, "time": time.time()}
    try:
        link.setblocking(True)
        link.sendall((json.dumps(hello) + "\n").encode())
        return link, link.getpeername()[0]
    except OSError:
        return None, ""


def reach(
    targets: Sequence[tuple[Sequence[str], int]], limit_s: float, *, keep: bool = False
) -> list[socket.socket | None]:
    """Connect to all `targets` at once; return a socket for each, None where nothing answers.

    Parameters
    ----------
    targets : sequence of (addresses, port)
        A target is reached at the first of its addresses that answers.
    limit_s : float
        Seconds to wait, at most.
    keep : bool
        Leave the sockets open; otherwise they come back closed.
    """
    waiting = {}
    for index, (addresses, port) in enumerate(targets):
        for address in addresses:
            link = _begin(address, port)
            if link is not None:
                waiting[link.fileno()] = (index, link)
    found = _first_to_answer(waiting, len(targets), limit_s)
    if not keep:
        for each in found:
            if each is not None:
                each.close()
    return found


def _first_to_answer(
    waiting: dict[int, tuple[int, socket.socket]], num: int, limit_s: float
) -> list[socket.socket | None]:
    """Return the first connection of each target that comes about; all others are closed."""
    found: list[socket.socket | None] = [None] * num
    poller = select.poll()
    for number in waiting:
        poller.register(number, select.POLLOUT)
    end_s = time.monotonic() + limit_s
    while waiting and time.monotonic() < end_s and None in found:
        for number, _ in poller.poll(max(1, int((end_s - time.monotonic()) * 1000))):
            poller.unregister(number)
            index, link = waiting.pop(number)
            has_failed = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if found[index] is None and not has_failed:
                found[index] = link
            else:
                link.close()
    for _, link in waiting.values():
        link.close()
    return found


def _begin(address: str, port: int) -> socket.socket | None:
    """Start to connect."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        link = socket.socket(family, socket.SOCK_STREAM)
        link.setblocking(False)
    except OSError:
        return None
    try:
        code = link.connect_ex((address, port))
    except OSError:  # no such address
        code = errno.EINVAL
    if code and code not in _OFF:
        link.close()
        return None
    return link


def _line(link: socket.socket, end_s: float) -> bytes | None:
    """Return the next line of the launcher; None once it has hung up, or in the end."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_LINE:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return None
        link.settimeout(left_s)
        try:
            more = link.recv(1 << 16)
        except OSError:
            return None
        if not more:
            return None
        data += more
    return data


def interfaces() -> list[dict[str, Any]]:
    """Return the network interfaces but the loopback's: name, addresses, MTU, whether it is up."""
    found = []
    v6 = _inet6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:

        def ask(name: str, question: int) -> bytes | None:
            try:
                return fcntl.ioctl(asked.fileno(), question, struct.pack("256s", name.encode()))
            except OSError:
                return None

        for _, name in socket.if_nameindex():
            flags = struct.unpack_from("H", ask(name, _SIOCGIFFLAGS) or bytes(256), 16)[0]
            if flags & _LOOPBACK:
                continue
            address, mask = ask(name, _SIOCGIFADDR), ask(name, _SIOCGIFNETMASK)
            addresses = []
            if address is not None and mask is not None:
                bits = bin(struct.unpack_from("!I", mask, 20)[0]).count("1")
                addresses.append(f"{socket.inet_ntoa(address[20:24])}/{bits}")
            mtu = ask(name, _SIOCGIFMTU)
            found.append(
                {
                    "name": name,
                    "addresses": addresses + v6.get(name, []),
                    "mtu": 0 if mtu is None else struct.unpack_from("i", mtu, 16)[0],
                    "up": bool(flags & _UP and flags & _RUNNING),
                }
            )
    return found


def _inet6() -> dict[str, list[str]]:
    """Return the IPv6 addresses of every interface, without those of the link."""
    found: dict[str, list[str]] = {}
    for line in _read("/proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[3] == "00":  # of global scope
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            found.setdefault(words[5], []).append(f"{address}/{int(words[2], 16)}")
    return found


# --- software


def blinkrun_here() -> dict[str, Any] | None:
    """Return version and folder of the blinkrun that this Python would import; None without one."""
    try:
        spec = importlib.util.find_spec("blinkrun")
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = next(iter(spec.submodule_search_locations))
    match = re.search(r"__version__ = \"([^\"]+)\"", _read(os.path.join(folder, "version.py")))
    cores = [name for name in _names(folder) if re.match(r"_core\..*\.so$", name)]
    return {"folder": folder, "version": match.group(1) if match else "?", "core": bool(cores)}


def version_of(package: str) -> str | None:
    """Return the version of an installed package, from the name of its metadata's folder."""
    wanted = re.compile(re.escape(package.replace("-", "_")) + r"-([^-]+)\.(dist|egg)-info$", re.I)
    for folder in sys.path:
        for name in _names(folder or "."):
            match = wanted.match(name)
            if match:
                return match.group(1)
    return None


def mpiexec_here(path: str | None) -> dict[str, Any] | None:
    """Return what the mpiexec at `path` says of its version; None without a path."""
    if path is None:
        return None
    if not os.access(path, os.X_OK):
        return {"path": path, "text": None}
    code, text = _output([path, "--version"], VERSION_S)
    return {"path": path, "text": text if code == 0 else ""}


def loaded(paths: Sequence[str]) -> dict[str, Any]:
    """Return what a Python says that loads mpi4py and the core, as a rank does."""
    found = _told("loaded ", _LOADER, paths, LOAD_S)
    return {"mpi": found, "core": found} if "error" in found else found


def devices(paths: Sequence[str]) -> dict[str, Any]:
    """Return what the blinkrun that is installed finds of GPUs, see `device_facts`."""
    # without the folder that it starts in, as above
    code = "import sys; sys.path[:] = filter(None, sys.path)\n"
    code += "from blinkrun.executors.device_facts import main; main()"
    return _told("devices ", code, paths, TRY_S)


def _told(mark: str, code: str, paths: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Return what a Python writes behind `mark`, or why it does not."""
    environ = {name: value for name, value in os.environ.items() if not _OF_A_RANK.match(name)}
    environ.setdefault("OMPI_MCA_pml", "ob1")  # no probe of fabrics, which takes a second
    environ.setdefault("OMPI_MCA_btl", "self,sm")
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    status, text = _output([sys.executable, "-c", code], limit_s, environ)
    for line in text.splitlines():
        if line.startswith(mark):
            found: dict[str, Any] = json.loads(line[len(mark) :])
            return found
    words = [line.strip() for line in text.splitlines() if line.strip()]
    how = f"no answer in {limit_s:g} s" if status is None else f"exit code {status}"
    return {"error": f"{words[-1]} ({how})" if words else how}


_OF_A_RANK = re.compile(r"OMPI_COMM_WORLD_|PMIX?_|PRTE_LAUNCHED|MPI_LOCALN?RANK|HYD")


def file_hash(path: str) -> str | None:
    """Return digits that stand for a file's size and (first) content; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = str(os.fstat(file.fileno()).st_size)
            return hashlib.sha256(size.encode() + file.read(MAX_HASHED)).hexdigest()[:16]
    except OSError:
        return None


def gpu_readers() -> dict[str, Any]:
    """Return what there is to read GPUs with, without touching one."""
    version = _read("/proc/driver/nvidia/version")
    match = re.search(r"(\d+\.\d+(\.\d+)?)", version)
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/opt/rocm/bin"]
    tools = ("nvidia-smi", "amd-smi", "rocm-smi")
    return {
        "nvidia_driver": match.group(1) if match else None,
        "amd_driver": os.path.exists("/dev/kfd"),
        "nvml": version_of("nvidia-ml-py"),
        "tools": [
            tool
            for tool in tools
            if any(os.access(os.path.join(f, tool), os.X_OK) for f in folders)
        ],
    }


def _output(
    argv: Sequence[str], limit_s: float, environ: dict[str, str] | None = None
) -> tuple[int | None, str]:
    """Return exit code (None: too late) and output of a program."""
    try:
        ran = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    except OSError as err:
        return 127, str(err)
    return ran.returncode, ran.stdout.decode(errors="replace")


# --- the machine


def cpu_quota() -> float | None:
    """Return the cores' worth of time that the control group grants, the least of all above it."""
    limits = list(_quotas())
    return min(limits) if limits else None


def _quotas() -> Iterator[float]:
    for line in _read("/proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            yield from _above(_CGROUPS, path, _quota_v2)
        elif "cpu" in kinds.split(","):
            yield from _above(os.path.join(_CGROUPS, "cpu"), path, _quota_v1)


def _above(root: str, path: str, read: Callable[[str], float | None]) -> Iterator[float]:
    """Yield what `read` finds in the group and those above it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for stop in range(len(parts), -1, -1):
        limit = read(os.path.join(root, *parts[:stop]))
        if limit is not None:
            yield limit


def _quota_v2(folder: str) -> float | None:
    words = _read(os.path.join(folder, "cpu.max")).split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: str) -> float | None:
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us")).strip()
    period = _read(os.path.join(folder, "cpu.cfs_period_us")).strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def memory() -> dict[str, int]:
    """Return the bytes of memory in all and still to be had."""
    text = _read("/proc/meminfo")
    found = {}
    for name, key in (("total", "MemTotal"), ("free", "MemAvailable")):
        match = re.search(rf"^{key}:\s+(\d+) kB", text, re.M)
        found[name] = int(match.group(1)) * 1024 if match else 0
    return found


def shared_memory() -> dict[str, Any]:
    """Return the size of /dev/shm, which MPI uses, and whether memory has no need of files."""
    try:
        size = os.statvfs("/dev/shm")
        shm = size.f_frsize * size.f_blocks
    except OSError:
        shm = None
    try:
        os.close(os.memfd_create("blinkrun-doctor"))
        memfd = True
    except (OSError, AttributeError):
        memfd = False
    return {"shm": shm, "memfd": memfd}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
