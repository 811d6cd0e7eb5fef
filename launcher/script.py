"""Runs one rank's Python program, and tells the launcher how it ended.

Started by its path, as ``python script.py train.py args``, ``python script.py -m module args`` or
``python script.py -c code args``, in place of ``python train.py args`` and so on: the program sees
the same ``sys.argv``, ``sys.path`` and ``__main__``. The differences are at the end. A rank that
fails leaves at once, by ``os._exit``: MPI_Finalize, threads and exit handlers would wait for ranks
that will never come. What the rank ends of (another rank that left, a deadline) goes to the
launcher, which uses it to find the first cause.

Standard library only, and no import of blinkrun: any interpreter can run this file.
"""

from __future__ import annotations

import builtins
import os
import sys
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

REPORT_FD = "BLINKRUN_REPORT_FD"
DDP = "BLINKRUN_DDP"
# Exceptions that say "the cause is another rank", by class name: blinkrun may not be loaded at all.
SECONDARY = {
    "PeerLeftError": "peer_left",
    "AbortedError": "aborted",
    "CollectiveTimeoutError": "timeout",
}
KEYBOARD_EXIT = 130


class Reporter:
    """Sends JSON lines to the rank's supervisor; does nothing where there is none."""

    def __init__(self, descriptor: str) -> None:
        self._fd = int(descriptor) if descriptor.isdigit() else -1
        if self._fd >= 0:
            try:
                os.set_inheritable(self._fd, False)
            except OSError:
                self._fd = -1

    def send(self, **fields: object) -> None:
        """Send one report; a launcher that is gone is not this program's trouble."""
        if self._fd < 0:
            return
        import json  # noqa: PLC0415  (only at the end of a run)

        line = json.dumps(fields) + "\n"
        try:
            os.write(self._fd, line.encode())
        except OSError:
            self._fd = -1


def describe(error: BaseException) -> dict[str, object]:
    """Return the report of an uncaught exception."""
    message = str(error).splitlines()
    fields: dict[str, object] = {
        "kind": "raised",
        "error": type(error).__name__,
        "message": message[0][:500] if message else "",
    }
    for base in type(error).__mro__:
        if base.__name__ in SECONDARY and base.__module__ == "blinkrun.errors":
            fields["kind"] = SECONDARY[base.__name__]
            named = getattr(error, "ranks", None) or [getattr(error, "rank", -1)]
            fields["ranks"] = [rank for rank in named if isinstance(rank, int) and rank >= 0]
    return fields


def program_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without this file's frames and the import system's at its start."""
    hidden = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden:
        trace = trace.tb_next
    return trace


def flush() -> None:
    """Write out what the program has printed; a closed stream has nothing more to say."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def leave(code: int) -> NoReturn:
    """End this process now."""
    flush()
    os._exit(code)


def new_main(**attributes: object) -> ModuleType:
    """Put an empty ``__main__`` in place and return it."""
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, **attributes)
    sys.modules["__main__"] = module
    return module


def load_script(path: str) -> tuple[CodeType, ModuleType]:
    """Return the code of a file and the module to run it in."""
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415

    path = os.path.abspath(path)  # as the interpreter does it
    with open(path, "rb") as file:
        source = file.read()
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = new_main(__file__=path, __cached__=None, __spec__=None, __package__=None)
    main.__loader__ = SourceFileLoader("__main__", path)
    return compile(source, path, "exec", dont_inherit=True), main


def load_module(name: str) -> tuple[CodeType, ModuleType]:
    """Return the code of a module, or of a package's ``__main__``, and the module to run it in."""
    from importlib.util import find_spec  # noqa: PLC0415

    sys.path[0] = os.getcwd()
    sys.argv[0] = "-m"
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    code = None
    if spec is not None and spec.loader is not None and hasattr(spec.loader, "get_code"):
        code = spec.loader.get_code(spec.name)
    if spec is None or code is None:
        raise ModuleNotFoundError(f"No module named {name} that can be run", name=name)
    sys.argv[0] = spec.origin or name
    return code, new_main(
        __file__=spec.origin,
        __cached__=spec.cached,
        __spec__=spec,
        __package__=spec.parent,
        __loader__=spec.loader,
    )


def load_text(text: str) -> tuple[CodeType, ModuleType]:
    """Return the code of ``-c`` and the module to run it in."""
    sys.path[0] = ""
    return compile(text, "<string>", "exec", dont_inherit=True), new_main(
        __spec__=None, __package__=None, __loader__=None
    )


def prepare() -> None:
    """Make this rank what ``blinkrun --ddp`` promises, if the job was started so."""
    if os.environ.get(DDP) != "1":
        return
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_hook.py")
    spec = spec_from_file_location("_blinkrun_ddp_hook", path)
    if spec is not None and spec.loader is not None:
        hook = module_from_spec(spec)
        spec.loader.exec_module(hook)
        hook.install(os.environ)


def run(argv: list[str]) -> None:
    """Run the program that `argv` names, in this process."""
    prepare()
    if argv[0] == "-m":
        sys.argv = argv[1:]
        code, main = load_module(argv[1])
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        code, main = load_text(argv[1])
    else:
        sys.argv = argv
        code, main = load_script(argv[0])
    exec(code, main.__dict__)


def exit_code(status: object) -> int:
    """Return the exit code that ``SystemExit(status)`` means; a text goes to stderr, as usual."""
    if status is None:
        return 0
    if isinstance(status, int):
        return status & 255
    print(status, file=sys.stderr)
    return 1


def fail(error: BaseException, reporter: Reporter) -> NoReturn:
    """Print the traceback as the program's own hook does it, report, and leave."""
    code = KEYBOARD_EXIT if isinstance(error, KeyboardInterrupt) else 1
    reporter.send(code=code, **describe(error))
    error.__traceback__ = program_frames(error.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as err:  # the program's own hook: whatever it does, this rank ends
        print(f"blinkrun: sys.excepthook failed: {err!r}", file=sys.stderr)
    leave(code)


def main(argv: list[str]) -> None:
    """Run the program; return if it ended well, so that the interpreter exits as usual."""
    reporter = Reporter(os.environ.pop(REPORT_FD, ""))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)  # the last lines of a killed rank count
    try:
        run(argv)
    except SystemExit as error:
        code = exit_code(error.code)
        if code:
            reporter.send(kind="exited", code=code)
            leave(code)
    except BaseException as error:
        fail(error, reporter)
    flush()
    reporter.send(kind="finished", code=0)


if __name__ == "__main__":
    main(sys.argv[1:])
