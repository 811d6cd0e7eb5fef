"""Runs every case of the backend blink in one job and keeps what each returned or raised."""

import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_distributed_cases
import torch_distributed_messages_cases
import torch_distributed_reductions_cases
import torch_distributed_training_cases
import torch_distributed_usage_cases
from support.rank_main import own_rank

MODULES = (
    torch_distributed_reductions_cases,
    torch_distributed_cases,
    torch_distributed_messages_cases,
    torch_distributed_training_cases,
    torch_distributed_usage_cases,
)


def run_all(store, ranks, left_out=()):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(1)
    results = {}
    for number, module in enumerate(MODULES):
        dist.init_process_group(
            "blink",
            init_method=f"file://{store}{number}",  # torch removes the file of a group that is over
            rank=own_rank(),
            world_size=ranks,
            timeout=timedelta(seconds=40),
        )
        for name in module.CASES:
            if name not in left_out:
                results[name] = attempt(getattr(module, name))
        dist.destroy_process_group()
    return results


def attempt(case):
    try:
        return {"returned": case()}
    except Exception:
        return {"raised": traceback.format_exc()}
