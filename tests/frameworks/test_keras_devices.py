"""Keras' torch backend on two ranks with (fake) devices."""

from pathlib import Path

import pytest
from support import fake_kernel
from support.harness import RankRunner
from support.needs import need

need("torch", "keras")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.mark.timeout(320)  # where others compile, to import takes minutes
def test_gradients_are_reduced_where_they_are(tmp_path: Path, plan_cache: Path):
    fake_kernel.load()
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache), "KERAS_BACKEND": "torch"}
    for rank in RankRunner(tmp_path, environ=environ)(
        "keras_devices_suite:run_all", 2, timeout_s=300
    ):
        assert rank["device"] == rank["cpu"]
        assert rank["launches"] > 0
        text, after = rank["said"]
        assert "rank 1" in text
        assert "gradient" in text
        assert after == [[1.5, 1.5]]
        assert "on device" in rank["places"]
        assert "the host" in rank["places"]
        assert rank["left"] == []
