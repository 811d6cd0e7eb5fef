"""TensorFlow on eager tensors of a (fake) GPU: most by DLPack, the rest by the host."""

import pytest
from support.harness import RankRunner
from support.needs import need

need("tensorflow")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

RANKS = 2
JOB_TIMEOUT_S = 280
# What returns more than complaints.
ANSWERS = ("allreduce_digests", "launches", "modules_of_tensorflow")


@pytest.mark.timeout(JOB_TIMEOUT_S + 20)
def test_results_are_those_of_the_host(tmp_path, plan_cache):
    environ = {
        "BLINKRUN_CACHE_DIR": str(plan_cache),
        "BLINKRUN_DEVICE_ARENA_BYTES": "96M",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    case, only = "tf_devices_suite:run_all", "tf_ops_cases"
    results = RankRunner(tmp_path, environ=environ)(
        case, RANKS, timeout_s=JOB_TIMEOUT_S, ranks=RANKS, only=only
    )
    assert results[0]["allreduce_digests"] == results[1]["allreduce_digests"]
    for rank, result in enumerate(results):
        assert result.pop("launches")["returned"] > 80  # of eager allreduces and broadcasts
        for name, answer in result.items():
            assert "raised" not in answer, f"{name} on rank {rank}\n{answer['raised']}"
            if name not in ANSWERS:
                assert not answer["returned"], f"{name} on rank {rank}: {answer['returned'][:5]}"
