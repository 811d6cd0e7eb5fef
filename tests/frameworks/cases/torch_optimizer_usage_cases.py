"""Arguments, order of calls and what scripts look at of a DistributedOptimizer."""

import copy
import dataclasses
import os
import pickle
import warnings

import torch
from torch_ops_cases import refused
from torch_pairs import batch, bits, loss_of, mine, mlp, wrap

import blinkrun.torch as blink
from blinkrun import engine

CASES = (
    "horovod_arguments",
    "arguments_that_differ",
    "errors_that_horovod_scripts_catch",
    "gradients_that_do_not_fit",
    "copies_are_plain",
    "what_scripts_look_at",
    "saved_between_steps",
    "nan_in_a_bucket",
    "checks_by_the_environment",
)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def horovod_arguments():
    """All of them by position, and what each refuses."""
    model = mlp()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ours = blink.DistributedOptimizer(
            sgd(model), model.named_parameters(), blink.Compression.fp16, 2, blink.Average, 2.0,
            2, None, True, blink.global_process_set,
        )  # fmt: skip
    loss_of(model, *map(mine, batch(0))).backward()
    loss_of(model, *map(mine, batch(0))).backward()
    ours.step()
    num_buckets = len(ours._blinkrun.reducer.layout.buckets)

    def given(**options):
        other = mlp()
        return refused(lambda: wrap(sgd(other), other, **options))

    weight = torch.nn.Parameter(torch.ones(1))
    return {
        "heard": [str(each.category.__name__) for each in heard],
        "buckets": num_buckets,
        "min": given(op=blink.Min),
        "product": given(op=blink.Product),
        "predivide_sum": given(op=blink.Sum, gradient_predivide_factor=2.0),
        "predivide_zero": given(gradient_predivide_factor=0.0),
        "no_groups": given(groups=0),
        "flat_groups": given(groups=[weight]),
        "numbers": given(groups=[[1, 2]]),
        "twice": given(groups=[[weight], [weight]]),
        "check_every": given(check_every=-1),
        "process_set": given(process_set=blink.ProcessSet([0])),
    }


def arguments_that_differ():
    """The last rank calls with another one; all ranks hear of it, and go on."""
    is_last = blink.rank() == blink.size() - 1
    first, second = mlp(), mlp()
    lines = [
        refused(lambda: wrap(sgd(first), first, op=blink.Sum if is_last else blink.Average)),
        refused(lambda: wrap(sgd(second), second, groups=2 + is_last)),
    ]
    return [lines, refused(lambda: wrap(sgd(first), first))]


def errors_that_horovod_scripts_catch():
    """Horovod raises AssertionErrors for calls out of order and ValueErrors for arguments."""
    model = mlp()
    ours = wrap(sgd(model), model)
    loss_of(model, *map(mine, batch(0))).backward()
    caught = []
    for call in (loss_of(model, *map(mine, batch(0))).backward, ours.zero_grad):
        try:
            call()
        except AssertionError as err:
            caught.append(isinstance(err, ValueError))
    ours.step()
    try:
        wrap(sgd(mlp()), mlp())
    except ValueError:
        caught.append(True)
    return caught


def gradients_that_do_not_fit():
    """A parameter that has grown, and a gradient on another device."""
    model = mlp()
    ours = wrap(sgd(model), model)
    reducer = ours._blinkrun.reducer
    away = refused(lambda: reducer._check(0, torch.ones(16, 6, device="meta")))
    with torch.no_grad():
        model[4].bias.data = torch.zeros(2, 3)
    return [away, refused(lambda: model[4].bias.sum().backward())]


def copies_are_plain():
    model = mlp()
    ours = wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    loss_of(model, *map(mine, batch(0))).backward()
    ours.step()
    twin, twin_optimizer = copy.deepcopy((model, ours))
    loaded = pickle.loads(pickle.dumps(ours))
    twin_optimizer.zero_grad()
    if blink.rank() == 0:  # steps by itself
        loss_of(twin, *batch(1)).backward()
        twin_optimizer.step()
    steps = [
        int(next(iter(each.state.values()))["step"]) for each in (ours, twin_optimizer, loaded)
    ]
    return [type(twin_optimizer).__name__, type(loaded).__name__, steps]


def what_scripts_look_at():
    model = mlp()
    model[0].bias.requires_grad_(False)
    ours = wrap(sgd(model), model, backward_passes_per_step=3, sparse_as_dense=True)
    names = ours._parameter_names
    return {
        "names": [names[param] for param in model.parameters()],
        "trained": sorted(names[param] for param in ours._requires_update),
        "passes": ours.backward_passes_per_step,
        "op": int(ours.op),
        "factor": ours.gradient_predivide_factor,
        "sparse": ours.sparse_as_dense,
        "global": ours.process_set is blink.global_process_set,
    }


def saved_between_steps():
    """``param.grad.data = ...`` takes a gradient out of its bucket; the next steps do not mind."""
    models = mlp(), mlp()
    ours = [wrap(sgd(model), model) for model in models]
    for step in range(4):
        for model, optimizer in zip(models, ours, strict=True):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, *map(mine, batch(step))).backward()
            optimizer.synchronize()
            for param in models[1].parameters() if model is models[1] else ():
                param.grad.data = param.grad.data.clone()
            with optimizer.skip_synchronize():
                optimizer.step()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def nan_in_a_bucket():
    """With --check-nan; in the first step and in a later one, on the last rank; then on with it."""
    running = engine.current()
    before, running.settings = (
        running.settings,
        dataclasses.replace(running.settings, check_nan=True),
    )
    is_last = blink.rank() == blink.size() - 1
    lines, models = [], []
    try:
        for overlap in ("off", "on"):
            model = mlp()
            models.append(model)
            ours = wrap(sgd(model), model, overlap=overlap, bucket_bytes=500)
            for step in range(4):
                ours.zero_grad()
                loss = loss_of(model, *map(mine, batch(step)))
                if step in (0, 2) and is_last:
                    loss = loss + model[2].bias[1] * float("nan")
                loss.backward()
                lines.append(refused(ours.step))
    finally:
        running.settings = before
    return [lines, [bits(model) for model in models]]


def checks_by_the_environment():
    """The first rank's environment counts; an argument is stronger."""
    os.environ["BLINKRUN_CHECK_PARAMETERS"] = "3" if blink.rank() == 0 else "100"
    try:
        models = mlp(), mlp()
        by_environment = wrap(sgd(models[0]), models[0])
        by_argument = wrap(sgd(models[1]), models[1], check_every=0)
    finally:
        del os.environ["BLINKRUN_CHECK_PARAMETERS"]
    return [each._blinkrun.settings.check_every for each in (by_environment, by_argument)]


def joined_again():
    """A job of its own: an optimizer goes on after `shutdown` and `init`, and not in between."""
    blink.init()
    model = mlp()
    ours = wrap(sgd(model), model, overlap="on")
    lines = []
    for step in range(4):
        if step == 2:
            blink.shutdown()
            lines.append(refused(ours.synchronize))
            blink.init()
            ours.zero_grad()
        loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
        ours.zero_grad()
    blink.shutdown()
    blink.init()
    return [lines, bits(model), bits(trained_in_one_go())]


def trained_in_one_go():
    model = mlp()
    ours = wrap(sgd(model), model)
    for step in range(4):
        loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
        ours.zero_grad()
    return model
