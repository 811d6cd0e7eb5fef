"""Wrong usage and the line that it gets."""

import contextlib
import io
import os
from functools import partial

import torch
from torch_ops_cases import refused
from torch_pairs import batch, loss_of, mine, mlp, wrap

import blinkrun.torch as blink

CASES = (
    "names",
    "arguments",
    "wrapped_twice",
    "parameters_that_cannot_be_reduced",
    "backward_too_often",
    "zero_grad_too_early",
    "skip_without_synchronize",
    "models_that_differ",
    "add_param_group_that_fails",
    "environment",
    "what_was_chosen",
)


def before_init():
    model = mlp()
    return {
        "initialized": blink.is_initialized(),
        "size": refused(blink.size),
        "allreduce": refused(lambda: blink.allreduce(torch.ones(1))),
        "gather": refused(lambda: blink.grouped_allgather_async([torch.ones(1)])),
        "broadcast": refused(lambda: blink.broadcast_(torch.ones(1), 0)),
        "alltoall": refused(lambda: blink.alltoall(torch.ones(1))),
        "scatter": refused(lambda: blink.reducescatter(torch.ones(1), name="x")),
        "object": refused(lambda: blink.broadcast_object(1)),
        "set": refused(lambda: blink.add_process_set([0])),
        "join": refused(blink.join),
        "barrier": refused(blink.barrier),
        "timeline": refused(lambda: blink.start_timeline("x")),
        "threads": refused(blink.mpi_threads_supported),
        "optimizer": refused(lambda: wrap(sgd(model), model)),
    }


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def wrapped(named, **options):
    """Wrap a new optimizer with names made from its model by `named`."""
    model = mlp()
    return refused(lambda: blink.DistributedOptimizer(sgd(model), named(model), **options))


def names():
    return {
        "twice": wrapped(lambda model: [("w", p) for p in model.parameters()]),
        "missing": wrapped(lambda model: list(model.named_parameters())[1:]),
        "no_pairs": wrapped(lambda model: list(model.parameters())),
        "none": wrapped(lambda model: None),
    }


def arguments():
    def given(**options):
        return wrapped(lambda model: model.named_parameters(), **options)

    return {
        "op": given(op=blink.Max),
        "passes": given(backward_passes_per_step=0),
        "bucket_bytes": given(bucket_bytes=0),
        "float_bytes": given(bucket_bytes=1e6),
        "overlap": given(overlap="maybe"),
        "optimizer": refused(lambda: blink.DistributedOptimizer(mlp())),
    }


def wrapped_twice():
    model = mlp()
    ours = wrap(sgd(model), model)
    return [refused(lambda: wrap(ours, model)), refused(lambda: wrap(sgd(model), model))]


def parameters_that_cannot_be_reduced():
    complex_one = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    meta = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizers = [torch.optim.SGD([param], lr=0.1) for param in (complex_one, meta)]
    return [refused(partial(blink.DistributedOptimizer, optimizer)) for optimizer in optimizers]


def backward_too_often():
    model = mlp()
    ours = wrap(sgd(model), model)
    inputs, targets = map(mine, batch(0))
    loss_of(model, inputs, targets).backward()
    line = refused(lambda: loss_of(model, inputs, targets).backward())
    ours.step()
    loss_of(model, inputs, targets).backward()  # goes on after step()
    ours.step()
    return line


def zero_grad_too_early():
    model = mlp()
    ours = wrap(sgd(model), model)
    loss_of(model, *map(mine, batch(0))).backward()
    line = refused(ours.zero_grad)
    ours.step()
    ours.zero_grad()
    return line


def skip_without_synchronize():
    model = mlp()
    ours = wrap(sgd(model), model)
    loss_of(model, *map(mine, batch(0))).backward()
    with ours.skip_synchronize():
        line = refused(ours.step)
    ours.step()
    return line


def models_that_differ():
    last = blink.rank() == blink.size() - 1
    shape = torch.nn.Linear(3, 2 if last else 4)
    longer = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(2 if last else 1)))
    return {
        "shape": refused(lambda: wrap(sgd(shape), shape)),
        "longer": refused(lambda: wrap(sgd(longer), longer)),
    }


def add_param_group_that_fails():
    """The optimizer is as it was, and trains on."""
    model = mlp()
    ours = wrap(sgd(model), model)
    line = refused(lambda: ours.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}))
    loss_of(model, *map(mine, batch(0))).backward()
    ours.step()
    return [line, len(ours.param_groups)]


def environment():
    """What the environment says with the arguments left out; of buckets, that of rank 0."""
    model = mlp()
    os.environ.update(
        BLINKRUN_BUCKET_BYTES="300" if blink.rank() == 0 else "1M", BLINKRUN_OVERLAP="off"
    )
    try:
        ours = wrap(sgd(model), model)
        layout = ours._blinkrun.reducer.layout
        loss_of(model, *map(mine, batch(0))).backward()
        ours.step()
        os.environ["BLINKRUN_OVERLAP"] = "sometimes"
        return [len(layout.buckets), wrapped(lambda model: None)]
    finally:
        del os.environ["BLINKRUN_BUCKET_BYTES"], os.environ["BLINKRUN_OVERLAP"]


def what_was_chosen():
    model = mlp()
    heard = io.StringIO()
    os.environ["BLINKRUN_VERBOSE"] = "1"
    try:
        with contextlib.redirect_stderr(heard):
            wrap(sgd(model), model, overlap="off")
    finally:
        del os.environ["BLINKRUN_VERBOSE"]
    return heard.getvalue()
