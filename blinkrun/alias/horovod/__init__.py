"""Stands in for Horovod: what a script gets from ``import horovod.torch`` and the like.

``blinkrun --horovod`` puts the folder that holds this package first on PYTHONPATH, for its job
alone. All work is done by `blinkrun.torch` and `blinkrun.tf`; here are Horovod's names for it.
"""

import sys
from importlib.machinery import ModuleSpec
from typing import NoReturn

from blinkrun.errors import UsageError
from blinkrun.version import __version__ as _blinkrun
from horovod.version import __version__

__all__ = ["__version__", "run", "run_elastic"]

ELASTIC = "elastic training is a later part of blinkrun"
AGGREGATION = "gradients are added up inside of the wrapped optimizer"
REASONS = {
    "tensorflow.gradient_aggregation": AGGREGATION,
    "tensorflow.gradient_aggregation_eager": AGGREGATION,
    "tensorflow.data": "every rank reads for itself; blinkrun.tf.shard gives it its part",
    "tensorflow.elastic": ELASTIC,
    "tensorflow.keras.elastic": ELASTIC,
    "keras.elastic": ELASTIC,
    "_keras": "it is what horovod.keras is made of there; import horovod.tensorflow.keras",
    "mxnet": "MXNet is retired and not part of blinkrun",
    "spark": "jobs are started by blinkrun, not by Spark",
    "ray": "jobs are started by blinkrun, not by Ray",
    "data": "its loaders are those of Spark; every rank reads for itself",
    "runner": "jobs are started by the command blinkrun",
    "torch.elastic": ELASTIC,
    "common.elastic": ELASTIC,
}


def absent(name: str) -> str:
    """Return why `name`, as ``horovod.spark.run``, is not here, in one line."""
    below = name.removeprefix("horovod.")
    reasons = (why for part, why in REASONS.items() if f"{below}.".startswith(f"{part}."))
    return f"{name} is absent in blinkrun {_blinkrun}: {next(reasons, 'it has no meaning here')}"


class Absent:
    """The last finder of modules: says why a module of Horovod's is not here."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Raise for what other finders have not found below `horovod`."""
        if name.startswith("horovod."):
            raise ModuleNotFoundError(absent(name), name=name)
        return None


def run(*args: object, **options: object) -> NoReturn:
    """Raise: a program cannot start its own job here."""
    raise UsageError("horovod.run is absent: start the job by blinkrun -np N --horovod train.py")


def run_elastic(*args: object, **options: object) -> NoReturn:
    """Raise: there are no elastic jobs yet."""
    raise UsageError(absent("horovod.torch.elastic"))


sys.meta_path.append(Absent)
