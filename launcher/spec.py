"""What one launch is: the values that the command line is turned into."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from blinkrun.errors import UsageError
from blinkrun.launcher.hosts import Placement

DEFAULT_START_TIMEOUT_S = 60.0
MAX_RANKS = 4096
SILENCE_S = 60.0  # how long a host may be silent, at most
MIN_SILENCE_S = 5.0
SILENCE_SHARE = 0.9  # of --timeout: ranks that wait for the host would say less about it


class Form(Enum):
    """What kind of program the ranks run."""

    PYTHON = "python"  # by the runner, which reports how the program ended
    EXECUTABLE = "executable"


@dataclass(frozen=True, slots=True)
class Program:
    """The command of a rank: `argv` is complete, ready to be executed."""

    form: Form
    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError("no program given; example: blinkrun -np 2 train.py")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a job of which not all ranks are on this one, and how they are reached.

    `agent` are the words before ``HOST 'command'``, `interfaces` the network interfaces to use
    (empty: any), `preflight` says whether the hosts are asked first whether they can take part.
    """

    placements: tuple[Placement, ...]
    agent: tuple[str, ...]
    interfaces: tuple[str, ...] = ()
    preflight: bool = True


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, checked: how many ranks of which program, and how they are watched.

    `environ` holds the variables of ``-x``, with values; `settings` those that other options set,
    which ``-x`` overrides. `timeout_s` is None unless given; then it
    bounds waits in collectives and ends a job in which nothing moves. `time_limit_s` ends the job
    whatever it does. `handed` holds texts for the ranks, such as the plan that they are to use, by
    the variable that names their file. `hosts` is None if all ranks are on this host.
    """

    num_ranks: int
    program: Program
    mpi: str | None = None
    environ: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    prefix: bool = True
    output_dir: str | None = None
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    timeout_s: float | None = None
    time_limit_s: float | None = None
    handed: dict[str, str] = field(default_factory=dict)
    hosts: Hosts | None = None
    verbose: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_ranks <= MAX_RANKS:
            raise UsageError(f"-np {self.num_ranks}: need 1 to {MAX_RANKS} ranks")
        for option, value in (
            ("--start-timeout", self.start_timeout_s),
            ("--timeout", self.timeout_s),
            ("--time-limit", self.time_limit_s),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{option} {value:g}: need a positive number of seconds")

    @property
    def silence_s(self) -> float:
        """Seconds without a sign of life after which a host counts as lost."""
        limit_s = SILENCE_S if self.timeout_s is None else min(self.timeout_s, SILENCE_S)
        return max(MIN_SILENCE_S, SILENCE_SHARE * limit_s)
