"""Runs every case of the torch adapter in one job and keeps what each returned or raised."""

import traceback
import warnings

import torch
import torch_adasum_cases
import torch_autograd_cases
import torch_batch_norm_cases
import torch_calls_cases
import torch_dtypes_cases
import torch_gradients_cases
import torch_ops_cases
import torch_optimizer_cases
import torch_optimizer_usage_cases
import torch_sets_cases
import torch_state_cases
import torch_usage_cases
import torch_variants_cases

import blinkrun.torch as blink

MODULES = (
    torch_ops_cases,
    torch_dtypes_cases,
    torch_calls_cases,
    torch_sets_cases,
    torch_autograd_cases,
    torch_state_cases,
    torch_optimizer_cases,
    torch_variants_cases,
    torch_usage_cases,
    torch_gradients_cases,
    torch_adasum_cases,
    torch_batch_norm_cases,
    torch_optimizer_usage_cases,
)


def run_all():
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    results = {"before_init": attempt(torch_usage_cases.before_init)}
    blink.init()
    for module in MODULES:
        for name in module.CASES:
            assert name not in results, f"two cases are called {name}"
            results[name] = attempt(getattr(module, name))
    return results


def attempt(case):
    try:
        return {"returned": case()}
    except Exception:
        return {"raised": traceback.format_exc()}
