"""Ranks that reduce, broadcast and gather over the plan they have, and say which it is."""

import os
from pathlib import Path

import numpy as np

import blinkrun

blinkrun.init()
rank, size = blinkrun.rank(), blinkrun.size()
plan = blinkrun.world().plan
for count in (1, 7, 100_003):
    numbers = np.arange(count, dtype=np.int64)
    total = size * (size + 1) // 2
    assert (blinkrun.allreduce(numbers * (rank + 1)) == numbers * total).all()
    for root in range(size):
        sent = blinkrun.broadcast(numbers * (rank + 5), root=root)
        assert (sent == numbers * (root + 5)).all()
    gathered = blinkrun.allgather(numbers + rank).reshape(size, count)
    assert (gathered == numbers + np.arange(size)[:, None]).all()
folder = Path(os.environ.get("BLINKRUN_PLAN", "")).parent
mode = f"{folder.stat().st_mode & 0o777:o}" if "BLINKRUN_PLAN" in os.environ else "none"
print(f"right, {len(plan.allreduce.trees)} trees of {plan.machine}, folder {mode}", flush=True)
