"""DistributedOptimizer with op=Adasum, against the formula applied to each rank's own step."""

import copy
from functools import partial

import torch
from torch_ops_cases import refused
from torch_pairs import batch, bits, loss_of, mine, mlp, wrap

import blinkrun.torch as blink

CASES = (
    "adasum_of_steps",
    "adasum_of_narrow_steps",
    "adasum_with_a_scaler",
    "adasum_while_a_rank_has_joined",
    "adasum_refusals",
)


def combined(deltas):
    """Adasum over a binary tree of ranks, in float64."""
    while len(deltas) > 1:
        pairs = zip(deltas[::2], deltas[1::2], strict=False)
        deltas = [together(a, b) for a, b in pairs] + deltas[len(deltas) // 2 * 2 :]
    return deltas[0]


def together(a, b):
    product, first, second = (a * b).sum(), (a * a).sum(), (b * b).sum()
    shares = [product / (2 * each) if each else 0.0 for each in (first, second)]
    return (1 - shares[0]) * a + (1 - shares[1]) * b


def expected(model, optimizer, losses):
    """Return the parameters after a step, from a copy of `model` that steps for each rank."""
    before = [param.detach().clone() for param in model.parameters()]
    deltas = []
    for loss in losses:
        twin = copy.deepcopy(model)
        twin.zero_grad()
        loss(twin).backward()
        optimizer(twin).step()
        deltas.append([p.detach() - b for p, b in zip(twin.parameters(), before, strict=True)])
    return [
        b + combined([each.double() for each in parts]).to(b.dtype)
        for b, *parts in zip(before, *deltas, strict=True)
    ]


def far(model, wanted):
    return max(
        float((p.detach() - w).abs().max()) for p, w in zip(model.parameters(), wanted, strict=True)
    )


def loss_on(step, rank, dtype):
    inputs, targets = (each[rank :: blink.size()] for each in batch(step, dtype))
    return lambda model: loss_of(model, inputs, targets)


def train(make, *, steps=3, dtype=torch.float64, closure=False, passes=1, **options):
    """`make(model)` gives an optimizer without state, so that every rank's step can be repeated."""
    model = mlp(dtype)
    ours = wrap(make(model), model, op=blink.Adasum, backward_passes_per_step=passes, **options)
    largest = 0.0
    for step in range(steps):
        losses = [loss_on(step, rank, dtype) for rank in range(blink.size())]
        wanted = expected(model, make, losses)
        ours.zero_grad()

        own = losses[blink.rank()]
        if closure:
            ours.step(partial(once, ours, model, own))
        else:
            for _ in range(passes):
                (own(model) / passes).backward()
            ours.step()
        largest = max(largest, far(model, wanted))
    return {"distance": largest, "bits": bits(model)}


def once(optimizer, model, loss):
    optimizer.zero_grad()
    value = loss(model)
    value.backward()
    return value


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def adasum_of_steps():
    return [
        train(sgd),
        train(sgd, closure=True),
        train(sgd, passes=2),
        train(adam, steps=1),
    ]


def adasum_of_narrow_steps():
    return [
        train(sgd, dtype=torch.float32),
        train(sgd, dtype=torch.float32, compression=blink.Compression.bf16),
    ]


def adasum_with_a_scaler():
    """Step 1 overflows on the last rank alone: no rank takes it."""
    model = mlp()
    ours = wrap(sgd(model), model, op=blink.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    seen = []
    for step in range(3):
        ours.zero_grad()
        loss = loss_of(model, *map(mine, batch(step)))
        if step == 1 and blink.rank() == blink.size() - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(ours)
        scaler.update()
        seen.append((scaler.get_scale(), bits(model)))
    return seen


def adasum_while_a_rank_has_joined():
    """Rank 0 has no data: it changes nothing, and the others' changes are combined."""
    size, rank = blink.size(), blink.rank()
    model = mlp(torch.float64)
    ours = wrap(sgd(model), model, op=blink.Adasum)
    active = range(size > 1, size)
    losses = [loss_on(0, each, torch.float64) for each in active]
    wanted = expected(model, sgd, [lambda model: 0 * loss_on(0, 0, torch.float64)(model), *losses])
    if rank in active:
        loss_on(0, rank, torch.float64)(model).backward()
        ours.step()
    distance = far(model, wanted if size > 1 else expected(mlp(torch.float64), sgd, losses))
    blink.join()
    return distance if rank in active else 0.0


def adasum_refusals():
    model = mlp()
    ours = wrap(sgd(model), model, op=blink.Adasum)
    loss_of(model, *map(mine, batch(0))).backward()
    lines = [refused(ours.zero_grad), refused(ours.skip_synchronize)]
    lines.append(refused(loss_of(model, *map(mine, batch(0))).backward))
    ours.synchronize()  # means nothing here, and is no error
    ours.step()
    return lines
