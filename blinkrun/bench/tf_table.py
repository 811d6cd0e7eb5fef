"""What ``bench --framework tf`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blinkrun.bench.framework import Options


def heading(options: Options, num_ranks: int, cores: int) -> list[str]:
    """Return the lines before the first model."""
    threads = f"{options.threads} TensorFlow thread{'s' if options.threads > 1 else ''} each"
    line = (
        f"# training, tf: {num_ranks} ranks, {cores} cores, {threads}, "
        f"{options.batch} images a rank, {options.rounds} rounds"
    )
    return [line, *([f"# {options.left_out}"] if options.left_out else [])]


def lines(model: str, result: Mapping[str, Any]) -> list[str]:
    """Return the lines about one model."""
    return [
        f"# {model}: {result['gradient_bytes'] / 1e6:.1f} MB of gradients",
        *_rate_lines(result),
        *_share_lines(result["share"]),
        *_memory_lines(result.get("memory")),
    ]


def _rate_lines(result: Mapping[str, Any]) -> list[str]:
    rates = result["samples_per_s"]
    ours = next(iter(rates.values()))["median"]
    found = [
        f"# {'way':<28} {'samples/s':>9} {'min':>7} {'max':>7} {'fit is':>8} {'efficiency':>10}"
        f"  ranks agree"
    ]
    for name, rate in rates.items():
        share = result["efficiency"].get(name)
        efficiency = "" if share is None else f"{100 * share:.0f} %"
        agree = {True: "yes", False: "NO", None: ""}[result["agree"].get(name)]
        found.append(
            f"  {name:<28} {rate['median']:9.0f} {rate['min']:7.0f} {rate['max']:7.0f} "
            f"{ours / rate['median']:7.2f}x {efficiency:>10}  {agree}".rstrip()
        )
    return found


def _share_lines(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not shares:
        return []
    columns = f"{'step, ms':>9} {'unreduced':>10} {'timeline':>9} {'difference':>11} {'busy':>7}"
    found = [f"# {'communication, % of a step':<28} {columns}"]
    for name, share in shares.items():
        percents = {key: 100 * share[key] for key in ("timeline", "difference", "busy")}
        found.append(
            f"  {name:<28} {share['step_ms']:9.2f} {share['plain_step_ms']:10.2f} "
            f"{percents['timeline']:9.1f} {percents['difference']:11.1f} {percents['busy']:7.1f}"
        )
    return found


def _memory_lines(memory: Mapping[str, int] | None) -> list[str]:
    if memory is None:
        return []
    mb = {name: f"{value / 1e6:.0f}" for name, value in memory.items()}
    more = (memory["peak_bytes"] - memory["plain_peak_bytes"]) / 1e6
    rest = (memory["rest_bytes"] - memory["plain_rest_bytes"]) / 1e6
    beside = (
        f", {mb['mwms_peak_bytes']} with MultiWorkerMirroredStrategy"
        if "mwms_peak_bytes" in mb
        else ""
    )
    return [
        f"# peak memory of a rank, fit, MB: {mb['peak_bytes']}, {mb['plain_peak_bytes']} without"
        f" blinkrun{beside}; {more:.0f} more, {rest:.0f} of it before training; model and"
        f" gradients are {mb['allowed_bytes']}"
    ]
