"""A function that makes an optimizer takes the place of the class that a saved model names."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

makers = pytest.importorskip("blinkrun.tf.keras.makers", reason="needs tf", exc_type=ImportError)


def saved(folder: Path, optimizer: Any) -> Path:
    path = folder / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps({"compile_config": {"optimizer": optimizer}}))
    return path


def make(**config: Any) -> dict[str, Any]:
    return config


def test_it_becomes_a_class_that_hands_the_configuration_on(tmp_path: Path) -> None:
    path = saved(tmp_path, {"class_name": "Own", "config": {}})
    known = makers.with_makers({"Own": make, "loss": make, "Other": dict}, path)
    assert known["Own"].__name__ == "Own"
    assert known["Own"].from_config({"learning_rate": 0.5}) == {"learning_rate": 0.5}
    assert (known["loss"], known["Other"]) == (make, dict)


@pytest.mark.parametrize("optimizer", [None, "rmsprop", {"class_name": "Adam"}])
def test_functions_for_something_else_stay(tmp_path: Path, optimizer: Any) -> None:
    assert makers.with_makers({"Own": make}, saved(tmp_path, optimizer)) == {"Own": make}
    assert makers.with_makers({"Own": make}, tmp_path / "absent.keras") == {"Own": make}
    assert makers.with_makers({"Own": make}, object()) == {"Own": make}


def test_the_optimizer_is_found_in_hdf5_as_well(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs h5py")
    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        file.attrs["training_config"] = json.dumps({"optimizer_config": {"class_name": "Own"}})
    assert makers.saved_optimizer(path) == "Own"
