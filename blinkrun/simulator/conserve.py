"""What must hold at the end of every run: nothing is lost, nothing is faster than it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinkrun.errors import SimulationError
from blinkrun.simulator.timed import Load, TimedSignal


@dataclass(frozen=True, slots=True)
class Account:
    """What a run did, to be held against what it should have done.

    Attributes
    ----------
    time_ns : int
    asked, arrived : sequence of int
        Bytes that started on every pipe of the load, and that came through.
    busy_ns : sequence of int
        By resource.
    flags : sequence of int
        By number.
    delivered : sequence of int
        Messages of every stream that were through.
    """

    time_ns: int
    asked: Sequence[int]
    arrived: Sequence[int]
    busy_ns: Sequence[int]
    flags: Sequence[int]
    delivered: Sequence[int] = ()

    def crossed(self, loaded: Load) -> list[int]:
        """Return the bytes that crossed each resource."""
        total = [0] * len(loaded.capacities)
        for pipe, size_bytes in zip(loaded.pipes, self.arrived, strict=True):
            for at in pipe:
                total[at] += size_bytes
        return total


def check_account(loaded: Load, account: Account) -> None:
    """Return if a run kept to the rules.

    Raises
    ------
    SimulationError
        If bytes that started did not arrive, a pipe moved other bytes than the program says, a
        resource carried more than its capacity allows while it was busy, it was busy for longer
        than the run, or a flag did not end at its number of chunks, or a stream at its messages.
    """
    _check_pipes(loaded, account)
    _check_resources(loaded, account)
    _check_flags(loaded, account)
    _check_streams(loaded, account)


def _check_pipes(loaded: Load, account: Account) -> None:
    wanted = loaded.bytes_by_pipe()
    for pipe, wants, asked, arrived in zip(
        loaded.pipes, wanted, account.asked, account.arrived, strict=True
    ):
        if not wants == asked == arrived:
            names = ", ".join(loaded.resources[at] for at in pipe)
            raise SimulationError(
                f"over {names} the program moves {wants} bytes, {asked} started, {arrived} arrived"
            )


def _check_resources(loaded: Load, account: Account) -> None:
    for name, capacity, crossed, busy in zip(
        loaded.resources,
        loaded.capacities,
        account.crossed(loaded),
        account.busy_ns,
        strict=True,
    ):
        if crossed * 1000 * loaded.units > capacity * busy or busy > account.time_ns:
            raise SimulationError(
                f"{name} of {capacity / loaded.units:g} MB/s carried {crossed} bytes in {busy} of "
                f"{account.time_ns} ns"
            )


def _check_flags(loaded: Load, account: Account) -> None:
    for channel in loaded.channels:
        for number, step in enumerate(channel.steps):
            if isinstance(step, TimedSignal) and account.flags[step.flag] != channel.num_chunks:
                raise SimulationError(
                    f"{channel.at(number, channel.num_chunks)}: {loaded.flag_name(step.flag)} ends "
                    f"at {account.flags[step.flag]}"
                )


def _check_streams(loaded: Load, account: Account) -> None:
    for stream, (sender, _), delivered in zip(
        loaded.streams, loaded.senders, account.delivered, strict=True
    ):
        sent = loaded.channels[sender].num_chunks if sender >= 0 else 0
        if delivered != sent:
            raise SimulationError(f"{stream.name}: {delivered} of {sent} messages were through")
