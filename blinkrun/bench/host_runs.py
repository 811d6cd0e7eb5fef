"""The runs of the report on several hosts, and how they are launched: on fake hosts, made for each.

MPICH is measured by a job of its own, in an environment that has it, on the same hosts right after
the job under the first MPI: two MPIs cannot be loaded in one process.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun.bench.fake_hosts import FakeHosts, fake_hosts
from blinkrun.bench.runs import UP_TO_64M, Run, command, output

RATES = {"1 Gbit/s": "1gbit", "no limit": ""}  # as tables and tc say it
SHAPES = ((2, 2), (4, 4), (1, 3), (2, 6), (2, 2, 2), (2, 2, 2, 2), (1, 1))
JUDGED_SMALL = ((2, 2), (4, 4))  # with all sizes; a call at 1 Gbit/s takes up to a second
TRAINED = (2, 2)


def run_name(slots: tuple[int, ...], rate: str, what: str = "") -> str:
    """Return the name of the run on hosts with so many ranks each.

    >>> run_name((2, 2), "1 Gbit/s")
    'hosts 2+2, 1 Gbit/s'
    """
    return f"hosts {'+'.join(map(str, slots))}{what}, {rate}"


def host_runs() -> list[Run]:
    """Return the runs of the report on several hosts, those with most goals first."""
    train = ("--training", "--models", "mlp25", "--against", "ddp,ddp-blink,flat,single")
    name = run_name(TRAINED, "1 Gbit/s", what=" training")
    training = Run(name, sum(TRAINED), train, slots=TRAINED, rate=RATES["1 Gbit/s"])
    first, *others = SHAPES
    return [
        *(_allreduce(first, rate) for rate in RATES),
        training,
        *(_allreduce(slots, rate) for rate in RATES for slots in others),
    ]


def _allreduce(slots: tuple[int, ...], rate: str) -> Run:
    sizes = UP_TO_64M if slots in JUDGED_SMALL else "4,16K,1M,16M,64M"
    words = ("--sizes", sizes, "--against", "mpi,gloo", "--warmup", "1", "--rounds", "5")
    is_drawn = slots == TRAINED
    return Run(run_name(slots, rate), sum(slots), words, is_drawn, slots=slots, rate=RATES[rate])


@dataclass(frozen=True, slots=True)
class OnFakeHosts:
    """Launches a run on fake hosts.

    Parameters
    ----------
    script : Path
        What makes them.
    mpich : Path or None
        A folder of programs, in which the blinkrun of an environment with MPICH is.
    """

    script: Path
    mpich: Path | None = None

    def __call__(self, run: Run) -> tuple[str, Any]:
        """Return the table and the JSON result of one launch, MPICH a peer in it."""
        with fake_hosts(self.script, len(run.slots), run.rate or None) as hosts:
            table, result = _job(run, hosts, Path(sys.executable).parent)
            if self.mpich is None or "--training" in run.arguments:
                return table, result
            alone = without_gloo(run)
            mpich_table, mpich_result = _job(alone, hosts, self.mpich)
        heading = f"# the same under MPICH: blinkrun {' '.join(command(alone))}"
        return f"{table}\n\n{heading}\n{mpich_table}", merged(result, mpich_result)


def without_gloo(run: Run) -> Run:
    """Return `run` with MPI as its only peer."""
    words = tuple("mpi" if word == "mpi,gloo" else word for word in run.arguments)
    return Run(run.name, run.ranks, words, slots=run.slots, rate=run.rate)


def merged(result: dict[str, Any], under_mpich: dict[str, Any]) -> dict[str, Any]:
    """Return `result` with the peer ``mpich``, and what blinkrun took over that MPI."""
    both = copy.deepcopy(result)
    for row, other in zip(both["rows"], under_mpich["rows"], strict=True):
        row["peers"]["mpich"] = other["peers"]["mpi"]
        row["over_mpich"] = {name: other[name] for name in ("time_us", "algbw_gb_per_s")}
        row["wrong"] += other["wrong"]
    return both


def _job(run: Run, hosts: FakeHosts, programs: Path) -> tuple[str, Any]:
    with tempfile.TemporaryDirectory(prefix="blinkrun-bench-") as folder:
        path = Path(folder) / "result.json"  # hosts share the files
        launcher = [str(programs / "blinkrun"), "--no-prefix", "--launch-agent", hosts.agent]
        words = [*launcher, *command(run, hosts.names), "--json", str(path)]
        return output(hosts.command(0, words)), json.loads(path.read_text())
