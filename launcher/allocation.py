"""The hosts that a batch system has given to a job: Slurm, PBS, LSF, Kubernetes' MPI Operator.

Each tells it in variables of its own, some of which name a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blinkrun.errors import UsageError
from blinkrun.launcher.hosts import HostTarget, merged, parse_hostfile

# Set by the MPI Operator for the MPI that a job's manifest names.
HOST_FILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
_REPEAT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MOST_HOSTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a batch system says: `source` is the variable that says it."""

    source: str
    targets: tuple[HostTarget, ...]


def from_environ(environ: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of the batch job around this process, or None outside of one.

    Raises
    ------
    UsageError
        If what the batch system says is not understood; ``-H`` is the way around it.
    """
    for find in (_operator, _slurm, _pbs, _lsf):
        found = find(environ)
        if found is not None:
            return found
    return None


def _operator(environ: Mapping[str, str]) -> Allocation | None:
    for name in HOST_FILES:
        path = environ.get(name, "")
        if path:
            return Allocation(name, parse_hostfile(_text(path, name), path))
    return None


def _slurm(environ: Mapping[str, str]) -> Allocation | None:
    text = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not text:
        return None
    source = "SLURM_JOB_NODELIST"
    names = expand(text, source)
    for name in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        value = environ.get(name, "")
        if name == "SLURM_TASKS_PER_NODE" and environ.get("SLURM_NTASKS_PER_NODE", "").isdigit():
            value = value or f"{environ['SLURM_NTASKS_PER_NODE']}(x{len(names)})"
        if value:
            slots = _repeated(value, name, len(names))
            targets = (HostTarget(host, num) for host, num in zip(names, slots, strict=True))
            return Allocation(source, merged(targets))
    return Allocation(source, merged(HostTarget(host, 1) for host in names))


def _repeated(text: str, name: str, num_hosts: int) -> list[int]:
    """Return the numbers of Slurm's ``2(x3),1``."""
    numbers: list[int] = []
    for word in text.split(","):
        match = _REPEAT.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"{name}={text} is not understood; name the hosts with -H")
        numbers += [int(match[1])] * min(int(match[2] or 1), _MOST_HOSTS)
    if len(numbers) != num_hosts or not all(numbers):
        raise UsageError(
            f"{name}={text} is for {len(numbers)} hosts, SLURM_JOB_NODELIST names {num_hosts};"
            " name the hosts with -H"
        )
    return numbers


def expand(text: str, source: str = "host list") -> tuple[str, ...]:
    """Return the hosts of a compressed list of Slurm's.

    Raises
    ------
    UsageError
        If brackets or ranges make no sense, naming `source`.

    Examples
    --------
    >>> expand("gpu[01-03,7],login,r[1-2]n[0-1]")
    ('gpu01', 'gpu02', 'gpu03', 'gpu7', 'login', 'r1n0', 'r1n1', 'r2n0', 'r2n1')
    """
    names = [name for word in _outside_brackets(text) for name in _expanded(word, text, source)]
    if not names or not all(names):
        raise UsageError(f"{source}={text} is not understood; name the hosts with -H")
    return tuple(names)


def _outside_brackets(text: str) -> list[str]:
    """Return what the commas outside of brackets divide."""
    return re.split(r",(?![^\[]*\])", text.strip())


def _expanded(word: str, text: str, source: str) -> list[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        if "]" in head:
            raise UsageError(f"{source}={text} is not understood; name the hosts with -H")
        return [head]
    inside, closed, tail = rest.partition("]")
    tails = _expanded(tail, text, source) if tail else [""]
    numbers: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_range = first.isdigit() and last.isdigit() and int(first) <= int(last)
        if not closed or not is_range or int(last) - int(first) >= _MOST_HOSTS:
            raise UsageError(f"{source}={text} is not understood; name the hosts with -H")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    return [f"{head}{number}{end}" for number in numbers for end in tails]


def _pbs(environ: Mapping[str, str]) -> Allocation | None:
    path = environ.get("PBS_NODEFILE", "")
    if not path:
        return None
    return Allocation("PBS_NODEFILE", parse_hostfile(_text(path, "PBS_NODEFILE"), path))


def _lsf(environ: Mapping[str, str]) -> Allocation | None:
    path = environ.get("LSB_DJOB_HOSTFILE", "")
    if path:
        found = parse_hostfile(_text(path, "LSB_DJOB_HOSTFILE"), path)
        return Allocation("LSB_DJOB_HOSTFILE", found)
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        return None
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or not all(slots.isdigit() for _, slots in pairs):
        raise UsageError(
            f"LSB_MCPU_HOSTS={' '.join(words)} is not understood; name the hosts with -H"
        )
    return Allocation(
        "LSB_MCPU_HOSTS", merged(HostTarget(name, int(slots)) for name, slots in pairs)
    )


def _text(path: str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{name}={path} cannot be read ({err}); name the hosts with -H") from err
