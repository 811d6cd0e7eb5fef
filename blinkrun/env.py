"""The environment variables that blinkrun reads, each in one place, each checked.

Layers below `communicator` never read the environment: what is parsed here is passed in.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from blinkrun.errors import UsageError
from blinkrun.units import parse_size

TIMEOUT = "BLINKRUN_TIMEOUT_S"  # longest wait of a rank for another in a collective
ARENA = "BLINKRUN_ARENA_BYTES"  # address space for each rank's shared buffers
DEVICE_ARENA = "BLINKRUN_DEVICE_ARENA_BYTES"  # of each rank's memory for buckets on its device
CACHE = "BLINKRUN_CACHE_DIR"  # where plans are kept
VERBOSE = "BLINKRUN_VERBOSE"  # say on stderr what was chosen and why
LAUNCHED = "BLINKRUN_LAUNCHED"  # set by the launcher in every rank
SIZE = "BLINKRUN_SIZE"  # set by the launcher: number of ranks
PLAN = "BLINKRUN_PLAN"  # set by the launcher: the file with the plan that it has made
EMULATION = "BLINKRUN_EMULATION"  # set by the launcher: the file with what `bench` emulates
BUCKET = "BLINKRUN_BUCKET_BYTES"  # size of gradient buckets
OVERLAP = "BLINKRUN_OVERLAP"  # auto | on | off
FUSION = "BLINKRUN_FUSION_BYTES"  # most bytes of named requests that travel as one
RESPONSE_CACHE = "BLINKRUN_RESPONSE_CACHE"  # named requests that are remembered; 0: none
STALL_WARNING = "BLINKRUN_STALL_WARNING_S"  # request that lacks ranks is reported then; 0: never
STALL_SHUTDOWN = "BLINKRUN_STALL_SHUTDOWN_S"  # after which it ends the job; 0: never
TIMELINE = "BLINKRUN_TIMELINE"  # file for the Chrome trace of the engine
TIMELINE_CYCLES = "BLINKRUN_TIMELINE_MARK_CYCLES"  # with marks for the rounds of negotiation
DDP = "BLINKRUN_DDP"  # set by the launcher for --ddp: init_process_group runs on blink
CHECK_NAN = "BLINKRUN_CHECK_NAN"  # refuse NaN and infinity in what is reduced
CHECK_PARAMETERS = "BLINKRUN_CHECK_PARAMETERS"  # steps between checks that parameters agree
HOST = "BLINKRUN_HOST"  # name of this rank's host, where the system's own does not tell
NETWORK_GBPS = "BLINKRUN_NETWORK_GBPS"  # of a host's network, where it is not to be measured
TUNE = "BLINKRUN_TUNE"  # auto | on | off: chunk sizes learned from the job's own calls
GPUS_PER_RANK = "BLINKRUN_GPUS_PER_RANK"  # 1, 2, …, or 1/2, 1/3, …: ranks that share a GPU
DEVICE_LINKS = "BLINKRUN_DEVICE_LINKS"  # auto | fabric | pcie | all: what joins GPUs

DEFAULT_TIMEOUT_S = 600.0
_PREFIX = "BLINKRUN_"
_OF_OTHERS = ("AGENT_OF", "CONTROL", "HOST_INDEX", "ISA", "NUM_HOSTS", "RANK", "REPORT_FD", "TOKEN")
_NEAR = 0.75  # ratio of difflib


def timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return the deadline of a collective in seconds, at least 0.001."""
    text = environ.get(TIMEOUT, "")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{TIMEOUT}={text} is no number of seconds") from None
    if not value >= 0.001:
        raise UsageError(f"{TIMEOUT}={text}: need at least 0.001 seconds")
    return value


def size_bytes(name: str, default: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return the size in bytes that variable `name` gives, or `default`."""
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return parse_size(text)
    except UsageError as err:
        raise UsageError(f"{name}: {err}") from None


def count(name: str, default: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return the whole number that variable `name` gives, 0 or more, or `default`."""
    text = environ.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={text}: need a whole number, 0 or more")
    return int(text)


def seconds(name: str, default: float, environ: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that variable `name` gives, 0 or more, or `default`."""
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}={text} is no number of seconds") from None
    if not value >= 0:
        raise UsageError(f"{name}={text}: need at least 0 seconds")
    return value


def network_gbps(environ: Mapping[str, str] = os.environ) -> Fraction | None:
    """Return what this host's network carries each way in Gbit/s; None where it is not said."""
    text = environ.get(NETWORK_GBPS, "")
    if not text:
        return None
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{NETWORK_GBPS}={text} is no number of Gbit/s") from None
    if not value >= Fraction(1, 1000):
        raise UsageError(f"{NETWORK_GBPS}={text}: need at least 0.001 Gbit/s")
    return value


def gpus_per_rank(environ: Mapping[str, str] = os.environ) -> Fraction:
    """Return how many GPUs each rank has for itself, or the part of one that it shares.

    >>> gpus_per_rank({GPUS_PER_RANK: "1/2"}), gpus_per_rank({})
    (Fraction(1, 2), Fraction(1, 1))
    """
    return parse_gpus_per_rank(environ.get(GPUS_PER_RANK, "") or "1", f"{GPUS_PER_RANK}=")


def ranks_per_gpu(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks may share a GPU."""
    return gpus_per_rank(environ).denominator


def parse_gpus_per_rank(text: str, name: str) -> Fraction:
    """Return a whole number of GPUs, or one GPU's part 1/n; `name` begins the error's line."""
    if not re.fullmatch(r"(1/)?[1-9][0-9]{0,3}", text):
        raise UsageError(f"{name}{text}: need a whole number of GPUs, or 1/2, 1/3, … of one")
    return Fraction(text)


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether variable `name` is set to something other than 0, off, no or false."""
    return environ.get(name, "").lower() not in ("", "0", "off", "no", "false")


def choice(
    name: str, options: Sequence[str], default: str, environ: Mapping[str, str] = os.environ
) -> str:
    """Return which of `options` variable `name` gives, or `default`."""
    text = environ.get(name, "") or default
    if text not in options:
        raise UsageError(f"{name}={text}: choose one of {', '.join(options)}")
    return text


def mistyped(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables that are none of ours, each with the one of ours that it nearly is.

    >>> mistyped({"BLINKRUN_TIMOUT_S": "30", "BLINKRUN_RUNS_OF_MINE": "7"})
    {'BLINKRUN_TIMOUT_S': 'BLINKRUN_TIMEOUT_S'}
    """
    ours = {value[len(_PREFIX) :] for value in _names()} | {*_OF_OTHERS}
    found = {}
    for name in environ:
        rest = name[len(_PREFIX) :]
        if not name.startswith(_PREFIX) or rest in ours:
            continue
        near = difflib.get_close_matches(rest, sorted(ours), n=1, cutoff=_NEAR)
        if near:
            found[name] = _PREFIX + near[0]
    return found


def _names() -> list[str]:
    values = globals().values()
    return [
        each for each in values if isinstance(each, str) and re.fullmatch(r"BLINKRUN_\w+", each)
    ]
