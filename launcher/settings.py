"""What launch options set in the ranks' environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from blinkrun import env
from blinkrun.errors import UsageError
from blinkrun.launcher.horovod import translate, with_alias
from blinkrun.launcher.options import Options
from blinkrun.log import say

PYTHON_PATH = "PYTHONPATH"
HOST = "127.0.0.1"


def settings_of(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `options` set in the ranks; those of ``-x`` go before them.

    Parameters
    ----------
    options : Options
        The command line.
    environ : mapping
        What the ranks see otherwise: the launcher's environment with the variables of ``-x``.

    Raises
    ------
    UsageError
        If a number of seconds is negative, the folder of a timeline is not there, or a HOROVOD_*
        variable has a value that means nothing.
    """
    found: dict[str, str] = {}
    if options.timeline is not None:
        found[env.TIMELINE] = _file(options.timeline)
    for option, name, value in (
        ("--stall-warning", env.STALL_WARNING, options.stall_warning_s),
        ("--stall-shutdown", env.STALL_SHUTDOWN, options.stall_shutdown_s),
    ):
        if value is not None:
            found[name] = _seconds(option, value)
    if options.fusion_bytes is not None:
        found[env.FUSION] = str(options.fusion_bytes)
    if options.gpus_per_rank is not None:
        found[env.GPUS_PER_RANK] = options.gpus_per_rank
    if options.check_nan:
        found[env.CHECK_NAN] = "1"
    if options.ddp:
        found.update(_meeting_place())
    if options.horovod:
        translated = translate({**environ, **found})  # in the ranks it is done again, at hvd.init()
        found[PYTHON_PATH] = with_alias(environ.get(PYTHON_PATH, ""))
        if options.verbose:
            _explain(translated.ignored)
    return found


def _file(path: str) -> str:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--timeline {path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise UsageError(f"--timeline {path}: that is a folder; name a file")
    return str(Path(path).absolute())


def _seconds(option: str, value: float) -> str:
    if not 0 <= value < float("inf"):
        raise UsageError(f"{option} {value:g}: need a number of seconds, 0 for never")
    return f"{value:g}"


def _meeting_place() -> dict[str, str]:
    """Return what torchrun gives all ranks alike; what differs by rank, the rank itself adds."""
    import socket  # noqa: PLC0415

    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    return {
        env.DDP: "1",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"blinkrun-{os.getpid()}",
    }


def _explain(ignored: Mapping[str, str]) -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    installed = find_spec("horovod")
    if installed is not None and installed.origin:
        where = Path(installed.origin).parent
        say(f"horovod: blinkrun stands in for the one installed in {where}, in this job only")
    else:
        say("horovod: blinkrun stands in for it in this job")
    for name, reason in ignored.items():
        say(f"{name} has no effect: {reason}")
