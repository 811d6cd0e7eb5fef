"""Calls on (fake) devices of ranks that believe they are on several hosts."""

import time

import pytest
from support import fake_kernel

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

LAYOUTS = {"1+1": [0, 1], "2+2": [0, 0, 1, 1], "1+3": [0, 1, 1, 1]}  # the host of each rank


@pytest.fixture(autouse=True, scope="module")
def kernel():
    """Built before ranks ask for it: their deadlines are for the calls."""
    return fake_kernel.load()


@pytest.fixture
def run_hosts(run_ranks):
    def run(case, hosts, **params):
        env = {"BLINKRUN_DEVICE_ARENA_BYTES": "32M", "BLINKRUN_NETWORK_GBPS": "10"}
        return run_ranks(
            f"hosts_device_cases:{case}", size=len(hosts), hosts=hosts, env=env, **params
        )

    return run


@pytest.mark.parametrize(("layout", "arena"), [("1+1", "all"), ("2+2", "some"), ("1+3", "none")])
def test_every_collective(run_hosts, layout, arena):
    hosts = LAYOUTS[layout]
    assert run_hosts("every_collective", hosts, in_arena=arena) == [[]] * len(hosts)


def test_more_calls_under_way_than_hosts_tell_of_ahead(run_hosts):
    assert run_hosts("many_calls_under_way", LAYOUTS["1+1"], calls=40) == [True, True]


@pytest.mark.parametrize("odd", [1, 3])
def test_different_calls_are_told_and_the_next_call_works(run_hosts, odd):
    """On the host of the odd rank by its kernels, on the other by what hosts tell each other."""
    for said, total in run_hosts("different_calls", LAYOUTS["2+2"], odd=odd):
        assert len(said) == 2
        for text in said:
            assert "differs between ranks" in text
            assert f"rank {odd}" in text
        assert "of 500 float32" in said[0]
        assert "(max)" in said[1]
        assert total == 4.0


@pytest.mark.parametrize("how", ["leaves", "is late"])
def test_a_rank_that_ends_ends_the_calls_on_every_host(run_hosts, how):
    *others, ended = run_hosts("a_rank_that_ends", LAYOUTS["2+2"], how=how, ends=3, timeout_s=40.0)
    assert ended is None
    kinds = {"leaves": "PeerLeftError", "is late": "CollectiveTimeoutError"}
    for kind, text, seconds in others:
        assert kind == kinds[how], text
        assert "rank 3" in text
        assert seconds < 10


def test_the_job_ends_when_a_rank_is_killed(run_hosts):
    """Kernels that wait for it, and threads that carry messages, hold up nobody's end."""
    started = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match=r"ended with exit code [1-9]"):
        run_hosts("a_rank_that_ends", LAYOUTS["1+1"], how="is killed", ends=1, timeout_s=50.0)
    assert time.monotonic() - started < 30


def test_a_capture_is_refused_and_nothing_is_lost(run_hosts):
    for said, total in run_hosts("capture_is_refused", LAYOUTS["1+1"]):
        assert "captured in a CUDA graph" in said
        assert total == 4.0


def test_between_calls_nobody_looks(run_hosts):
    assert max(run_hosts("cores_while_idle", LAYOUTS["1+1"], seconds=2)) < 0.02
