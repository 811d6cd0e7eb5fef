"""Real jobs over several hosts: started, seen, ended, and nothing left on any host."""

from __future__ import annotations

import base64
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.distant_hosts import DistantHosts, distant_hosts
from support.launching import PROGRAM, Ended
from support.places import TESTS

CORE_PROGRAM = str(TESTS / "launch/cases/core_program.py")
SECRET = re.compile(r"\b[0-9a-f]{32}\b")
END_S = 20.0  # seven on a quiet machine
CUT_S = 1.5  # some of TCP's attempts to send again fail, and beats are missed
SHOW = (
    "import os, platform, sys; e = os.environ; print(platform.node(), os.getcwd(), e['FOO'],"
    " e['OMP_NUM_THREADS'], 'SSH_TTY' in e, 'BLINKRUN_TOKEN' in e, sys.stdin.read())"
)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[DistantHosts]:
    with distant_hosts(tmp_path) as made:
        yield made
        for index in range(2):
            assert not made.left(index)


def slots(hosts: DistantHosts, *numbers: int) -> list[str]:
    return ["-H", ",".join(f"{n}:{k}" for n, k in zip(hosts.names, numbers, strict=False) if k)]


def test_ranks_of_all_hosts_see_one_job(hosts: DistantHosts, tmp_path: Path) -> None:
    """Environment, folder, threads and input are as on one host; the secret reaches no program."""
    cores = len(os.sched_getaffinity(0))
    ended = hosts.launch(
        [*slots(hosts, 1, 2), "-v", "-x", "FOO=bar", "python", "-c", SHOW],
        cwd=tmp_path,
        environ={"SSH_TTY": "/dev/pts/1"},
        stdin=b"typed",
    ).end()
    assert ended.code == 0, ended.err
    one, two = hosts.names
    assert sorted(ended.out.splitlines()) == [
        f"[0] {one} {tmp_path} bar {cores} True False typed",
        f"[1] {two} {tmp_path} bar {max(1, cores // 2)} False False ",
        f"[2] {two} {tmp_path} bar {max(1, cores // 2)} False False ",
    ]
    assert f"hosts: {one}:1 {two}:2" in ended.err
    commands = hosts.commands(1)
    assert commands
    assert not any(SECRET.search(text) for text in [*commands, ended.err])


def test_input_and_output_of_a_rank_on_another_host_pass_as_they_are(
    hosts: DistantHosts, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 4096
    words = [*slots(hosts, 0, 1), "--no-prefix", "--no-preflight", "base64", "-w0"]
    ended = hosts.launch(words, cwd=tmp_path, stdin=data).end()
    assert (ended.code, ended.err) == (0, "")
    assert base64.b64decode(ended.out) == data


def test_a_rank_that_fails_on_another_host_ends_the_job(
    hosts: DistantHosts, tmp_path: Path
) -> None:
    ended = hosts.launch([*slots(hosts, 1, 2), PROGRAM, "fail", "exit3", "1"], cwd=tmp_path).end()
    assert ended.code == 3
    assert ended.last_words.startswith(f"blinkrun: rank 1 on host {hosts.names[1]} failed first:")
    assert ended.last_words.endswith("its last lines:\n    rank 1 works\n")
    assert ended.seconds_after(tmp_path / "up.2") < END_S


def test_ctrl_c_ends_all_that_ranks_have_started_on_any_host(
    hosts: DistantHosts, tmp_path: Path
) -> None:
    job = hosts.launch([*slots(hosts, 0, 2), PROGRAM, "wait"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    job.signal(signal.SIGINT)
    ended = job.end()
    assert (ended.code, ended.last_words) == (130, "blinkrun: ended by SIGINT\n")


def test_what_a_job_that_ends_well_has_started_ends_with_it(
    hosts: DistantHosts, tmp_path: Path
) -> None:
    ended = hosts.launch([*slots(hosts, 1, 1), PROGRAM, "background"], cwd=tmp_path).end()
    assert (ended.code, ended.err) == (0, "")


def test_nothing_stays_where_the_launcher_is_killed(hosts: DistantHosts, tmp_path: Path) -> None:
    job = hosts.launch([*slots(hosts, 1, 1), PROGRAM, "wait"], cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    job.signal(signal.SIGKILL)
    job.end()


@pytest.mark.parametrize("how", ["cut", "kill"])
def test_a_host_that_is_gone_ends_the_job_with_its_name(
    hosts: DistantHosts, tmp_path: Path, how: str
) -> None:
    words = [*slots(hosts, 1, 2), "--timeout", "6", PROGRAM, "wait"]
    job = hosts.launch(words, cwd=tmp_path)
    job.wait_for_files(*(tmp_path / f"up.{rank}" for rank in range(3)))
    (tmp_path / "gone").touch()
    getattr(hosts.hosts if how == "cut" else hosts, how)(1)
    ended = job.end()
    assert ended.code == 1
    who = f"blinkrun: host {hosts.names[1]} (ranks 1-2)"
    assert ended.last_words.startswith(f"{who} has not been heard from for "), ended
    assert ended.seconds_after(tmp_path / "gone") < END_S


def test_a_cut_that_heals_does_no_harm(hosts: DistantHosts, tmp_path: Path) -> None:
    words = [*slots(hosts, 1, 1), "--timeout", "10", CORE_PROGRAM, "cut"]
    job = hosts.launch(words, cwd=tmp_path)
    job.wait_for_files(tmp_path / "up.0", tmp_path / "up.1")
    hosts.hosts.cut(1)
    (tmp_path / "go").touch()
    job.wait_for_files(tmp_path / "waits.0")
    time.sleep(CUT_S)
    hosts.hosts.mend(1)
    ended = job.end()
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == ["[0] sum 2.0"] * 2 + ["[1] sum 2.0"] * 2


def start_fails(ended: Ended, said: str) -> None:
    assert ended.code == 1, ended
    assert said in ended.err, ended
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("first", [[], ["--no-preflight"]], ids=["asked", "not asked"])
def test_a_host_that_is_not_there_or_lets_nobody_in(
    hosts: DistantHosts, tmp_path: Path, first: list[str]
) -> None:
    words = [*first, "-H", f"{hosts.names[0]}:1,nohost:1", "true"]
    start_fails(hosts.launch(words, cwd=tmp_path).end(), "host nohost")
    hosts.refuse(1)
    ended = hosts.launch([*first, *slots(hosts, 1, 1), "true"], cwd=tmp_path).end()
    start_fails(ended, f"host {hosts.names[1]}")
    assert "Connection refused" in ended.err


def slurm(hosts: DistantHosts, folder: Path) -> dict[str, str]:
    """Return what Slurm sets in a job on both hosts, with an srun that is the agent."""
    (folder / "bin").mkdir()
    srun = folder / "bin/srun"
    srun.write_text(
        "#!/bin/sh\nfor word; do case $word in --nodelist=*) host=${word#*=} ;; esac; done\n"
        f'exec {hosts.agent} "$host" "$word"\n'
    )
    srun.chmod(0o755)
    nodes = {"SLURM_JOB_NODELIST": f"{hosts.names[0][:-1]}[0-1]", "SLURM_JOB_NUM_NODES": "2"}
    tasks = {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    path = f"{srun.parent}:{os.environ['PATH']}"
    return {"SLURM_JOB_ID": "77", "SLURM_JOBID": "77", **nodes, **tasks, "PATH": path}


def operator(hosts: DistantHosts, folder: Path) -> dict[str, str]:
    """Return what Kubernetes' MPI Operator sets where an exec agent starts programs."""
    (folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    return {
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
        "OMPI_MCA_plm_rsh_agent": hosts.agent,
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    }


@pytest.mark.parametrize("system", [slurm, operator])
def test_a_batch_systems_hosts_and_its_way_to_start_programs(
    hosts: DistantHosts, tmp_path: Path, system: Callable[[DistantHosts, Path], dict[str, str]]
) -> None:
    environ = system(hosts, tmp_path)
    code = "import os, platform; print(platform.node(), os.environ['BLINKRUN_SIZE'])"
    words = ["python", "-c", code]
    ended = hosts.launch(words, cwd=tmp_path, environ=environ, names_agent=False).end()
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert sorted(ended.out.splitlines()) == [
        f"[{rank}] {name} 2" for rank, name in enumerate(hosts.names)
    ]
