"""Names of variables that are the same on ranks which have built the same model.

Keras counts the layers of a kind that a process has made, ``dense``, ``dense_1``, so a rank that
has made another model before, or has loaded one, has other numbers for the same layers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

_NUMBERED = re.compile(r"(.*?)_(\d+)")
_WORD_BEGINS = re.compile(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])")


def names_of(variables: Sequence[Any]) -> list[str]:
    """Return a name for each variable, all of them different, by which ranks know it."""
    paths = [str(getattr(each, "path", None) or each.name) for each in variables]
    return renumbered(paths, _kinds_of_layers())


def renumbered(paths: Iterable[str], kinds: frozenset[str]) -> list[str]:
    """Return paths whose automatic numbers begin at nothing, as in a process with one model.

    Parameters
    ----------
    paths : iterable of str
        Of variables, such as ``sequential_2/dense_7/kernel``.
    kinds : frozenset of str
        Names that are given automatically, without their numbers.

    Examples
    --------
    >>> kinds = frozenset({"dense", "sequential"})
    >>> renumbered(["sequential_2/dense_7/kernel", "sequential_2/dense_9/kernel"], kinds)
    ['sequential/dense/kernel', 'sequential/dense_1/kernel']
    >>> renumbered(["block_3/kernel", "block_3/kernel"], kinds)
    ['block_3/kernel', 'block_3/kernel (2)']
    """
    given: dict[str, dict[str, int]] = {}
    seen: dict[str, int] = {}
    names = []
    for path in paths:
        parts = []
        for part in path.split("/"):
            match = _NUMBERED.fullmatch(part)
            kind = match[1] if match else part
            if kind not in kinds:
                parts.append(part)
                continue
            numbers = given.setdefault(kind, {})
            number = numbers.setdefault(part, len(numbers))
            parts.append(f"{kind}_{number}" if number else kind)
        name = "/".join(parts)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


@cache
def _kinds_of_layers() -> frozenset[str]:
    """Return the automatic names of the layers and models of the Keras that is loaded."""
    kinds = {"model"}
    for module in ("keras", "tf_keras"):
        keras = sys.modules.get(module)
        for part in ("layers", "models"):
            classes = vars(getattr(keras, part, None) or object)
            kinds |= {_snake(each) for each, what in classes.items() if isinstance(what, type)}
    return frozenset(kinds)


def _snake(name: str) -> str:
    """Return the name that Keras gives to layers of a class.

    >>> [_snake(each) for each in ("Conv2DTranspose", "BatchNormalization", "ReLU", "GRUCell")]
    ['conv2d_transpose', 'batch_normalization', 're_lu', 'gru_cell']
    """
    return _WORD_BEGINS.sub("_", name).lower()
