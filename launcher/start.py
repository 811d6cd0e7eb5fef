"""From a checked job to its exit code: finds the MPI, asks the hosts, starts the job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from blinkrun import env
from blinkrun.errors import LaunchError
from blinkrun.launcher.addresses import listening_addresses
from blinkrun.launcher.agent import CONTROL, TOKEN
from blinkrun.launcher.discover import find_mpi
from blinkrun.launcher.far import Spread, portable
from blinkrun.launcher.forward import handed_files
from blinkrun.launcher.job import Job
from blinkrun.launcher.means import Means, agent_command
from blinkrun.launcher.mpiexec import (
    Mpi,
    Reach,
    arguments,
    host_file_text,
    is_in_batch,
    outside_of_jobs,
    settings,
    told_of_hosts,
)
from blinkrun.launcher.remote import AgentScript, agent_script
from blinkrun.launcher.slots import THREADS, thread_names, threads_per_rank
from blinkrun.launcher.spec import Hosts, JobSpec
from blinkrun.log import say


@dataclass(frozen=True, slots=True)
class Ready:
    """A job that can be started: by which MPI, and with what."""

    mpi: Mpi
    means: Means


def launch(spec: JobSpec) -> int:
    """Run the job and return its exit code, or say how it would be run.

    Raises
    ------
    LaunchError
        If a host cannot take part, or something cannot be started.
    UsageError
        If there is no MPI, or two that do not fit.
    """
    _open_standard_streams()
    with _prepared(spec) as ready:
        if spec.dry_run:
            _print_command(spec, ready)
            return 0
        if spec.verbose:
            _explain(spec, ready)
        if spec.hosts is not None and spec.hosts.preflight:
            _ask_hosts(spec, spec.hosts, ready.mpi)
        with handed_files(spec.handed) as handed:
            means = replace(ready.means, ranks={**ready.means.ranks, **handed})
            code = Job(spec, means).run(may_retry=True)
            if code is None:
                code = Job(spec, means).run()
    return 1 if code is None else code


@contextmanager
def _prepared(spec: JobSpec) -> Iterator[Ready]:
    """Make all that the job is started with; files for the MPI stay as long as the context."""
    base = outside_of_jobs(os.environ)
    mpi = find_mpi(spec.mpi, {**base, **spec.environ})
    if spec.hosts is None:
        yield _ready(spec, mpi, base)
        return
    with agent_script(spec.hosts.agent) as script:
        addresses = listening_addresses(_others(spec.hosts), spec.hosts.interfaces)
        seen = portable(base)
        spread = Spread(spec.hosts.placements, addresses, script, seen, spec.silence_s)
        yield _ready(spec, mpi, told_of_hosts(base), spread)


def _ready(spec: JobSpec, mpi: Mpi, base: Mapping[str, str], spread: Spread | None = None) -> Ready:
    seen = {**base, **spec.environ}
    reach = None
    if spec.hosts is not None and spread is not None:
        reach = _reach(mpi, spec.hosts, spread.script)
    added = settings(mpi, _ranks_here(spec), _cores(), seen, reach)
    ranks = {**added, env.SIZE: str(spec.num_ranks)}
    if spec.timeout_s is not None:
        ranks[env.TIMEOUT] = f"{spec.timeout_s:g}"
    if spec.verbose:
        ranks[env.VERBOSE] = "1"
    ranks.update(spec.settings)
    ranks.update(dict.fromkeys(spec.handed, ""))  # the files are made when the job starts
    ranks.update(spec.environ)
    # What changes how programs are loaded is for the ranks' programs alone.
    of_mpi = {name: value for name, value in spec.environ.items() if not name.startswith("LD_")}
    means = Means(
        command=[
            *arguments(
                mpi,
                spec.num_ranks,
                is_root=os.geteuid() == 0,
                reach=reach,
                in_batch=is_in_batch(base),
            ),
            *agent_command(spec.program.argv),
        ],
        environ={**base, **added, **of_mpi},
        ranks=ranks,
        threads=thread_names({**seen, **ranks}),
        spread=spread,
    )
    return Ready(mpi, means)


def _reach(mpi: Mpi, hosts: Hosts, script: AgentScript) -> Reach:
    """Write the MPI's host file beside the agent's script, and return how it reaches the hosts."""
    path = Path(script.path).with_name("hosts")
    try:
        path.write_text(host_file_text(mpi, hosts.placements), encoding="utf-8")
    except OSError as err:
        raise LaunchError(f"the MPI's host file cannot be written: {err}") from err
    return Reach(str(path), script.path, hosts.interfaces, (CONTROL, TOKEN))


def _others(hosts: Hosts) -> list[str]:
    own = os.uname().nodename
    return [place.name for place in hosts.placements if place.name != own]


def _ranks_here(spec: JobSpec) -> int:
    if spec.hosts is None:
        return spec.num_ranks
    return max(place.num_ranks for place in spec.hosts.placements)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _ask_hosts(spec: JobSpec, hosts: Hosts, mpi: Mpi) -> None:
    """See that every host can take part; a line for each that cannot."""
    from blinkrun.launcher import preflight  # noqa: PLC0415 - for other hosts only

    found = preflight.check(
        _others(hosts),
        agent=hosts.agent,
        python=sys.executable,
        mpi=mpi,
        script=preflight.script_of(spec.program),
        cwd=os.getcwd(),
        interfaces=hosts.interfaces,
    )
    if found.problems:
        raise LaunchError("\nblinkrun: ".join(found.problems))


def _open_standard_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed: else a socket would take its place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


def _print_command(spec: JobSpec, ready: Ready) -> None:
    print(shlex.join(ready.means.command))
    print(f"# environment: {' '.join(sorted({*ready.means.ranks, *ready.means.threads}))}")
    if spec.hosts is not None:
        print(f"# hosts: {_in_words(spec.hosts)}")
        print(f"# launch agent: {shlex.join(spec.hosts.agent)}")


def _in_words(hosts: Hosts) -> str:
    return " ".join(str(place) for place in hosts.placements)


def _explain(spec: JobSpec, ready: Ready) -> None:
    """Say what is run; names of variables only, values may be secret."""
    say(f"MPI: {ready.mpi}")
    say(f"command: {shlex.join(ready.means.command)}")
    if spec.hosts is not None:
        say(f"hosts: {_in_words(spec.hosts)}")
        say(f"launch agent: {shlex.join(spec.hosts.agent)}")
    if ready.means.spread is not None:
        say(f"address for other hosts: {' '.join(ready.means.spread.addresses)}")
    say(f"environment: {' '.join(sorted({*ready.means.ranks, *ready.means.threads}))}")
    if THREADS not in ready.means.threads:
        said = "as OMP_NUM_THREADS says"
    elif spec.hosts is not None:
        said = "a host's cores / its ranks"
    else:
        said = f"{threads_per_rank(_cores(), spec.num_ranks)} (cores / ranks)"
    say(f"threads per rank: {said}")
