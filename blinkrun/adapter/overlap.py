"""Whether gradients are reduced while backward runs, decided by what the machine has to spare."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """The choice and its reason, in words.

    Attributes
    ----------
    on : bool
        Whether a helper thread reduces buckets while backward goes on.
    reason : str
        What was seen.
    """

    on: bool
    reason: str


def choose_overlap(  # noqa: PLR0911, PLR0913 - a return for each reason
    wanted: str,
    *,
    cores: int,
    local_size: int,
    cross_size: int,
    threads: int,
    on_device: bool = False,
) -> Overlap:
    """Return whether to overlap.

    A helper thread pays where there is a core for it: on a machine that the ranks fill, it takes
    the time that it hides from the computation, and the switching comes on top. Between hosts the
    helper mostly sleeps on the network, so there it pays always.

    Parameters
    ----------
    wanted : str
        ``on`` and ``off`` are obeyed, ``auto`` decides.
    cores : int
        Cores that this host offers to the job.
    local_size : int
        Ranks on this host.
    cross_size : int
        Hosts.
    threads : int
        Threads with which each rank computes.
    on_device : bool
        Whether gradients are made and reduced on devices.

    Examples
    --------
    >>> choose_overlap("auto", cores=2, local_size=2, cross_size=1, threads=1)
    Overlap(on=False, reason='2 ranks with 1 compute thread each fill 2 cores')
    >>> choose_overlap("auto", cores=8, local_size=2, cross_size=1, threads=3).on
    True
    """
    if wanted != "auto":
        return Overlap(wanted == "on", "asked for")
    if local_size * cross_size == 1:
        return Overlap(False, "one rank has nothing to reduce")
    if on_device:
        return Overlap(True, "devices compute and reduce, the helper thread only starts it")
    if cross_size > 1:
        return Overlap(True, f"{cross_size} hosts, the network works while the cores compute")
    busy = local_size * threads
    plural = "" if threads == 1 else "s"
    what = f"{local_size} ranks with {threads} compute thread{plural} each"
    if cores - busy >= local_size:
        return Overlap(True, f"{what} leave {cores - busy} of {cores} cores")
    if cores > busy:
        return Overlap(False, f"{what} leave {cores - busy} of {cores} cores, too few for all")
    return Overlap(False, f"{what} fill {cores} cores")
