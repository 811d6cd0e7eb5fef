"""Names of calls in a graph: the same on all ranks, whatever has been traced there before.

TensorFlow numbers the graphs that it makes for loops, branches and gradients as it goes along, so
ranks that have traced different things have different numbers: those are left out.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from blinkrun.adapter.where import first_place

_NUMBER = re.compile(r"(_\d+)+_?$")
_given: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def in_graph(
    name: str | None, kind: str, *, ignore_name_scope: bool = False, is_whole: bool = False
) -> str:
    """Return the name of a call in the graph that is being built, unlike that of any other in it.

    Parameters
    ----------
    name : str or None
        As the user gave it.
    kind : str
        Of the call, for one without a name: that is made of the name of the function as well, and
        of its branch or loop.
    ignore_name_scope : bool
        Leave out the name scope, which may differ between ranks.
    is_whole : bool
        `name` has all that already.
    """
    built = tf.compat.v1.get_default_graph()
    if not is_whole:
        scope = "" if ignore_name_scope else built.get_name_scope()
        parts = [scope, name] if name else [*_around(built), scope, kind]
        name = "/".join(filter(None, parts))
    given = _given.setdefault(built, {})
    count = given[name] = given.get(name, -1) + 1
    return f"{name}_{count}" if count else str(name)


def _around(built: Any) -> list[str]:
    """Return the names of a graph and of those that it is part of, the outermost first.

    That is the function. Which other one happened to call it when it was traced says nothing.
    """
    names: list[str] = []
    while built is not None:
        names.insert(0, _NUMBER.sub("", getattr(built, "name", "")))
        is_part = type(built).__name__ != "FuncGraph"  # a loop or branch
        built = getattr(built, "outer_graph", None) if is_part else None
    return names


def place_of_op(op: tf.Operation) -> str:
    """Return ``file:line`` of the user's code that made `op`, empty if that is not known."""
    return first_place((frame.filename, frame.lineno) for frame in reversed(op.traceback or ()))
