"""Runs the cases of the backend blink on tensors that pass for ones on a fake CUDA device."""

import gc

import torch
import torch.distributed as dist
import torch_distributed_suite
import torch_distributed_usage_cases
from support import torch_side
from support.fake_cuda import FakeMachine
from support.rank_main import own_rank
from support.torch_disguise import Disguise

# Ranks meet in the first call of a group: they must make those of several in one order.
LEFT_OUT = ("sub_groups",)


def run_all(store, ranks):
    machine = FakeMachine(ranks, lenient=True, seed=own_rank())
    machine.install()
    disguise = Disguise(machine, own_rank(), lambda tensor: tensor.is_cpu)
    torch_side.install()
    # A barrier stays on the host: who is on the device does not see it.
    torch_distributed_usage_cases.ANOTHER_KIND[0] = lambda: dist.broadcast(torch.ones(3), src=0)
    results = torch_distributed_suite.run_all(store, ranks, LEFT_OUT)
    gc.collect()
    disguise.close()
    results["launches"] = {"returned": len(machine.launches)}
    results["own stream"] = {
        "returned": torch_side.HostSide.made > 0 and torch_side.HostSide.followed > 0
    }
    results["left"] = {"returned": machine.leaks(within_s=10)}
    machine.close()
    return results
