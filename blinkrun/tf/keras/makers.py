"""Functions that make optimizers, given as custom objects in the place of classes.

Keras looks a saved optimizer up by the name of its class and asks what it finds for
``from_config``; it takes a function for the optimizer itself.
"""

from __future__ import annotations

import json
import os
import types
import zipfile
from collections.abc import Callable, Mapping
from typing import Any


def with_makers(custom_objects: Mapping[str, Any], filepath: Any) -> dict[str, Any]:
    """Return `custom_objects`, with a class in the place of a function that makes the optimizer.

    Parameters
    ----------
    custom_objects : mapping
        By name; a function that has the name of the optimizer's class takes its configuration as
        keyword arguments.
    filepath : path
        Of the saved model, which names the class.
    """
    known = dict(custom_objects)
    if any(isinstance(each, types.FunctionType) for each in known.values()):
        name = saved_optimizer(filepath)
        if name is not None and isinstance(known.get(name), types.FunctionType):
            known[name] = _as_class(name, known[name])
    return known


def saved_optimizer(filepath: Any) -> str | None:
    """Return the name of the class of the optimizer in a file; None where none is found."""
    path = os.fspath(filepath) if isinstance(filepath, str | os.PathLike) else ""
    if not os.path.isfile(path):
        return None
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json")).get("compile_config") or {}
        found = config.get("optimizer")
    else:
        import h5py  # noqa: PLC0415 - Keras needs it as well

        with h5py.File(path, "r") as file:
            text = file.attrs.get("training_config", "{}")
        found = json.loads(text).get("optimizer_config")
    return found.get("class_name") if isinstance(found, dict) else None


def _as_class(name: str, make: Callable[..., Any]) -> type:
    def from_config(_: type, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        return make(**config)

    return type(name, (), {"from_config": classmethod(from_config), "__module__": __name__})
