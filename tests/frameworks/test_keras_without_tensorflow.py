"""Keras' torch backend needs no TensorFlow."""

from __future__ import annotations

from conftest import Job


def test_the_torch_backend_loads_no_tensorflow(keras_job: Job) -> None:
    """Its cases run as if none was installed."""
    for is_torch, loaded in keras_job.of("modules_of_tensorflow"):
        assert (loaded == 0) == is_torch
