"""A DDP script that knows nothing of blinkrun, in the ways that scripts begin, end and fail."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


def say(*words):
    if int(os.environ["RANK"]) == 0:
        print(*words, flush=True)


def total():
    mine = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(mine)
    return mine[0].item()


def backends():
    """One group after the other in one process, each asked for in another way."""
    print("told", *(os.environ[name] for name in TOLD), flush=True)
    say("elastic", dist.is_torchelastic_launched(), dist.get_node_local_rank())
    names = (None, "gloo", "nccl", "cpu:gloo,cuda:nccl", "mpi", "blink")
    for number, name in enumerate(names):
        options = {}
        if name is not None:  # a second store at one port may be met before the first is gone
            options |= {"backend": name, "init_method": f"file://{Path.cwd()}/store{number}"}
            options |= {"rank": int(os.environ["RANK"])}
            options |= {"world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group(**options, timeout=timedelta(seconds=30))
        found = [type(dist.group.WORLD).__name__, dist.get_backend(), total()]
        side = dist.new_group(backend="gloo")
        found += [type(side).__name__, dist.get_backend(side)]
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        say(name, *found)
        dist.barrier()
        dist.destroy_process_group()


def train(*names):
    """Train over each backend; the last group is not destroyed."""
    for name in names:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group(name)
        torch.manual_seed(0)
        net = DistributedDataParallel(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            net(torch.full((2, 4), 1.0 + dist.get_rank() + step)).square().mean().backward()
            optimizer.step()
        say(dist.get_backend(), net.module.weight.sum().item())


def raises():
    dist.init_process_group()
    total()
    if dist.get_rank() == 1:
        raise ValueError("boom")
    total()


def late():
    """One rank never comes; the deadline is that of the script."""
    dist.init_process_group(timeout=timedelta(seconds=2))
    total()
    if dist.get_rank() == 1:
        signal.pause()
    total()


def left():
    """One rank thinks that it is done."""
    dist.init_process_group()
    total()
    if dist.get_rank() != 1:
        total()


def unwaited():
    """All end with calls under way that nobody waits for, and one that cannot end."""
    dist.init_process_group()
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.irecv(torch.ones(1), src=(dist.get_rank() + 1) % dist.get_world_size())
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(10), async_op=True)
    say("ends")


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
