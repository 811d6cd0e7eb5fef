"""blinkrun.init() over ranks that believe they are on several hosts."""

import subprocess
import sys
import time

import pytest
from support.harness import mpiexec_command, rank_environ

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

LAYOUTS = {  # the host of each rank
    "1+1": [0, 1],
    "2+2": [0, 0, 1, 1],
    "1+3": [0, 1, 1, 1],
    "1+1+1": [0, 1, 2],
    "2+1+2, not side by side": [0, 1, 0, 2, 2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_collective(run_ranks, layout):
    hosts = LAYOUTS[layout]
    results = run_ranks("hosts_cases:every_collective", size=len(hosts), hosts=hosts)
    assert results == [[]] * len(hosts)


def test_every_root_and_the_same_bits_everywhere(run_ranks):
    hosts = LAYOUTS["2+1+2, not side by side"]
    results = run_ranks("hosts_cases:every_root_and_bits", size=5, hosts=hosts, count=40_009)
    assert len(set(map(str, results))) == 1
    wrong, is_same, total = results[0]
    assert (wrong, is_same) == (0, True)
    assert total > 0


def test_places_and_objects(run_ranks):
    results = run_ranks("hosts_cases:places", size=3, hosts=[0, 1, 0])
    assert [each[:5] for each in results] == [[0, 0, 2, 0, 2], [1, 0, 1, 1, 2], [2, 1, 2, 0, 2]]
    for _, _, _, _, _, host_of, said, objects, sums in results:
        assert host_of == [0, 1, 0]
        assert said.startswith("3 ranks on 2 hosts (host0: 0 2, host1: 1), here ")
        assert objects == [{"from": 2}, [0, 10, 20]]
        assert sums == [3.0] * 3  # worlds that came and went


def test_every_subset_at_once(run_ranks):
    """All of one host, one per host, and odd ones."""
    results = run_ranks("group_cases:every_subset", size=4, hosts=[0, 0, 1, 1])
    assert results == [0] * 4


def test_groups_of_several_threads_beside_the_programs_own_mpi(run_ranks):
    hosts = LAYOUTS["2+1+2, not side by side"]
    results = run_ranks("hosts_cases:sets_of_many_threads", size=5, hosts=hosts, rounds=3)
    for wrong, kinds in results:
        assert wrong == []
        assert kinds[0] == "CpuExecutor"  # of the ranks of its host
        assert set(kinds[1:]) == {"HostsExecutor"}


def test_a_late_rank_is_named_on_every_host(run_ranks):
    *waiting, late = run_ranks(
        "hosts_cases:late_rank", size=4, hosts=[0, 0, 1, 1], deadline_s=0.5, late=3
    )
    assert late is None
    for said, ranks, seconds in waiting:
        assert "waited 0.5 s in allreduce of 10000 float64 (sum), call 2 for rank 3" in said
        assert ranks == [3]
        assert seconds < 10


def test_a_rank_that_leaves_ends_the_waits_on_every_host(run_ranks):
    first, leaver, *others = run_ranks(
        "hosts_cases:leaving_rank", size=4, hosts=[0, 1, 1, 2], leaver=1
    )
    assert leaver is None
    for said, rank, seconds in (first, *others):
        assert "has left the job" in said
        assert rank == 1
        assert seconds < 10


def test_different_calls_are_told_with_ranks_and_hosts(run_ranks):
    for small, large, total in run_ranks("hosts_cases:different_calls", size=4, hosts=[0, 0, 1, 1]):
        for said, count in ((small, 10), (large, 10_000)):
            assert said.startswith("MismatchError: call")
            assert f"rank 0 on host host0: allreduce of {count + count // 10} float64" in said
            assert f"ranks 2, 3 on host host1: allreduce of {count} float64" in said
        assert total == 4.0


def test_a_rank_that_waits_for_another_host_sleeps(run_ranks):
    seconds = run_ranks("hosts_cases:waits_without_burning", size=4, hosts=[0, 0, 1, 1], seconds=3)
    assert max(seconds[1:]) < 0.15  # 5 % of a core


def test_what_is_for_one_host_is_refused_and_the_network_may_be_said(run_ranks, tmp_path):
    plan = tmp_path / "plan.json"
    results = run_ranks(
        "hosts_cases:refused",
        size=2,
        hosts=[0, 1],
        env={"BLINKRUN_NETWORK_GBPS": "2.5"},
        plan=str(plan),
    )
    for rank, (emulated, handed, tuned, made_here, rates) in enumerate(results):
        assert (
            "the ranks run on 2 hosts (host0, host1), but a machine is emulated on one" in emulated
        )
        assert "the plan handed to them (BLINKRUN_PLAN, --topology) is of one host" in handed
        assert "chunks are tuned on one host only" in tuned
        assert made_here == ("same host" if rank == 0 else made_here)
        assert rank == 0 or "made on another host than this one (host1)" in made_here
        assert rates == [312.5, 312.5]


ENDS = {
    "raises": "raise RuntimeError('rank 2 breaks')",
    "exits early": "raise SystemExit(0)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("way", ENDS)
def test_the_job_ends_when_a_rank_does(way, tmp_path):
    """Under plain mpiexec, without our launcher."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "number = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"
        "os.environ['BLINKRUN_HOST'] = f'host{int(number) % 2}'\n"
        "import numpy, blinkrun\n"
        "blinkrun.init()\n"
        "blinkrun.barrier()\n"
        f"if blinkrun.rank() == 2:\n    {ENDS[way]}\n"
        "blinkrun.allreduce(numpy.ones(100_000))\n"
        "print('went on')\n"
    )
    started = time.monotonic()
    job = subprocess.run(
        [*mpiexec_command(3), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert job.returncode != 0
    assert time.monotonic() - started < 20
    assert "went on" not in job.stdout
    if way == "exits early":
        assert "PeerLeftError: rank 2" in job.stderr  # by its host's rank or the other host's
        assert "has left the job while rank" in job.stderr
