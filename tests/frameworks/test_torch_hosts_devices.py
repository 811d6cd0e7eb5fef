"""The engine, the optimizer and torch.distributed on (fake) devices of ranks on two hosts."""

from pathlib import Path

import pytest
from support import fake_kernel
from support.harness import RankRunner

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

pytestmark = pytest.mark.timeout(320)  # where others compile, to import takes minutes

HOSTS = [0, 1, 1]  # of each rank
SINGLE = 1e-6  # float32: sums in another order


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path):
    """What each rank found; most of a rank's time is torch's start and its first optimizer's."""
    fake_kernel.load()
    folder = tmp_path_factory.mktemp("hosts")
    environ = {
        "BLINKRUN_CACHE_DIR": str(plan_cache),
        "BLINKRUN_DEVICE_ARENA_BYTES": "32M",
        "BLINKRUN_NETWORK_GBPS": "10",
    }
    case, store = "torch_hosts_devices_cases:run_all", str(folder / "store")
    run = RankRunner(folder, environ=environ)
    return run(case, len(HOSTS), hosts=HOSTS, timeout_s=300, store=store)


def test_a_rank_that_has_joined_takes_part(ranks):
    assert [rank["joined"] for rank in ranks] == [6.0, 0.0, 6.0]


def test_named_calls_in_any_order(ranks):
    for rank in ranks:
        assert rank["hosts"] == 2
        assert rank["in any order"] == []
        assert 0 < rank["launches"] < rank["sums"], "small ones are fused"


def test_what_moves_and_scatters_also_unevenly(ranks):
    assert [rank["moved"] for rank in ranks] == [[]] * len(HOSTS)


def test_different_shapes_are_told_and_the_next_call_works(ranks):
    for rank in ranks:
        text, after = rank["said"]
        assert "rank 1: allreduce 'differs' has shape (4,)" in text
        assert after == [len(HOSTS)] * 3


def test_training_is_that_of_one_process_on_the_cpu(ranks):
    for rank in ranks:
        assert rank["optimizer"]["apart"] < SINGLE
        assert rank["optimizer"]["bits"] == ranks[0]["optimizer"]["bits"]
        assert rank["optimizer"]["in the arena"]


def test_torch_distributed(ranks):
    for rank in ranks:
        assert rank["calls"] == []
        assert rank["own stream"]
        assert rank["ddp"]["apart"] < SINGLE
        assert rank["ddp"]["bits"] == ranks[0]["ddp"]["bits"]


def test_nothing_is_left_on_the_devices(ranks):
    assert [rank["left"] for rank in ranks] == [[]] * len(HOSTS)
