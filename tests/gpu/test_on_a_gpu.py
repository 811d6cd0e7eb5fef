"""On a machine with a GPU: all parts of `make gpu-check`, with few small sizes."""

from pathlib import Path

import pytest

from blinkrun.bench import gpu_check
from blinkrun.errors import DeviceError
from blinkrun.executors import cuda


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_everything_is_right_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # counts from the first call on
    try:
        cuda.open_device(0, 0)
    except DeviceError as err:
        pytest.skip(f"gpu: {err}")
    for name in ("BLINKRUN_GPUS_PER_RANK", "BLINKRUN_CACHE_DIR"):  # the script sets them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert gpu_check.main(["--quick", "--out", str(tmp_path)]) == 0
