"""Runs the cases of the backend blink on tensors that pass for ones on a fake CUDA device.

What torch computes runs on the host at once, so a call in a stream is waited for before it returns.
"""

import gc

import torch
import torch.distributed as dist
import torch_distributed_suite
import torch_distributed_usage_cases
from support.fake_cuda import FakeMachine
from support.rank_main import own_rank
from support.torch_disguise import Disguise

from blinkrun import devices
from blinkrun.torch.distributed import streams

# Ranks meet in the first call of a group: they must make those of several in one order.
LEFT_OUT = ("sub_groups",)


class HostSide:
    """Stands for a stream of the group's own."""

    made = 0
    followed = 0

    def __init__(self, index):
        self.index = index

    def run(self, body, tensors):
        HostSide.made += 1
        assert tensors
        body()
        return self

    def query(self):
        return True

    def follow(self, end):
        assert end is self
        HostSide.followed += 1

    def future(self, results, end):
        future = torch.futures.Future()
        future.set_result(results)
        return future

    def synchronize(self):
        pass


def run_all(store, ranks):
    machine = FakeMachine(ranks, lenient=True, seed=own_rank())
    machine.install()
    disguise = Disguise(machine, own_rank(), lambda tensor: tensor.is_cpu)
    enqueue = devices.Devices.run

    def run(self, request):
        enqueue(self, request)
        self.synchronize()

    devices.Devices.run = run
    streams.Side = HostSide
    streams.to_host = lambda tensor: tensor.detach().contiguous().clone()
    streams.arrival = lambda tensor: tensor.detach().copy_
    # A barrier stays on the host: who is on the device does not see it.
    torch_distributed_usage_cases.ANOTHER_KIND[0] = lambda: dist.broadcast(torch.ones(3), src=0)
    results = torch_distributed_suite.run_all(store, ranks, LEFT_OUT)
    gc.collect()
    disguise.close()
    results["launches"] = {"returned": len(machine.launches)}
    results["own stream"] = {"returned": HostSide.made > 0 and HostSide.followed > 0}
    results["left"] = {"returned": machine.leaks()}
    machine.close()
    return results
