"""What an `mpiexec` is, and the argument list and environment that start a job with it.

Functions of values; `discover` looks at the machine. What each MPI needs (found by trying Open MPI
5.0, MPICH 5.0 and Intel MPI 2021, as root, with more ranks than cores):

- Open MPI refuses root and more ranks than cores without flags, binds each rank to one core, spins
  while it waits, and spends a second on probing network fabrics unless told which transports to
  use.
- MPICH needs nothing.
- Intel MPI pins each rank to one core, also where ranks outnumber cores.

With several hosts each MPI is told exactly how many ranks each host gets, which agent starts its
helpers there (all from here: a helper that starts others would need the agent on its host), and
which variables its helpers pass on. Open MPI yields then in any case: that a host has more ranks
than cores it does not see, and two seconds for a sum that takes a tenth of one is the price.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from blinkrun.errors import UsageError
from blinkrun.launcher.hosts import Placement


class Kind(Enum):
    """An MPI implementation, by the name that ``--mpi`` takes."""

    OPENMPI = "openmpi"
    MPICH = "mpich"
    INTEL = "intel"

    @property
    def title(self) -> str:
        """Name as its makers spell it."""
        return {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}[self.value]


@dataclass(frozen=True, slots=True)
class Mpi:
    """An `mpiexec` that was found: where, of which kind and version."""

    path: str
    kind: Kind
    version: str

    @property
    def major(self) -> int:
        """First number of the version."""
        return int(self.version.split(".")[0])

    def __str__(self) -> str:
        return f"{self.kind.title} {self.version} ({self.path})"


_VERSIONS = (
    (Kind.OPENMPI, re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\d+(?:\.\d+)*)")),
    (Kind.INTEL, re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d+(?:\.\d+)*)", re.DOTALL)),
    (Kind.MPICH, re.compile(r"HYDRA build details:.*?Version:\s+(\d+(?:\.\d+)*)", re.DOTALL)),
)

# Set by the MPI (or by an outer launcher) in the processes of a job: a job inside a job must not
# see them.
_OF_A_RANK = re.compile(
    r"OMPI_COMM_WORLD_\w+|OMPI_(UNIVERSE|WORLD|WORLD_LOCAL)_SIZE|OMPI_FILE_LOCATION"
    r"|PMIX_(RANK|NAMESPACE|SERVER_\w+|SECURITY_MODE|BFROP_BUFFER_TYPE|GDS_MODULE|HOSTNAME)"
    r"|PMIX_(PTL_MODULE|VERSION|SYSTEM_TMPDIR|PARAM_FILE_PASSED|MCA_mca_base_component_\w+)"
    r"|PRTE_LAUNCHED|PMI_\w+|MPI_LOCALN?RANK\w*|HYDI?_\w+|HYDRA_BSTRAP_\w+"
    r"|BLINKRUN_(LAUNCHED|CONTROL|TOKEN|RANK|SIZE|REPORT_FD|PLAN|HOST_INDEX|NUM_HOSTS|AGENT_OF)"
)

# What the user or Kubernetes' MPI Operator has set for an MPI that is started by hand.
_OF_HOSTS = re.compile(
    r"(OMPI|PRTE)_MCA_((orte|prte)_)?default_hostfile|(OMPI|PRTE)_MCA_plm(_(rsh|ssh)_\w+)?"
    r"|OMPI_MCA_orte_rsh_agent|(I_MPI_)?HYDRA_(HOST_FILE|LAUNCHER|LAUNCHER_EXEC|LAUNCH_EXTRA_ARGS)"
    r"|I_MPI_HYDRA_BOOTSTRAP\w*|I_MPI_PERHOST|HYDRA_RMK|I_MPI_HYDRA_RMK"
    r"|(OMPI|PRTE)_MCA_ras\w*"
)

# Open MPI would ask the batch system around it for hosts, and compare.
_BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")
_NO_BATCH_SYSTEM = "^slurm,pbs,tm,lsf,gridengine,flux,alps,loadleveler"


def identify(version_text: str) -> tuple[Kind, str] | None:
    """Return kind and version from what ``mpiexec --version`` prints, or None if it is unknown.

    >>> identify("mpiexec (Open MPI) 5.0.11")
    (<Kind.OPENMPI: 'openmpi'>, '5.0.11')
    """
    for kind, pattern in _VERSIONS:
        if match := pattern.search(version_text):
            return kind, match[1]
    return None


@dataclass(frozen=True, slots=True)
class Reach:
    """How an MPI gets to the hosts of a job: its agent, and the network interfaces to use, if any.

    `host_file` is the path of a file with the text of `host_file_text`, `agent` that of a program;
    `passed` are the variables that every host's helper must pass on to the ranks.
    """

    host_file: str
    agent: str
    interfaces: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()


def arguments(
    mpi: Mpi, num_ranks: int, *, is_root: bool, reach: Reach | None = None, in_batch: bool = False
) -> list[str]:
    """Return the command that starts `num_ranks` ranks; the ranks' own command goes behind it.

    Parameters
    ----------
    mpi : Mpi
        The mpiexec.
    num_ranks : int
        Ranks of the job.
    is_root : bool
        Whether root starts it.
    reach : Reach or None
        The hosts; None: all ranks on this one.
    in_batch : bool
        Whether a batch system is around; an MPI would put ranks on the hosts of its job.
    """
    command = [mpi.path]
    if mpi.kind is Kind.OPENMPI:
        if is_root:
            command.append("--allow-run-as-root")
        if mpi.major >= 5:
            command += ["--map-by", "slot:OVERSUBSCRIBE" if reach else ":OVERSUBSCRIBE"]
        else:
            command.append("--oversubscribe")
        command += ["--bind-to", "none"]
    if reach is not None:
        command += _reaching(mpi, reach)
    elif in_batch:
        command += _staying(mpi)
    return [*command, "-n", str(num_ranks)]


def _staying(mpi: Mpi) -> list[str]:
    """Return the arguments that keep all ranks on this host, whatever a batch system offers."""
    if mpi.kind is Kind.OPENMPI:
        option, shell = ("--prtemca", "ssh") if mpi.major >= 5 else ("--mca", "rsh")
        return [option, "plm", shell, option, "ras", _NO_BATCH_SYSTEM]
    launcher = "launcher" if mpi.kind is Kind.MPICH else "bootstrap"
    return [f"-{launcher}", "fork", "-hosts", "localhost"]


def is_in_batch(environ: Mapping[str, str]) -> bool:
    """Whether a batch system's job is around this process."""
    return any(environ.get(name) for name in _BATCH_JOBS)


def _reaching(mpi: Mpi, reach: Reach) -> list[str]:
    """Return the arguments that name hosts, agent, network and variables to one MPI."""
    if mpi.kind is Kind.OPENMPI:
        option, shell = ("--prtemca", "plm_ssh") if mpi.major >= 5 else ("--mca", "plm_rsh")
        network = "prte_if_include" if mpi.major >= 5 else "oob_tcp_if_include"
        words = ["--hostfile", reach.host_file, option, "plm", shell[4:]]
        words += [option, "ras", _NO_BATCH_SYSTEM]
        words += [option, f"{shell}_agent", reach.agent, option, f"{shell}_no_tree_spawn", "1"]
        if reach.interfaces:
            words += [option, network, ",".join(reach.interfaces)]
        return words + [word for name in reach.passed for word in ("-x", name)]
    # Intel MPI's -f names hosts alone: it would put as many ranks on each as that has cores.
    launcher, hosts = ("launcher", "f") if mpi.kind is Kind.MPICH else ("bootstrap", "machinefile")
    words = [f"-{launcher}", "ssh", f"-{launcher}-exec", reach.agent]
    words += [f"-{hosts}", reach.host_file]
    words += ["-genvlist", ",".join(reach.passed)]  # all of them otherwise, DISPLAY too
    return words + (["-iface", reach.interfaces[0]] if reach.interfaces else [])


def host_file_text(mpi: Mpi, placements: Sequence[Placement]) -> str:
    r"""Return what tells `mpi` how many ranks each host gets.

    >>> host_file_text(Mpi("mpiexec", Kind.MPICH, "5.0"), [Placement("a", 0, 2)])
    'a:2\n'
    """
    for host in placements:
        if ":" in host.name and mpi.kind is not Kind.OPENMPI:
            raise UsageError(
                f"host {host.name}: {mpi.kind.title} takes no IPv6 addresses; name the host, in"
                " /etc/hosts if nowhere else"
            )
    between = " slots=" if mpi.kind is Kind.OPENMPI else ":"
    return "".join(f"{host.name}{between}{host.num_ranks}\n" for host in placements)


def settings(
    mpi: Mpi,
    num_ranks: int,
    cores: int,
    environ: Mapping[str, str],
    reach: Reach | None = None,
) -> dict[str, str]:
    """Return the variables that make `mpi` behave, without those the user has set.

    Parameters
    ----------
    mpi : Mpi
        The mpiexec.
    num_ranks, cores : int
        Ranks and cores of this host.
    environ : mapping
        What is set already.
    reach : Reach or None
        The hosts; None: this one only.
    """
    wanted: dict[str, str] = {}
    if mpi.kind is Kind.OPENMPI:
        shared_memory = "sm" if mpi.major >= 5 else "vader"
        wanted = {
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": f"self,{shared_memory},tcp",
            "OMPI_MCA_osc": "^ucx",
        }
        if num_ranks > cores or reach is not None:
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    elif mpi.kind is Kind.INTEL:
        wanted = {"I_MPI_PIN": "0"}
    if reach is not None and reach.interfaces:
        wanted.update(_over(mpi, reach.interfaces))
    return {name: value for name, value in wanted.items() if name not in environ}


def _over(mpi: Mpi, interfaces: Sequence[str]) -> dict[str, str]:
    """Return the variables by which an MPI, and libraries of frameworks, take these interfaces."""
    names = ",".join(interfaces)
    found = {"GLOO_SOCKET_IFNAME": names, "NCCL_SOCKET_IFNAME": f"={names}"}
    if mpi.kind is Kind.OPENMPI:
        return {**found, "OMPI_MCA_btl_tcp_if_include": names}
    found["FI_TCP_IFACE"] = interfaces[0]
    if mpi.kind is Kind.MPICH:
        found["UCX_NET_DEVICES"] = names
    return found


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what tells a process that it is a rank of some job.

    >>> outside_of_jobs({"PMI_RANK": "1", "PMIX_MCA_gds": "hash", "HOME": "/"})
    {'PMIX_MCA_gds': 'hash', 'HOME': '/'}
    """
    return {name: value for name, value in environ.items() if not _OF_A_RANK.fullmatch(name)}


def told_of_hosts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what names hosts and agents to an MPI: it gets both from us."""
    return {name: value for name, value in environ.items() if not _OF_HOSTS.fullmatch(name)}


def check_mixed(
    mpi: Mpi, packages: Sequence[tuple[Kind, str]], library: Sequence[Kind]
) -> str | None:
    """Return why `mpi` and the library that mpi4py would load do not fit, or None if they do.

    Parameters
    ----------
    mpi : Mpi
        The mpiexec to be used.
    packages : sequence of (Kind, str)
        MPI packages in the Python environment, with their names.
    library : sequence of Kind
        What the library that mpi4py loads can be; empty if that is unknown.
    """
    if len(packages) > 1:
        names = [name for _, name in packages]
        return (
            f"two MPIs mixed: this environment has the packages {' and '.join(names)};"
            f" keep one: pip uninstall {names[-1]}"
        )
    if packages and packages[0][0] is not mpi.kind:
        kind, name = packages[0]
        return (
            f"two MPIs mixed: {mpi.path} is {mpi.kind.title}, but mpi4py loads {kind.title} from"
            f" package {name}; choose it with --mpi {kind.value} or pip uninstall {name}"
        )
    if library and mpi.kind not in library:
        return (
            f"two MPIs mixed: {mpi.path} is {mpi.kind.title}, but mpi4py loads"
            f" {library[0].title}; choose that one's mpiexec with --mpi, or install mpi4py for"
            f" {mpi.kind.title}"
        )
    return None
