"""``blinkrun -np N bench``: what every rank runs as ``python -m blinkrun.bench.main``."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from blinkrun import log
from blinkrun.bench.emulate_options import is_emulated
from blinkrun.bench.framework import framework_main, is_framework
from blinkrun.bench.libraries import Blinkrun, Control, Library
from blinkrun.bench.measure import Effort, Row, measure
from blinkrun.bench.memory import make_memory
from blinkrun.bench.options import Options, make_parser, parse
from blinkrun.bench.peers import close_peers, make_peers
from blinkrun.bench.table import (
    as_json,
    closing_lines,
    header_lines,
    parameter_lines,
    row_line,
)
from blinkrun.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; every rank of the job must call it with the same `argv`.

    Rank 0 prints the table to stdout. Returns the exit code: at rank 0, which has said why, 1 if a
    result was wrong and 2 if `argv` cannot be carried out; 0 otherwise.
    """
    import blinkrun  # noqa: PLC0415  (starts MPI: not before it is needed)

    words = list(sys.argv[1:] if argv is None else argv)
    if is_emulated(words):
        from blinkrun.bench.emulate import emulate  # noqa: PLC0415  (another world)

        return emulate(words)
    blinkrun.init()
    world = blinkrun.world()
    if is_framework(words):
        code = framework_main(words, world)
        return code if world.rank == 0 else 0
    for flag in ("--training", "--engine"):
        if flag in words:
            return _on_torch(flag, [word for word in words if word != flag], world)
    try:
        options = parse(words, world.size)
    except UsageError as err:
        return _say_once(world, log.say, f"bench: {err}", code=2)
    if options is None:
        return _say_once(world, _print_line, make_parser().format_help().rstrip(), code=0)
    peers = make_peers(options.against, world)
    try:
        return run(options, Blinkrun(world, options.buffers), peers, world)
    finally:
        close_peers(peers)


def _on_torch(flag: str, argv: Sequence[str], control: Control) -> int:
    if importlib.util.find_spec("torch") is None:
        message = f"bench: {flag} needs torch: pip install 'blinkrun[torch]'"
        return _say_once(control, log.say, message, code=2)
    from blinkrun.bench.named import named_main  # noqa: PLC0415  (torch is an extra)
    from blinkrun.bench.training import training_main  # noqa: PLC0415

    code = training_main(argv) if flag == "--training" else named_main(argv)
    return code if control.rank == 0 else 0


def _say_once(control: Control, say: Callable[[str], None], message: str, *, code: int) -> int:
    if control.rank == 0:
        say(message)
    control.barrier()  # no rank leaves before the reason is out: the launcher ends the others
    return code if control.rank == 0 else 0  # a launcher shows the last lines of who failed


def run(options: Options, ours: Library, peers: Sequence[Library], control: Control) -> int:
    """Measure `ours` and `peers` over all sizes and print the table; returns the exit code."""
    show = _print_line if control.rank == 0 else _print_nothing
    libraries = [ours, *peers, *(make_memory() if options.memory else [])]
    effort = Effort(calls=options.calls, warmup=options.warmup, rounds=options.rounds)
    ranks = _ranks_of_hosts(control)
    for line in parameter_lines(options, ranks, _refusals(options, peers, control.size)):
        show(line)
    for line in header_lines(options):
        show(line)
    rows = []
    for size_bytes in options.sizes:
        row = measure(options.work(size_bytes, control.size), libraries, control, effort)
        rows.append(row)
        show(row_line(row, options))
    for line in closing_lines(rows):
        show(line)
    if control.rank == 0:
        plan = getattr(control, "plan", None) if len(ranks) > 1 else None
        _write(options, rows, ranks, "" if plan is None else plan.to_json())
    return 1 if control.rank == 0 and any(row.wrong for row in rows) else 0


def _refusals(options: Options, peers: Sequence[Library], num_ranks: int) -> list[str]:
    work = options.work(options.sizes[0], num_ranks)
    reasons = [peer.refuses(work) for peer in peers]
    return [f"{reason}: '-' there" for reason in reasons if reason is not None]


def _ranks_of_hosts(control: Control) -> list[int]:
    """Return how many ranks each host has, hosts in their order; every rank must call it."""
    hosts = Counter(control.allgather_object(getattr(control, "cross_rank", 0)))
    return [hosts[host] for host in sorted(hosts)]


def _write(options: Options, rows: Sequence[Row], ranks: Sequence[int], plan: str) -> None:
    result: dict[str, Any] = as_json(rows, options, ranks)
    if plan:
        result["plan"] = json.loads(plan)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot is not None:
        from blinkrun.bench.plot import draw  # noqa: PLC0415  (matplotlib is an extra)

        draw(result, options.plot)


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_nothing(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
