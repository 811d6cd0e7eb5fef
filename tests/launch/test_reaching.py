"""How other hosts are reached: the agent, each MPI's arguments, and what a failed agent says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blinkrun.errors import UsageError
from blinkrun.launcher import slurm_agent
from blinkrun.launcher.addresses import interface_addresses, listening_addresses, route_source
from blinkrun.launcher.hosts import Placement
from blinkrun.launcher.mpiexec import (
    Kind,
    Mpi,
    Reach,
    arguments,
    host_file_text,
    is_in_batch,
    settings,
    told_of_hosts,
)
from blinkrun.launcher.remote import SSH_OPTIONS, agent_script, agent_words

OPENMPI_5 = Mpi("/m/mpiexec", Kind.OPENMPI, "5.0.11")
OPENMPI_4 = Mpi("/m/mpiexec", Kind.OPENMPI, "4.1.4")
MPICH = Mpi("/m/mpiexec", Kind.MPICH, "5.0.2")
IMPI = Mpi("/m/mpiexec", Kind.INTEL, "2021.18.1")
REACH = Reach("/t/hosts", "/t/agent", ("eth0", "ib0"), ("A", "B"))


@pytest.mark.parametrize(
    ("mpi", "words"),
    [
        (
            OPENMPI_5,
            "--map-by slot:OVERSUBSCRIBE --bind-to none --hostfile /t/hosts --prtemca plm ssh"
            " --prtemca ras ^slurm,pbs,tm,lsf,gridengine,flux,alps,loadleveler"
            " --prtemca plm_ssh_agent /t/agent --prtemca plm_ssh_no_tree_spawn 1"
            " --prtemca prte_if_include eth0,ib0 -x A -x B -n 4",
        ),
        (
            OPENMPI_4,
            "--oversubscribe --bind-to none --hostfile /t/hosts --mca plm rsh"
            " --mca ras ^slurm,pbs,tm,lsf,gridengine,flux,alps,loadleveler"
            " --mca plm_rsh_agent /t/agent --mca plm_rsh_no_tree_spawn 1"
            " --mca oob_tcp_if_include eth0,ib0 -x A -x B -n 4",
        ),
        (
            MPICH,
            "-launcher ssh -launcher-exec /t/agent -f /t/hosts -genvlist A,B -iface eth0 -n 4",
        ),
        (
            IMPI,
            "-bootstrap ssh -bootstrap-exec /t/agent -machinefile /t/hosts -genvlist A,B"
            " -iface eth0 -n 4",
        ),
    ],
)
def test_arguments_for_several_hosts(mpi: Mpi, words: str) -> None:
    """Values of variables, a secret among them, are on no command line."""
    assert arguments(mpi, 4, is_root=False, reach=REACH) == ["/m/mpiexec", *words.split()]


NO_BATCH = "^slurm,pbs,tm,lsf,gridengine,flux,alps,loadleveler"


@pytest.mark.parametrize(
    ("mpi", "words"),
    [
        (OPENMPI_5, ["--prtemca", "plm", "ssh", "--prtemca", "ras", NO_BATCH]),
        (OPENMPI_4, ["--mca", "plm", "rsh", "--mca", "ras", NO_BATCH]),
        (MPICH, ["-launcher", "fork", "-hosts", "localhost"]),
        (IMPI, ["-bootstrap", "fork", "-hosts", "localhost"]),
    ],
)
def test_ranks_of_this_host_stay_here_in_a_batch_systems_job(mpi: Mpi, words: list[str]) -> None:
    assert is_in_batch({"SLURM_JOB_ID": "7"})
    assert not is_in_batch({"PATH": "/bin", "PBS_JOBID": ""})
    found = arguments(mpi, 2, is_root=False, in_batch=True)
    assert found[-len(words) - 2 : -2] == words


def test_host_files_of_each_mpi() -> None:
    placed = [Placement("a", 0, 2), Placement("b", 2, 1)]
    assert host_file_text(OPENMPI_5, placed) == "a slots=2\nb slots=1\n"
    assert host_file_text(MPICH, placed) == host_file_text(IMPI, placed) == "a:2\nb:1\n"
    by_address = [Placement("fd77::1", 0, 2)]
    assert str(by_address[0]) == "[fd77::1]:2"
    assert host_file_text(OPENMPI_5, by_address) == "fd77::1 slots=2\n"
    with pytest.raises(UsageError, match="host fd77::1: MPICH takes no IPv6 addresses; name"):
        host_file_text(MPICH, by_address)


def test_settings_for_several_hosts() -> None:
    """Open MPI yields with few ranks too, and all that goes over a network takes this one."""
    sockets = {"GLOO_SOCKET_IFNAME": "eth0,ib0", "NCCL_SOCKET_IFNAME": "=eth0,ib0"}
    found = settings(OPENMPI_5, 1, 8, {}, REACH)
    assert found["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert found["OMPI_MCA_btl_tcp_if_include"] == "eth0,ib0"
    assert sockets.items() <= found.items()
    assert settings(MPICH, 1, 8, {}, REACH) == {
        **sockets,
        "FI_TCP_IFACE": "eth0",
        "UCX_NET_DEVICES": "eth0,ib0",
    }
    assert settings(IMPI, 1, 8, {"FI_TCP_IFACE": "x"}, REACH) == {**sockets, "I_MPI_PIN": "0"}
    assert settings(MPICH, 1, 8, {}, Reach("/t/hosts", "/t/agent")) == {}


def test_an_mpi_is_told_of_hosts_by_us_alone() -> None:
    kept = {"PATH": "/bin", "OMPI_MCA_btl": "tcp", "I_MPI_FABRICS": "ofi", "HYDRA_DEBUG": "1"}
    told = ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"]
    told += ["OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_agent"]
    told += ["I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "I_MPI_PERHOST"]
    told += ["HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCH_EXTRA_ARGS", "OMPI_MCA_plm"]
    assert told_of_hosts({**kept, **dict.fromkeys(told, "x")}) == kept


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with programs that are never run."""
    for name in ("ssh", "srun", "blaunch", "kubexec.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return str(tmp_path)


def test_ssh_never_asks_and_takes_the_users_options_first(path: str) -> None:
    environ = {"PATH": path}
    assert agent_words(None, environ) == ("ssh", *SSH_OPTIONS)
    assert "BatchMode=yes" in SSH_OPTIONS
    own = "ssh -p 2222 -o 'ConnectTimeout=3'"
    assert agent_words(own, environ) == (
        *("ssh", "-p", "2222", "-o", "ConnectTimeout=3"),
        *SSH_OPTIONS,
    )
    operators = {**environ, "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    assert agent_words(None, operators) == ("ssh", "-o", "ConnectionAttempts=10", *SSH_OPTIONS)


def test_other_agents(path: str) -> None:
    environ = {"PATH": path, "OMPI_MCA_plm_rsh_args": "-o ForSsh=1"}
    exec_agent = f"{path}/kubexec.sh"
    assert agent_words(f"{exec_agent} -n x", environ) == (exec_agent, "-n", "x")
    assert agent_words(None, {**environ, "OMPI_MCA_plm_rsh_agent": exec_agent}) == (exec_agent,)
    assert agent_words(None, {**environ, "LSB_JOBID": "1"}) == ("blaunch",)
    slurm = {**environ, "SLURM_JOB_ID": "1"}
    assert agent_words(None, slurm)[-1] == slurm_agent.__file__
    assert agent_words("ssh", slurm)[0] == "ssh"
    for wrong, said in (("", "is empty"), ("'", "quotation"), ("nosuch -x", "nosuch is not there")):
        with pytest.raises(UsageError, match=said):
            agent_words(wrong, environ)


def test_slurms_agent_calls_srun_for_one_host(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\nenv | grep ^SLURM_ | sort\nfor word in "$@"; do echo "$word"; done\n'
    )
    srun.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-SE", str(slurm_agent.__file__), "-x", "n1", "echo 'a  b'", "c"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "64"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    lines = ran.stdout.splitlines()
    assert lines[0] == "SLURM_JOB_ID=7"
    assert {"--nodes=1", "--ntasks=1", "--overlap", "--nodelist=n1"} <= set(lines)
    assert lines[-3:] == ["/bin/sh", "-c", "echo 'a  b' c"]


FAILURES = [
    ("Could not resolve hostname b: Name or service not known", 255, "check the name"),
    ("connect to host b port 22: Connection refused", 255, "is sshd running there"),
    ("connect to host b port 22: Connection timed out", 255, "is the host up"),
    ("connect to host b port 22: No route to host", 255, "is the host up"),
    ("Permission denied (publickey,password).", 255, "set up a key"),
    ("Host key verification failed.", 255, "connect once by hand (ssh b)"),
    ("sh: 1: prted: not found", 127, "it is the program that is missing"),
    ("", 1, "give another one with --launch-agent"),
]


@pytest.mark.parametrize(("said", "code", "remedy"), FAILURES)
def test_an_agent_that_fails_is_quoted_with_a_remedy(
    tmp_path: Path, said: str, code: int, remedy: str
) -> None:
    agent = tmp_path / "my agent"
    agent.write_text(f'#!/bin/sh\ncat\n[ -n "{said}" ] && echo "{said}" >&2\nexit {code}\n')
    agent.chmod(0o755)
    with agent_script([str(agent)]) as script:
        folder = Path(script.path).parent
        assert not script.failures()
        ran = subprocess.run(
            [script.path, "-x", "-q", "b", "command"],
            input=b"nothing of this gets in",
            capture_output=True,
            check=False,
            timeout=30,
        )
        assert (ran.returncode, ran.stdout, ran.stderr.decode().strip()) == (code, b"", said)
        (line,) = script.failures()
        assert folder.stat().st_mode & 0o077 == 0
    assert line.startswith(f"host b: my agent failed with exit code {code}")
    assert said in line
    assert remedy in line
    assert not folder.exists()


def test_an_agent_gets_its_words_and_succeeds(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho "$@"\n')
    agent.chmod(0o755)
    with agent_script([str(agent), "-p", "a b"]) as script:
        ran = subprocess.run(
            [script.path, "-x", "b", "x  y", "-z"], capture_output=True, check=True, timeout=30
        )
        assert ran.stdout == b"-p a b b x  y -z\n"
        assert not script.failures()


def test_addresses_of_this_host() -> None:
    known = interface_addresses()
    assert "127.0.0.1" in known["lo"]
    assert listening_addresses(["no.such.host.invalid"], ["lo"]) == known["lo"]
    with pytest.raises(UsageError, match=r"--network-interface eth77: this host has none .* lo"):
        listening_addresses([], ["eth77"])
    assert route_source("127.0.0.1") is None  # no other host reaches that
    assert route_source("no.such.host.invalid") is None
