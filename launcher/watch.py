"""Whether a job still moves: the CPU time of its ranks, and what to make of it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection

IDLE_SHARE = 0.01  # of one core; ranks that sleep in a collective use less
SLACK = 1.25  # deadlines inside the ranks come first: they know more


class HangWatch:
    """Says when nothing has moved for `timeout_s` seconds: no CPU time used, no output.

    Feed it a sample every `interval_s` seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.window_s = timeout_s * SLACK + 0.5
        self.interval_s = min(5.0, max(0.1, timeout_s / 10))
        self._samples: deque[tuple[float, float]] = deque()
        self._num_outputs = -1

    def is_hung(self, now_s: float, cpu_s: float, num_outputs: int) -> bool:
        """Take a sample; return whether the job has stood still for the whole window.

        Parameters
        ----------
        now_s : float
            Any clock that only goes forward, in seconds.
        cpu_s : float
            CPU seconds of all ranks so far. It falls when a process ends; that is movement.
        num_outputs : int
            Pieces of output so far.
        """
        if num_outputs != self._num_outputs or (self._samples and cpu_s < self._samples[-1][1]):
            self._samples.clear()
            self._num_outputs = num_outputs
        self._samples.append((now_s, cpu_s))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - self.window_s:
            self._samples.popleft()
        then_s, cpu_then_s = self._samples[0]
        if now_s - then_s < self.window_s:
            return False
        return cpu_s - cpu_then_s < IDLE_SHARE * (now_s - then_s)


def group_cpu_seconds(groups: Collection[int]) -> float:
    """Return the CPU time that the living processes of some process groups have used."""
    ticks = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[2]) in groups:  # proc(5): pgrp is field 5, utime 14, stime 15
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
