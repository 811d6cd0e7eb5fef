"""Horovod's names in blinkrun's terms: its environment variables and its launcher's options.

Standard library and base alone: the launcher reads it before any rank is there, and the package
that stands in for `horovod` reads it in the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blinkrun import env, version
from blinkrun.errors import UsageError
from blinkrun.units import parse_size

PREFIX = "HOROVOD_"
# Set by Horovod's own launchers and builds, or by blinkrun's tests: nothing that a user asks for.
_SILENT = ("HOROVOD_WITH", "HOROVOD_BUILD", "HOROVOD_GPU", "HOROVOD_CPU_OPERATIONS")


@dataclass(frozen=True, slots=True)
class Translated:
    """What HOROVOD_* variables mean here.

    `settings` are blinkrun's variables with values; `ignored` tells by name why one has no effect.
    """

    settings: dict[str, str]
    ignored: dict[str, str]


def alias_folder() -> str:
    """Return the folder that holds the package `horovod`, to be put first on PYTHONPATH."""
    return str(Path(version.__file__).parent / "alias")


def with_alias(python_path: str) -> str:
    """Return PYTHONPATH with the alias first, for the ranks of one job.

    >>> with_alias("/a:/b").split(":")[1:]
    ['/a', '/b']
    """
    return ":".join([alias_folder(), *(part for part in python_path.split(":") if part)])


def _is_on(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "off", "no")


def _timeline(text: str) -> str | None:
    """DYNAMIC asks for start_timeline() only, which needs no permission here."""
    return None if text == "DYNAMIC" else text


def _never(text: str) -> str | None:
    return "0" if _is_on(text) else None


def _whole(text: str) -> str:
    return str(int(text))


def _seconds(text: str) -> str:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return f"{value:g}"


def _deadline(text: str) -> str | None:
    return _seconds(text) if float(text) > 0 else None


def _flag(text: str) -> str | None:
    return "1" if _is_on(text) else None


_Meaning = tuple[str, Callable[[str], str | None]]
# In this order: of two that mean the same, the later one counts.
SETTINGS: dict[str, _Meaning] = {
    "HOROVOD_FUSION_THRESHOLD": (env.FUSION, lambda text: str(parse_size(text))),
    "HOROVOD_CACHE_CAPACITY": (env.RESPONSE_CACHE, _whole),
    "HOROVOD_TIMELINE": (env.TIMELINE, _timeline),
    "HOROVOD_TIMELINE_MARK_CYCLES": (env.TIMELINE_CYCLES, _flag),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": (env.STALL_WARNING, _seconds),
    "HOROVOD_STALL_CHECK_DISABLE": (env.STALL_WARNING, _never),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": (env.STALL_SHUTDOWN, _seconds),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": (env.TIMEOUT, _deadline),
}

_NO_CYCLES = "nothing runs in cycles here: a request goes out when it is made"
_BY_PLAN = "the plan chooses how data travels (blinkrun --show-plan)"
_MEASURED = "sizes are chosen by the plan and by measurement (BLINKRUN_TUNE)"
_ONE_CONTROLLER = "ranks meet over MPI and talk through shared memory; there is one way"
_NO_GPU = "no GPU is used in this version"
_LATER = "elastic jobs are a later part of blinkrun"
IGNORED: dict[str, str] = {
    "HOROVOD_CYCLE_TIME": _NO_CYCLES,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": _BY_PLAN,
    "HOROVOD_HIERARCHICAL_ALLGATHER": _BY_PLAN,
    "HOROVOD_TORUS_ALLREDUCE": _BY_PLAN,
    "HOROVOD_AUTOTUNE": _MEASURED,
    "HOROVOD_AUTOTUNE_LOG": _MEASURED,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _MEASURED,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _MEASURED,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _MEASURED,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _MEASURED,
    "HOROVOD_CONTROLLER": _ONE_CONTROLLER,
    "HOROVOD_GLOO": _ONE_CONTROLLER,
    "HOROVOD_GLOO_IFACE": _ONE_CONTROLLER,
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": _ONE_CONTROLLER,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": _ONE_CONTROLLER,
    "HOROVOD_MPI": _ONE_CONTROLLER,
    "HOROVOD_CCL": _ONE_CONTROLLER,
    "HOROVOD_CCL_CACHE": _ONE_CONTROLLER,
    "HOROVOD_MPI_THREADS_DISABLE": "between hosts MPI must take calls of several threads",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "process sets can always be added and removed",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group completes together, whatever it is fused with",
    "HOROVOD_THREAD_AFFINITY": "no thread is pinned",
    "HOROVOD_LOG_LEVEL": "blinkrun --verbose says what was chosen and why",
    "HOROVOD_LOG_HIDE_TIME": "messages carry no time",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": _BY_PLAN,
    "HOROVOD_NUM_NCCL_STREAMS": _NO_GPU,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _NO_GPU,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": _NO_GPU,
    "HOROVOD_DISABLE_NVTX_RANGES": _NO_GPU,
    "HOROVOD_ENABLE_XLA_OPS": "XLA compiles no collectives here; set jit_compile=False",
    "HOROVOD_ELASTIC": _LATER,
    "HOROVOD_ELASTIC_TIMEOUT": _LATER,
    "HOROVOD_START_TIMEOUT": "give blinkrun --start-timeout S",
    "HOROVOD_RANK": "ranks are numbered by the launcher; hvd.rank() tells",
    "HOROVOD_SIZE": "the number of ranks is that of blinkrun -np",
    "HOROVOD_LOCAL_RANK": "hvd.local_rank() tells",
    "HOROVOD_LOCAL_SIZE": "hvd.local_size() tells",
    "HOROVOD_CROSS_RANK": "hvd.cross_rank() tells",
    "HOROVOD_CROSS_SIZE": "hvd.cross_size() tells",
    "HOROVOD_HOSTNAME": "hosts are found by the launcher",
    "HOROVOD_SECRET_KEY": "nothing listens on the network",
}


def translate(environ: Mapping[str, str]) -> Translated:
    """Return what the HOROVOD_* variables of `environ` ask of blinkrun.

    A variable of blinkrun's own that is set goes before Horovod's.

    Raises
    ------
    UsageError
        If a value cannot be understood.

    Examples
    --------
    >>> translate({"HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_CYCLE_TIME": "1"})
    ... # doctest: +NORMALIZE_WHITESPACE
    Translated(settings={'BLINKRUN_FUSION_BYTES': '1048576'},
      ignored={'HOROVOD_CYCLE_TIME':
               'nothing runs in cycles here: a request goes out when it is made'})
    """
    settings: dict[str, str] = {}
    for name, (ours, meaning) in SETTINGS.items():
        text = environ.get(name, "").strip()
        if not text or environ.get(ours):
            continue
        try:
            value = meaning(text)
        except (ValueError, UsageError):
            raise UsageError(f"{name}={text} means nothing; give what {ours} takes") from None
        if value is not None:
            settings[ours] = value
    return Translated(settings, {n: _why(n) for n in sorted(environ) if _has_no_effect(n)})


def _has_no_effect(name: str) -> bool:
    return name.startswith(PREFIX) and name not in SETTINGS and not name.startswith(_SILENT)


def _why(name: str) -> str:
    return IGNORED.get(name, "not a variable that blinkrun knows")


# Options of horovodrun: what to write instead, or why there is nothing to write.
RENAMED: dict[str, str] = {
    "--num-proc": "write -np N",
    "--timeline-filename": "write --timeline FILE",
    "--timeline-mark-cycles": f"write -x {env.TIMELINE_CYCLES}=1",
    "--no-timeline-mark-cycles": "that is so unless it is asked for",
    "--fusion-threshold-mb": "write --fusion-bytes SIZE, such as 64M",
    "--cache-capacity": f"write -x {env.RESPONSE_CACHE}=N",
    "--disable-cache": "nothing is remembered between jobs but plans (BLINKRUN_CACHE_DIR)",
    "--cycle-time-ms": _NO_CYCLES,
    "--stall-check": "it is on; --stall-warning S says after how long",
    "--no-stall-check": "write --stall-warning 0",
    "--stall-check-warning-time-seconds": "write --stall-warning S",
    "--stall-check-shutdown-time-seconds": "write --stall-shutdown S",
    "--gloo-timeout-seconds": "write --timeout S",
    "--output-filename": "write --output-dir DIR",
    "--prefix-output-with-timestamp": "lines carry the rank, no time",
    "--check-build": "hvd.mpi_built() and the like tell; blinkrun --verbose names the MPI",
    "--config-file": "write the options on the command line",
    "--mpi-args": "write --mpi MPIEXEC, and settings of the MPI as variables with -x",
    "--gloo": _ONE_CONTROLLER,
    "--jsrun": _ONE_CONTROLLER,
    "--tcp": _ONE_CONTROLLER,
    "--binding-args": "no rank is bound to cores",
    "--thread-affinity": "no thread is pinned",
    "--mpi-threads-disable": "between hosts MPI must take calls of several threads",
    "--no-mpi-threads-disable": "between hosts MPI must take calls of several threads",
    "--num-nccl-streams": _NO_GPU,
    "--hierarchical-allreduce": _BY_PLAN,
    "--no-hierarchical-allreduce": _BY_PLAN,
    "--hierarchical-allgather": _BY_PLAN,
    "--no-hierarchical-allgather": _BY_PLAN,
    "--torus-allreduce": _BY_PLAN,
    "--no-torus-allreduce": _BY_PLAN,
    "--autotune": _MEASURED,
    "--no-autotune": _MEASURED,
    "--autotune-log-file": _MEASURED,
    "--autotune-warmup-samples": _MEASURED,
    "--autotune-steps-per-sample": _MEASURED,
    "--autotune-bayes-opt-max-samples": _MEASURED,
    "--autotune-gaussian-process-noise": _MEASURED,
    "--min-np": _LATER,
    "--min-num-proc": _LATER,
    "--max-np": _LATER,
    "--max-num-proc": _LATER,
    "--slots-per-host": _LATER,
    "--elastic-timeout": _LATER,
    "--reset-limit": _LATER,
    "--blacklist-cooldown-range": _LATER,
    "--host-discovery-script": _LATER,
    "--log-level": "write --verbose",
    "--log-with-timestamp": "messages carry no time",
    "--log-without-timestamp": "messages carry no time",
    "--log-hide-timestamp": "messages carry no time",
    "--no-log-hide-timestamp": "messages carry no time",
    "-prefix-timestamp": "lines carry the rank, no time",
    "-cb": "hvd.mpi_built() and the like tell; blinkrun --verbose names the MPI",
    "-p": "write --launch-agent 'ssh -p PORT'",
    "--ssh-port": "write --launch-agent 'ssh -p PORT'",
    "-i": "write --launch-agent 'ssh -i FILE'",
    "--ssh-identity-file": "write --launch-agent 'ssh -i FILE'",
}
