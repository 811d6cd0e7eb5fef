"""What each rank of a test job runs: ``python -m support.rank_main FOLDER`` (see harness.py)."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from support.places import CASE_FOLDERS, TESTS

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def own_rank() -> int:
    """The rank as the launcher says it: known before MPI is up, so that its failure can be told."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def write_to(path: Path) -> None:
    """Send all that this process writes to `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def call(case: str, params: dict[str, Any]) -> Any:
    sys.path[:0] = [str(TESTS / folder) for folder in CASE_FOLDERS]
    module, _, function = case.partition(":")
    return getattr(importlib.import_module(module), function)(**params)


def main() -> None:
    out = Path(sys.argv[1])
    rank = own_rank()
    (out / f"{rank}.pid").write_text(str(os.getpid()))
    write_to(out / f"{rank}.log")
    spec = json.loads((out / "spec.json").read_text())
    if spec["hosts"]:
        os.environ["BLINKRUN_HOST"] = spec["hosts"][rank]
    # Where it hung is in the log before the parent ends the job.
    faulthandler.dump_traceback_later(max(spec["timeout_s"] - 2, 1), exit=False)
    try:
        result = {"result": call(spec["case"], spec["params"])}
        text = json.dumps(result)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not sys.exit: MPI's own end would wait for the other ranks
    faulthandler.cancel_dump_traceback_later()
    part = out / f"{rank}.part"
    part.write_text(text)
    part.rename(out / f"{rank}.json")


if __name__ == "__main__":
    main()
