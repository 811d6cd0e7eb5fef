"""Runs TensorFlow's cases on eager tensors that pass for ones on a fake GPU."""

import gc

import case_suite
from support.fake_cuda import FakeMachine
from support.rank_main import own_rank

from blinkrun import buffers
from blinkrun.tf import devices


def run_all(ranks, only):
    """Run the cases of the modules in `only`, comma-separated, on `ranks` ranks."""
    machine = FakeMachine(ranks, lenient=True, seed=own_rank())
    machine.install()
    devices.is_on_gpu = lambda tensor: True
    buffers.device_at = lambda pointer: own_rank()
    results = case_suite.run_all("tf", only)
    results["launches"] = {"returned": len(machine.launches)}
    gc.collect()
    case_suite.blink.shutdown()
    results["left"] = {"returned": machine.leaks(within_s=10)}
    machine.close()
    return results
