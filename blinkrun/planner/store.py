"""Plans on disk, so that a job does not plan what was planned before.

One file per topology, loss and planner version. A file appears whole or not at all; one that
cannot be read is made anew; a folder that cannot be used costs time, never the job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

from blinkrun import env
from blinkrun.errors import PlanError
from blinkrun.planner.make import make_plan
from blinkrun.planner.plan import PLAN_VERSION, Plan
from blinkrun.planner.solve import DEFAULT_LOSS
from blinkrun.topology.graph import Topology


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
        As `make_plan`. Trouble with the folder or a file in it is not an error.
    """
    if folder is None:
        return make_plan(topology, loss=loss)
    path = folder / f"{_key(topology, loss)}.json"
    plan = load(path)
    if plan is None or (plan.topology_hash, plan.loss) != (topology.content_hash, loss):
        plan = make_plan(topology, loss=loss)
        save(plan, path)
    return plan


def load(path: Path) -> Plan | None:
    """Return the plan in a file, or None if there is none that can be used."""
    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PlanError):
        return None


def save(plan: Plan, path: Path) -> bool:
    """Write a plan so that other processes see all of it or nothing; return whether it is kept."""
    # a name of its own for every writer, in the same folder so that the last step is a rename
    unfinished = path.with_name(f".unfinished-{os.urandom(8).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(plan.to_json())
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            return False
    except OSError:
        return False
    return True


def _key(topology: Topology, loss: Fraction) -> str:
    text = f"{PLAN_VERSION} {loss} {topology.content_hash}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
