"""The launch options: what they are called, what they take, and the help text.

A table instead of argparse: options end at the program's name, whose own options look alike, an
error is one line that names what was meant, and the help has a fixed shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blinkrun.env import parse_gpus_per_rank
from blinkrun.errors import UsageError
from blinkrun.units import parse_size

HELP = """\
usage: blinkrun -np N [-H gpu1:8,gpu2:8] [options] PROGRAM [args]

Start N ranks of a program over MPI, show their output, and end all when one fails.
PROGRAM is a Python script (train.py), -m module, python train.py, any executable, or a command:
{commands}
options:
  -np, -n N            number of ranks; more than cores is allowed (hosts: as many as have slots)
  -H HOST[:SLOTS],...  hosts to run on, filled in this order (else: those of the batch job, this)
  --hostfile FILE      the same with one in a line, as HOST slots=N or HOST:N
  --oversubscribe, --no-preflight  more ranks than slots; do not ask first if hosts can take part
  --launch-agent CMD   what starts programs on other hosts, called as ssh is (ssh)
  --network-interface NAMES  what to use between hosts, as eth0 or eth0,eth1
  -x NAME[=VALUE]      set an environment variable in the ranks (value from here if not given)
  --mpi WHICH          openmpi, mpich, intel or an mpiexec (default: beside this Python, on PATH)
  --no-prefix          do not write [rank] before each line of output (commands never do)
  --output-dir DIR     write each rank's output to DIR/rank.N.log instead of the terminal
  --start-timeout S, --time-limit S  seconds for all ranks to come up (60); for all (exit 124)
  --timeout S          longest wait for a rank in a collective (600); given, it also ends (124) a
                       job that stands still or has lost a host: nothing moves or is heard for S
  --topology FILE|NAME, --gpus 0,1  plan for these GPUs of the machine that 'blinkrun topo' shows
  --gpus-per-rank N, --show-plan  GPUs of each rank (1), 1/2: two share one; print the plan first
  --horovod            run a script that imports horovod: blinkrun stands in for it in this job
  --ddp                run a DDP script: init_process_group gets blinkrun, whatever it asks for
  --timeline FILE      write what the engine does as a Chrome trace, while it does it
  --stall-warning S, --stall-shutdown S  say after S seconds what waits for whom (60); end the job
  --fusion-bytes SIZE, --check-nan  let small tensors travel as one up to SIZE, as 64M; refuse NaN
  --dry-run            print the command that would be run, start nothing
  --verbose, -v        say which MPI was found, what is run, and the threads of a rank
  --version; --help, -h

Each rank gets its host's cores / ranks threads (OMP_NUM_THREADS, unless set). Rank 0 reads this
terminal's input. Ctrl-C ends the job (twice: at once) and all that its ranks have started. The
exit code is that of the first rank that failed (128 + signal), 0 if none did; wrong usage: 2.
example:
  blinkrun -np 2 train.py --epochs 3
"""

# How an MPI's mpiexec has it: what to write here.
OF_MPIEXEC = {
    "-hosts": "write -H HOST:SLOTS,...",
    "-host": "write -H HOST:SLOTS,...",
    "-f": "write --hostfile FILE",
    "-machinefile": "write --hostfile FILE",
    "--machinefile": "write --hostfile FILE",
    "-ppn": "write -H HOST:SLOTS,...",
    "-launcher-exec": "write --launch-agent CMD",
    "-bootstrap-exec": "write --launch-agent CMD",
    "-iface": "write --network-interface NAMES",
}


@dataclass(slots=True)
class Options:
    """What the command line says, before it is checked against the machine."""

    num_ranks: int | None = None
    hosts: list[str] = field(default_factory=list)
    hostfile: str | None = None
    oversubscribe: bool = False
    launch_agent: str | None = None
    interfaces: tuple[str, ...] = ()
    preflight: bool = True
    environ: list[str] = field(default_factory=list)
    mpi: str | None = None
    prefix: bool = True
    output_dir: str | None = None
    start_timeout_s: float | None = None
    timeout_s: float | None = None
    time_limit_s: float | None = None
    topology: str | None = None
    gpus: str | None = None
    gpus_per_rank: str | None = None
    show_plan: bool = False
    horovod: bool = False
    ddp: bool = False
    timeline: str | None = None
    stall_warning_s: float | None = None
    stall_shutdown_s: float | None = None
    fusion_bytes: int | None = None
    check_nan: bool = False
    dry_run: bool = False
    verbose: bool = False
    version: bool = False
    help: bool = False
    program: list[str] = field(default_factory=list)


def _count(text: str) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit():
        raise UsageError(f"-np {text}: not a number of ranks; example: blinkrun -np 2 train.py")
    return int(text)


def _seconds(name: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{name} {text}: not a number of seconds") from None

    return parse


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as err:
        raise UsageError(f"--fusion-bytes: {err}") from None


def _part(text: str) -> str:
    return str(parse_gpus_per_rank(text, "--gpus-per-rank "))


def _interfaces(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9_.@-]{1,15}", name) for name in names):
        raise UsageError(f"--network-interface {text}: need names such as eth0 or eth0,eth1")
    return names


# Option: the field that it sets, and what makes its value from the next word (None: it takes none).
_Parser = Callable[[str], object] | None
_TABLE: dict[str, tuple[str, _Parser]] = {
    "-np": ("num_ranks", _count),
    "-n": ("num_ranks", _count),
    "--np": ("num_ranks", _count),
    "-H": ("hosts", str),
    "--host": ("hosts", str),
    "--hosts": ("hosts", str),
    "--hostfile": ("hostfile", str),
    "-hostfile": ("hostfile", str),
    "--oversubscribe": ("oversubscribe", None),
    "--launch-agent": ("launch_agent", str),
    "--network-interface": ("interfaces", _interfaces),
    "--network-interfaces": ("interfaces", _interfaces),
    "--no-preflight": ("preflight", None),
    "-x": ("environ", str),
    "--mpi": ("mpi", str),
    "--no-prefix": ("prefix", None),
    "--output-dir": ("output_dir", str),
    "--start-timeout": ("start_timeout_s", _seconds("--start-timeout")),
    "--timeout": ("timeout_s", _seconds("--timeout")),
    "--time-limit": ("time_limit_s", _seconds("--time-limit")),
    "--topology": ("topology", str),
    "--gpus": ("gpus", str),
    "--gpus-per-rank": ("gpus_per_rank", _part),
    "--show-plan": ("show_plan", None),
    "--horovod": ("horovod", None),
    "--ddp": ("ddp", None),
    "--timeline": ("timeline", str),
    "--stall-warning": ("stall_warning_s", _seconds("--stall-warning")),
    "--stall-shutdown": ("stall_shutdown_s", _seconds("--stall-shutdown")),
    "--fusion-bytes": ("fusion_bytes", _bytes),
    "--check-nan": ("check_nan", None),
    "--dry-run": ("dry_run", None),
    "--verbose": ("verbose", None),
    "-v": ("verbose", None),
    "--version": ("version", None),
    "--help": ("help", None),
    "-h": ("help", None),
}
OPTION_NAMES = tuple(_TABLE)


def parse(argv: Sequence[str]) -> Options:
    """Return the launch options in `argv`; everything from the program's name on is the program.

    Raises
    ------
    UsageError
        If an option is unknown (a similar one is named), lacks its value, or has a wrong one.

    Examples
    --------
    >>> parse(["-np", "2", "train.py", "--verbose"]).program
    ['train.py', '--verbose']
    """
    options = Options()
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-m":
        word = words.pop(0)
        if word == "--":
            break
        name, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        target, parser = _look_up(name)
        if parser is None:
            if has_value:
                raise UsageError(f"{name} takes no value")
            setattr(options, target, target not in ("prefix", "preflight"))
            continue
        if not has_value:
            if not words:
                raise UsageError(f"{name} needs a value; see blinkrun --help")
            value = words.pop(0)
        if target in ("environ", "hosts"):
            getattr(options, target).append(value)
        else:
            setattr(options, target, parser(value))
    options.program = words
    return options


def _look_up(name: str) -> tuple[str, _Parser]:
    if name in _TABLE:
        return _TABLE[name]
    if name in OF_MPIEXEC:
        raise UsageError(f"{name} is an option of mpiexec: {OF_MPIEXEC[name]}")
    import difflib  # noqa: PLC0415

    from blinkrun.launcher.horovod import RENAMED  # noqa: PLC0415

    if name in RENAMED:
        raise UsageError(f"{name} is an option of horovodrun: {RENAMED[name]}")
    near = difflib.get_close_matches(name, OPTION_NAMES, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "; see blinkrun --help"
    raise UsageError(f"unknown option {name}{hint}")
