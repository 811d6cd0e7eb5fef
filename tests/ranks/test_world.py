"""blinkrun on real processes under MPI: places, collectives, waiting, and ends."""

import os
import subprocess
import sys
import time

import pytest
from support.harness import mpiexec_command, rank_environ

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

COUNTS = [0, 1, 7, 64, 509, 4099, 100_003]


@pytest.mark.parametrize("size", [1, 3])
def test_places(run_ranks, size):
    for rank, place in enumerate(run_ranks("world_cases:places", size=size)):
        assert "needs blinkrun.init() first" in place[0]
        assert place[1:] == [rank, size, rank, size, 0, 1, size]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_at_every_count(run_ranks, size):
    assert run_ranks("world_cases:collectives", size=size, counts=COUNTS) == [0] * size


@pytest.mark.slow
def test_more_ranks_than_cores(run_ranks):
    counts = [0, 1, 1009, 100_003]
    results = run_ranks("world_cases:collectives", size=8, counts=counts, timeout_s=110)
    assert results == [0] * 8


def test_allreduce_sums_over_ranks(run_ranks):
    size, count = 3, 7  # 7: not a multiple of any size but 1
    results = run_ranks("world_cases:arange_sum", size=size, count=count)
    assert results == [[i * size * (size - 1) / 2 for i in range(count)]] * size


def test_objects(run_ranks):
    assert run_ranks("world_cases:objects", size=3) == [[{"from": 2}, [0, 10, 20]]] * 3


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_init_after_shutdown(run_ranks, hosts):
    sums = run_ranks("world_cases:again_after_shutdown", size=2, hosts=hosts)
    assert sums == [[2.0] * 3] * 2


@pytest.mark.parametrize("leaves", [True, False])
def test_a_program_may_end_mpi_itself(run_ranks, leaves):
    """Over hosts a thread of ours called MPI afterwards, which ended the job."""
    ends = run_ranks("world_cases:mpi_ends_first", size=2, hosts=[0, 1], leaves=leaves)
    said = "" if leaves else "MPI was finalised before blinkrun.shutdown()"
    assert all(total == 2.0 and said in text for total, text in ends)


def test_a_forked_child_of_hosts_ends(tmp_path):
    """Its interpreter's end waited for ever for a thread that is its parent's."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "os.environ['BLINKRUN_HOST'] = 'host' + os.environ['OMPI_COMM_WORLD_RANK']\n"
        "import numpy, blinkrun\n"
        "blinkrun.init()\n"
        "blinkrun.allreduce(numpy.ones(3))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    raise SystemExit(7)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "print('child', code, blinkrun.allreduce(numpy.ones(1))[0], flush=True)\n"
    )
    job = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert job.returncode == 0
    assert job.stdout.count("child 7 2.0") == 2


def test_threads_that_are_in_the_core_do_not_disturb_the_end(run_ranks):
    """The interpreter unwound one that came back, through what must not throw: it aborted."""
    assert run_ranks("world_cases:threads_at_the_end", size=2) == [None, None]


def test_a_rank_that_waits_sleeps(run_ranks):
    seconds = run_ranks("world_cases:waits_without_burning", size=2, seconds=2)
    assert seconds[1] < 0.05


def test_a_late_rank_is_named_before_the_deadline_is_long_over(run_ranks):
    results = run_ranks("world_cases:late_rank", size=3, deadline_s=0.5)
    for message, ranks, seconds in (results[0], results[2]):
        assert "waited 0.5 s in allreduce of 10 float64 (sum)" in message
        assert "for rank 1" in message
        assert ranks == [1]
        assert seconds < 3


def test_memory_is_not_a_file(run_ranks):
    for maps, total in run_ranks("world_cases:shared_maps", size=2):
        assert maps
        assert all(name.startswith("/memfd:blinkrun-") for name in maps)
        assert total == 2.0


def test_a_forked_child_is_no_rank(run_ranks):
    assert run_ranks("world_cases:forked_child", size=2) == [[7, 2.0]] * 2


@pytest.mark.parametrize("how", ["inline", "async"])
def test_a_signal_ends_a_wait_and_the_job(run_ranks, how):
    first, second = run_ranks("world_cases:interrupted", size=2, how=how)
    assert first == ["interrupted", True]
    assert "rank 0 was interrupted" in second[0]
    assert second[1]


def test_bad_timeout(run_ranks):
    assert "timeout_s is 0" in run_ranks("world_cases:bad_timeout", size=1)[0]


ENDS = {
    "raises": "raise RuntimeError('rank 1 breaks')",
    "exits early": "raise SystemExit(0)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("way", ENDS)
def test_the_job_ends_when_a_rank_does(way, tmp_path):
    """Under plain mpiexec, without our launcher."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy, blinkrun\n"
        "blinkrun.init()\n"
        "blinkrun.barrier()\n"
        f"if blinkrun.rank() == 1:\n    {ENDS[way]}\n"
        "blinkrun.allreduce(numpy.ones(100))\n"
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
    assert time.monotonic() - started < 15
    assert "went on" not in job.stdout
    if way == "exits early":
        assert "PeerLeftError: rank 1 has left the job" in job.stderr


COMES_TO_NO_MORE = {
    "init": (
        "from blinkrun.comm import mpi\n"
        "mpi.MEET_TIMEOUT_S = 1\n"
        "if number == 1:\n    raise RuntimeError('rank 1 breaks')\n"
        "blinkrun.init()\n"
    ),
    "a second init": (
        "blinkrun.init()\n"
        "blinkrun.barrier()\n"
        "blinkrun.shutdown()\n"
        "runtime._state.connected._timeout_s = 0.5\n"
        "if number == 1:\n    raise SystemExit(0)\n"
        "blinkrun.init()\n"
    ),
    "the end of init": (
        "if number == 1:\n    joining.usable_cores = lambda _: 1 / 0\nblinkrun.init()\n"
    ),
}
TOLD = {
    "init": "waited 1 s for other ranks in what all ranks must call",
    "a second init": "waited 0.5 s for rank 1 in what all ranks must call, such as blinkrun.init()",
    "the end of init": "ZeroDivisionError",
}


@pytest.mark.parametrize("where", COMES_TO_NO_MORE)
def test_a_rank_that_does_not_come_ends_the_others_wait(where, tmp_path):
    """MPI waits for ever: also in its end, where a program that loaded mpi4py first ends."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom mpi4py import MPI\nimport blinkrun\n"
        "from blinkrun import runtime\nfrom blinkrun.executors import joining\n"
        "number = MPI.COMM_WORLD.Get_rank()\n" + COMES_TO_NO_MORE[where] + "print('went on')\n"
    )
    timeout_s = "1" if where == "init" else "30"
    job = subprocess.run(
        [*mpiexec_command(3), sys.executable, str(script)],
        env={**rank_environ(60.0), "BLINKRUN_TIMEOUT_S": timeout_s},
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert job.returncode != 0
    assert TOLD[where] in job.stderr
    assert "went on" not in job.stdout


def test_mpis_start_does_not_wait_for_ever(tmp_path):
    """For a rank that ends well and never comes: MPI's start holds Python's lock meanwhile."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, blinkrun\n"
        "from blinkrun import runtime\n"
        "runtime.START_S = 1\n"
        "if 1 == int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']):\n"
        "    raise SystemExit(0)\n"
        "blinkrun.init()\n"
    )
    job = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script)],
        env={**rank_environ(60.0), "BLINKRUN_TIMEOUT_S": "1"},
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert job.returncode != 0
    assert "blinkrun: MPI did not start within 1 s: every process of the job must" in job.stderr


def test_init_when_mpi_has_ended_is_an_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, blinkrun\n"
        "def late():\n"
        "    try:\n        blinkrun.init()\n"
        "    except blinkrun.errors.LaunchError as err:\n        print('told:', err)\n"
        "atexit.register(late)\n"  # called after our own, which ends MPI
        "blinkrun.init()\n"
    )
    job = subprocess.run(
        [*mpiexec_command(2), sys.executable, str(script)],
        env=rank_environ(60.0),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("told: MPI has ended, and cannot start again") == 2


def test_alone_without_mpi(tmp_path):
    """A process that nobody started as a rank is a world of one, and loads no MPI."""
    code = (
        "import sys, numpy, blinkrun; blinkrun.init();"
        "print(blinkrun.size(), blinkrun.allreduce(numpy.ones(2)).tolist(),"
        " [m for m in ('mpi4py', 'torch', 'networkx', 'scipy') if m in sys.modules])"
    )
    environ = {key: value for key, value in os.environ.items() if "MPI" not in key}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "BLINKRUN_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "1 [1.0, 1.0] []\n"


def test_two_mpis_mixed_are_told(tmp_path):
    """The launcher says how many ranks it started; a foreign MPI sees one each."""
    done = subprocess.run(
        [*mpiexec_command(1), sys.executable, "-c", "import blinkrun; blinkrun.init()"],
        env={**rank_environ(20.0), "BLINKRUN_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "the launcher started 2 ranks but MPI sees 1" in done.stderr
