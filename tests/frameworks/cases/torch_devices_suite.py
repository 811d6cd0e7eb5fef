"""Runs cases of the torch adapter on tensors that pass for ones on a fake CUDA device.

All tensors do while the cases of the CPU run again; the cases of `torch_devices_cases` say
themselves which do.
"""

import gc
import importlib
import warnings

import torch
import torch_suite
from support.fake_cuda import FakeMachine
from support.torch_disguise import Disguise

import blinkrun.torch as blink


def run_all(left_out, modules=()):
    """Run the cases of `modules`, by default those of the CPU, but those `left_out`."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    blink.init()
    machine = FakeMachine(blink.size(), lenient=True, seed=blink.rank())
    machine.install()
    disguise = Disguise(machine, blink.rank(), lambda tensor: True)
    results = {}
    for module in map(importlib.import_module, modules) if modules else torch_suite.MODULES:
        if hasattr(module, "DISGUISE"):
            module.DISGUISE.append(disguise)
        for case in () if module.__name__ in left_out else module.CASES:
            if case not in left_out:
                before = disguise.follows
                results[case] = torch_suite.attempt(getattr(module, case))
                results[f"{case} on device"] = {"returned": disguise.follows > before}
    gc.collect()
    blink.shutdown()
    disguise.close()
    results["left"] = {"returned": machine.leaks(within_s=10)}
    machine.close()
    return results
