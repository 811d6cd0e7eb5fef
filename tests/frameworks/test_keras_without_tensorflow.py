"""Keras' torch backend needs no TensorFlow."""

from __future__ import annotations

import pytest
from support.harness import RankRunner
from support.needs import need


def test_the_torch_backend_trains_where_there_is_no_tensorflow(tmp_path, plan_cache):
    need("keras")
    need("torch")
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache), "KERAS_BACKEND": "torch"}
    answers = RankRunner(tmp_path, environ=environ)("keras_alone_program:run", 2, timeout_s=110)
    total, loaded, weights = answers[0]
    assert total == 2.0
    assert loaded == []
    assert answers[1] == [total, loaded, weights]
