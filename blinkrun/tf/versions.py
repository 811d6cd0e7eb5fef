"""Whether TensorFlow and Keras are there and new enough, found out without importing them.

Their import takes seconds, and on a machine without TensorFlow it must be possible to import
`blinkrun.tf.keras` for Keras' torch backend.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

TENSORFLOW_NEEDED = (2, 16)
KERAS_NEEDED = (3, 0)
LEGACY_NEEDED = (2, 16)

# One of these has the version of the package `tensorflow`.
_TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-rocm",
    "tensorflow-macos",
    "tensorflow-intel",
    "tf-nightly",
    "tf-nightly-cpu",
)


def check_tensorflow() -> None:
    """Return if TensorFlow can be used.

    Raises
    ------
    ImportError
        If it is not installed, or too old; one line that says which, and what to install.
    """
    _check("tensorflow", "TensorFlow", TENSORFLOW_NEEDED, _TENSORFLOWS, "blinkrun.tf")


def check_keras() -> None:
    """Return if the Keras that `tf.keras` is (or would be) can be used; raises as the above."""
    if is_legacy():
        _check("tf_keras", "tf_keras", LEGACY_NEEDED, ("tf_keras", "tf-keras-nightly"), _KERAS)
    else:
        _check("keras", "Keras", KERAS_NEEDED, ("keras", "keras-nightly"), _KERAS)


_KERAS = "blinkrun.tf.keras"


def is_legacy() -> bool:
    """Whether `tf.keras` is the package tf_keras, by what TensorFlow looks at.

    >>> os.environ["TF_USE_LEGACY_KERAS"] = "1"
    >>> is_legacy(), os.environ.pop("TF_USE_LEGACY_KERAS")
    (True, '1')
    """
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")


def keras_backend() -> str:
    """Return Keras' backend: of the Keras that is imported, else the one that it would choose.

    As Keras does it: KERAS_BACKEND, else "backend" in keras.json, else tensorflow.
    """
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend") and hasattr(keras, "__version__"):
        return str(keras.backend.backend())
    wanted = os.environ.get("KERAS_BACKEND")
    if wanted:
        return wanted
    try:
        settings = json.loads((_keras_home() / "keras.json").read_text())
        return str(settings.get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _keras_home() -> Path:
    if "KERAS_HOME" in os.environ:
        return Path(os.environ["KERAS_HOME"])
    home = Path("~").expanduser()
    return (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras"


def folders() -> list[str]:
    """Return files in the folders of TensorFlow and Keras, as many as are installed."""
    found = (_origin(name) for name in ("tensorflow", "keras", "tf_keras"))
    return [origin for origin in found if origin]


def _check(
    module: str, label: str, needed: tuple[int, ...], names: Iterable[str], who: str
) -> None:
    wanted = ".".join(map(str, needed))
    if _origin(module) is None:
        raise ImportError(
            f"{who} needs {label} {wanted} or newer, which is not installed; "
            f"pip install '{_to_install(module)}>={wanted}'",
            name=module,
        )
    version = _version(module, names)
    if version is not None and numbers(version) < needed:
        raise ImportError(
            f"{who} needs {label} {wanted} or newer, {version} is installed; "
            f"pip install '{_to_install(module)}>={wanted}'",
            name=module,
        )


def _to_install(module: str) -> str:
    return module.replace("_", "-")


def _origin(module: str) -> str | None:
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    spec = importlib.util.find_spec(module)
    return None if spec is None else spec.origin


def _version(module: str, names: Iterable[str]) -> str | None:
    """Return the version of what is installed; None if nobody knows it."""
    loaded = getattr(sys.modules.get(module), "__version__", None)
    if loaded is not None:
        return str(loaded)
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with.

    >>> numbers("2.16.1"), numbers("2.22.0-dev20260101"), numbers("3.0rc1")
    ((2, 16, 1), (2, 22, 0), (3, 0))
    """
    begin = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(each) for each in begin[0].split(".")) if begin else ()
