"""Names that a module of the alias takes from one of blinkrun's when they are used."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

__all__ = ["taken_from"]


def taken_from(module: str, source: ModuleType, names: Iterable[str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for `module` that looks `names` up in `source`.

    So nothing is imported that a script does not use: `horovod.keras` works where Keras runs on
    torch and there is no TensorFlow.
    """
    known = frozenset(names)

    def find(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return getattr(source, name)

    return find
