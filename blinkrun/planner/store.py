"""Plans on disk, so that a job does not plan what was planned before.

One file per input: topology with its relays, method, loss and planner version. A file appears
whole or not at all and carries the hash of its content; one that is broken is named and made anew;
a folder that cannot be used is named and costs time, never the job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from blinkrun import disk, env, log
from blinkrun.errors import PlanError, UsageError
from blinkrun.planner.make import make_plan
from blinkrun.planner.plan import PLAN_VERSION, Plan
from blinkrun.planner.solve import DEFAULT_LOSS
from blinkrun.topology.graph import Topology

_T = TypeVar("_T")
_said: set[Path] = set()  # what this process has warned of: once is enough


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for plans: as the environment says, else the user's cache folder.

    >>> cache_dir({"XDG_CACHE_HOME": "/home/ada/.cache"}).as_posix()
    '/home/ada/.cache/blinkrun/plans'
    """
    own = environ.get(env.CACHE, "")
    if own:
        return Path(own) / "plans"
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "blinkrun" / "plans"


def command_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `cache_dir`, which must be usable if the user has named it; for commands.

    Raises
    ------
    UsageError
        As `check_cache_dir`.
    """
    folder = cache_dir(environ)
    if environ.get(env.CACHE):
        check_cache_dir(folder)
    return folder


def check_cache_dir(folder: Path) -> None:
    """Make the folder for plans, and refuse it if it cannot be read and written.

    Raises
    ------
    UsageError
        With the reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.scandir(folder).close()
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "not writable"
    except OSError as err:
        reason = _reason(err)
    if reason:
        raise UsageError(
            f"plan cache {folder}: {reason}; set {env.CACHE} to a folder that can be written"
        )


def plan_of(
    topology: Topology, folder: Path | None = None, *, loss: Fraction = DEFAULT_LOSS
) -> Plan:
    """Return the plan of `topology`: the one kept in `folder`, or a new one that is then kept.

    Parameters
    ----------
    topology : Topology
    folder : Path, optional
        Made if missing. Without one nothing is read or kept.
    loss : Fraction, default 1/20
        As for `make_plan`.

    Raises
    ------
    UnreachableRankError, PlanError
        As `make_plan`. Trouble with the folder or a file in it is said, and is not an error.
    """
    topology_hash = topology.content_hash

    def decode(text: str) -> Plan:
        plan = Plan.from_json(text)
        if (plan.topology_hash, plan.loss) != (topology_hash, loss):
            raise PlanError(f"plan of {plan.machine}, another topology")
        return plan

    return cached(
        folder,
        f"plan {loss} {topology_hash}",
        lambda: make_plan(topology, loss=loss),
        encode=Plan.to_json,
        decode=decode,
    )


def cached(
    folder: Path | None,
    key: str,
    make: Callable[[], _T],
    *,
    encode: Callable[[_T], str],
    decode: Callable[[str], _T],
) -> _T:
    """Return what `folder` keeps under `key`, or what `make` returns, which is then kept.

    Parameters
    ----------
    folder : Path or None
        Made if missing; None: nothing is read or kept.
    key : str
        All that the result depends on, in words or hashes; the planner's version is added here.
    make : callable
        What to keep; called at most once. Its errors pass.
    encode, decode : callable
        To text and back. `decode` raises ValueError (as PlanError is), LookupError or TypeError if
        the text cannot be right.
    """
    if folder is None:
        return make()
    value = kept(folder, key, decode)
    if value is None:
        value = make()
        keep(folder, key, encode(value))
    return value


def kept(folder: Path, key: str, decode: Callable[[str], _T]) -> _T | None:
    """Return what `folder` keeps under `key`, None if that is nothing, or broken; see `cached`."""
    path = _place(folder, key)
    text = _read(path)
    if text is None:
        return None
    try:
        return decode(text)
    except (ValueError, LookupError, TypeError) as err:
        _say_broken(path, str(err))
        return None


def keep(folder: Path, key: str, text: str) -> None:
    """Let `folder` keep a text under `key`, in place of what it kept there before."""
    _write(text, _place(folder, key))


def _place(folder: Path, key: str) -> Path:
    return folder / f"{_digest(f'{PLAN_VERSION} {key}')[:32]}.plan"


def _read(path: Path) -> str | None:
    """Return the whole text that `_write` kept, or None if there is none or it is broken."""
    try:
        body = disk.read(path)
    except ValueError as err:
        _say_broken(path, f"{err}")
        return None
    except OSError as err:
        _say_unusable(path.parent, err)
        return None
    return None if body is None else body.decode()


def _write(text: str, path: Path) -> None:
    """Keep a text so that other processes see all of it or nothing."""
    try:
        disk.write(text.encode(), path)
    except OSError as err:
        _say_unusable(path.parent, err)


def _say_broken(path: Path, problem: str) -> None:
    _say_once(path, f"plan cache: {path} is broken ({problem}); planned anew")


def _say_unusable(folder: Path, err: OSError) -> None:
    hint = f"plans are not kept ({env.CACHE} names another folder)"
    _say_once(folder, f"plan cache {folder}: {_reason(err)}; {hint}")


def _say_once(about: Path, message: str) -> None:
    if about not in _said:
        _said.add(about)
        log.say(message)


def _reason(err: OSError) -> str:
    return err.strerror or str(err)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
