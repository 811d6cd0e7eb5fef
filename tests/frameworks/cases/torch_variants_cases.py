"""Training with N ranks, compared with one process: what people do with an optimizer."""

import copy
import io

import torch
from torch.nn import functional
from torch_pairs import ADAM, batch, bits, loss_of, mine, mlp, pair, report, wrap

import blinkrun.torch as blink

CASES = (
    "several_groups_and_a_late_one",
    "zero_grad_keeps_or_drops",
    "sum_of_losses",
    "grad_scaler",
    "grad_scaler_with_clipping",
    "grad_scaler_after_a_skipped_step",
    "closures_of_lbfgs",
    "closures_of_sgd",
    "schedulers",
    "state_dict_and_copies",
    "hooks_of_the_optimizer",
    "collectives_between_backward_and_step",
    "thrown_away_optimizer",
)


def several_groups_and_a_late_one():
    alone, shared = mlp(), mlp()

    def groups(model):
        return [
            {"params": model[0].parameters(), "lr": 0.2},
            {"params": model[2].parameters(), "momentum": 0.5},
        ]

    plain = torch.optim.SGD(groups(alone), lr=0.05)
    ours = wrap(torch.optim.SGD(groups(shared), lr=0.05), shared)
    for step in range(6):
        if step == 3:
            plain.add_param_group({"params": alone[4].parameters(), "lr": 0.3})
            ours.add_param_group({"params": shared[4].parameters(), "lr": 0.3})
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return report(alone, shared)


def zero_grad_keeps_or_drops():
    """The gradients of the optimizer and of the model cleared in every way that torch has."""
    found = []
    for clear in (
        lambda ours, model: ours.zero_grad(set_to_none=False),
        lambda ours, model: ours.zero_grad(set_to_none=True),
        lambda ours, model: model.zero_grad(),
        lambda ours, model: model.zero_grad(set_to_none=False),
    ):
        alone, plain, shared, ours = pair()
        for step in range(4):
            inputs, targets = batch(step)
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            plain.step()
            clear(ours, shared)
            loss_of(shared, mine(inputs), mine(targets)).backward()
            ours.step()
        found.append(report(alone, shared))
    return found


def sum_of_losses():
    alone, plain, shared, ours = pair(op=blink.Sum)
    for step in range(4):
        inputs, targets = batch(step)
        plain.zero_grad()
        functional.mse_loss(alone(inputs), targets, reduction="sum").mul(0.01).backward()
        plain.step()
        ours.zero_grad()
        own = functional.mse_loss(shared(mine(inputs)), mine(targets), reduction="sum")
        own.mul(0.01).backward()
        ours.step()
    return report(alone, shared)


def scaled(clip):
    """Step 2 overflows on the last rank alone: no rank takes it, all halve the scale."""
    alone, plain, shared, ours = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    scales = []
    for step in range(5):
        inputs, targets = batch(step)
        overflows = step == 2
        if not overflows:
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            plain.step()
        ours.zero_grad()
        loss = loss_of(shared, mine(inputs), mine(targets))
        if overflows and blink.rank() == blink.size() - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(ours)
            torch.nn.utils.clip_grad_norm_(shared.parameters(), 0.1)
        scaler.step(ours)
        scaler.update()
        scales.append(scaler.get_scale())
    return {**report(alone, shared), "scales": scales}


def grad_scaler():
    return scaled(clip=False)


def grad_scaler_with_clipping():
    return scaled(clip=True)


def grad_scaler_after_a_skipped_step():
    """A step that was not taken is over all the same: the next reduces, also without backward."""
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = bits(model)
    for step in range(2):
        model.zero_grad()
        if step == 0 or blink.rank() == 0:
            loss = loss_of(model, *map(mine, batch(step)))
            scaler.scale(loss * (float("inf") if step == 0 else 1.0)).backward()
        scaler.step(ours)
        scaler.update()
    return [bits(model), bits(model) != before]


def closures_of_lbfgs():
    """A line search decides by the loss, so all ranks must see the same one."""
    kind = (torch.optim.LBFGS, {"lr": 1.0, "max_iter": 5, "line_search_fn": "strong_wolfe"})
    alone, plain, shared, ours = pair(kind=kind)
    inputs, targets = batch(0)
    calls = []
    losses = []
    for _ in range(3):

        def joined():
            plain.zero_grad()
            loss = loss_of(alone, inputs, targets)
            loss.backward()
            return loss

        def own():
            calls.append(1)
            ours.zero_grad()
            loss = loss_of(shared, mine(inputs), mine(targets))
            loss.backward()
            return loss

        losses.append([plain.step(joined).item(), ours.step(own).item()])
    return {**report(alone, shared), "calls": len(calls), "losses": losses}


def closures_of_sgd():
    alone, plain, shared, ours = pair()
    inputs, targets = batch(0)

    def own():
        ours.zero_grad()
        loss = loss_of(shared, mine(inputs), mine(targets))
        loss.backward()
        return loss.item()

    plain.zero_grad()
    want = loss_of(alone, inputs, targets)
    want.backward()
    plain.step()
    losses = [want.item(), ours.step(own)]
    return {**report(alone, shared), "loss": losses}


def schedulers():
    """Made before the optimizer is wrapped and after it."""
    found = []
    for before in (True, False):
        alone, shared = mlp(), mlp()
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        base = torch.optim.SGD(shared.parameters(), lr=0.1)
        steps = [torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)]
        if before:
            steps.append(torch.optim.lr_scheduler.StepLR(base, 1, gamma=0.5))
        ours = wrap(base, shared)
        if not before:
            steps.append(torch.optim.lr_scheduler.StepLR(ours, 1, gamma=0.5))
        for step in range(4):
            inputs, targets = batch(step)
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            plain.step()
            ours.zero_grad()
            loss_of(shared, mine(inputs), mine(targets)).backward()
            ours.step()
            for scheduler in steps:
                scheduler.step()
        found.append({**report(alone, shared), "lr": ours.param_groups[0]["lr"]})
    return found


def state_dict_and_copies():
    """A checkpoint in the middle goes into a plain optimizer and back into ours."""
    alone, plain, shared, ours = pair(kind=ADAM)
    for step in range(6):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
        if step == 2:
            kept = io.BytesIO()
            torch.save({"model": shared.state_dict(), "optimizer": ours.state_dict()}, kept)
            for optimizer in (plain, ours):
                kept.seek(0)
                loaded = torch.load(kept)
                optimizer.load_state_dict(loaded["optimizer"])
            shared.load_state_dict(loaded["model"])
    twin = copy.deepcopy(shared)
    torch.save(shared, io.BytesIO())
    loss_of(twin, *map(mine, batch(0))).backward()  # is not ours: nothing waits for it
    return {
        **report(alone, shared),
        "is_adam": isinstance(ours, torch.optim.Adam),
        "keys": sorted(ours.state_dict()),
        "name": type(ours).__name__,
    }


def hooks_of_the_optimizer():
    """A step hook runs once a step and sees global gradients."""
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    seen = []
    ours.register_step_pre_hook(lambda *_: seen.append(float(model[0].weight.grad.sum())))
    for step in range(2):
        ours.zero_grad()
        loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
    ours.load_state_dict(ours.state_dict())
    loss_of(model, *map(mine, batch(2))).backward()
    ours.step()
    return seen


def collectives_between_backward_and_step():
    """Metrics are averaged while buckets may still be on their way."""
    alone, plain, shared, ours = pair(overlap="on", bucket_bytes=300)
    for step in range(4):
        inputs, targets = batch(step)
        plain.zero_grad()
        want = loss_of(alone, inputs, targets)
        want.backward()
        plain.step()
        ours.zero_grad()
        own = loss_of(shared, mine(inputs), mine(targets))
        own.backward()
        average = blink.allreduce(own)
        ours.step()
        if abs(average.item() - want.item()) > 1e-6:
            raise ValueError(f"step {step}: loss {average.item()}, want {want.item()}")
    return report(alone, shared)


def thrown_away_optimizer():
    """Wrapped again with the same parameters after the first optimizer has gone."""
    model = mlp()
    for step in range(3):
        ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        ours.zero_grad()
        loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
        ours.myself = ours  # a cycle: only the garbage collector ends it
        del ours
    return bits(model)
