"""Training with N ranks, compared with one process on the joined batch: gradients and buckets."""

import warnings
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # before blinkrun.torch, on purpose
from torch_pairs import (
    ADAM,
    BATCH,
    SGD,
    batch,
    bits,
    loss_of,
    mine,
    mlp,
    pair,
    report,
    train_both,
    wrap,
)
from torch_variants_cases import zero_grad_keeps_or_drops

import blinkrun.torch as blink
from blinkrun.torch import settings

CASES = (
    "trains_like_one_process",
    "trains_like_one_process_in_small_buckets_with_overlap",
    "trains_like_one_process_without_copying_gradients",
    "trains_again_to_the_same_bits",
    "convolutions_channels_last",
    "sixteen_bit_gradients",
    "gradients_are_views_of_buckets",
    "order_is_learned",
    "parameters_without_gradients",
    "parameters_that_come_and_go",
    "ranks_without_backward",
    "clipping_with_skip_synchronize",
    "clipping_without_a_call",
    "step_after_synchronize",
    "accumulation",
    "accumulation_in_one_pass_only",
    "accumulation_begun_again",
)


def trains_like_one_process():
    kinds = (
        SGD,
        ADAM,
        (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
        (torch.optim.RMSprop, {"lr": 0.01}),
    )
    return [report(*train_both(kind=kind)) for kind in kinds]


def trains_like_one_process_in_small_buckets_with_overlap():
    return [
        report(*train_both(overlap=overlap, bucket_bytes=bucket_bytes))
        for overlap in ("on", "off")
        for bucket_bytes in (1, 300, 1 << 20)
    ]


@contextmanager
def uncopied(limit_bytes):
    """Reduce gradients of `limit_bytes` and more where backward has put them."""
    before, settings.choose_direct_bytes = settings.choose_direct_bytes, lambda world: limit_bytes
    try:
        yield
    finally:
        settings.choose_direct_bytes = before


def trains_like_one_process_without_copying_gradients():
    """The large ones, all of them; accumulated, cleared and missing ones as well."""
    with uncopied(300):
        some = [report(*train_both(overlap=overlap)) for overlap in ("on", "off")]
    with uncopied(1):
        return [
            *some,
            report(*train_both(kind=ADAM)),
            *accumulation(),
            *zero_grad_keeps_or_drops(),
            convolutions_channels_last(),
        ]


def trains_again_to_the_same_bits():
    return [bits(train_both(overlap=overlap)[1]) for overlap in ("off", "off", "on", "on")]


def convolutions_channels_last():
    def model():
        torch.manual_seed(2)
        layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3),
            torch.nn.Flatten(), torch.nn.Linear(20, 2),
        )  # fmt: skip
        return layers.to(memory_format=torch.channels_last)

    alone, plain, shared, ours = pair(model)
    torch.manual_seed(3)
    images = torch.randn(BATCH, 3, 6, 6).to(memory_format=torch.channels_last)
    for _ in range(4):
        plain.zero_grad()
        alone(images).square().mean().backward()
        plain.step()
        ours.zero_grad()
        shared(mine(images)).square().mean().backward()
        ours.step()
    same_strides = all(p.grad.stride() == p.stride() for p in shared.parameters())
    return {**report(alone, shared), "same_strides": same_strides}


def sixteen_bit_gradients():
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = mlp(dtype)
        ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        loss_of(model, *map(mine, batch(0, dtype))).backward()
        ours.step()
        grads = [param.grad for param in model.parameters()]
        want = mlp(torch.float64)
        loss_of(want, *batch(0, torch.float64)).backward()
        far = max(
            float((grad.double() - p.grad).norm() / p.grad.norm())
            for grad, p in zip(grads, want.parameters(), strict=True)
        )
        label = str(dtype).removeprefix("torch.")
        found[label] = [all(grad.dtype == dtype for grad in grads), far, bits(model)]
    return found


def gradients_are_views_of_buckets():
    """After step() gradients of neighbours share one storage; a second step copies none out."""
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    places = []
    for step in range(3):
        ours.zero_grad()
        loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
        places.append([p.grad.data_ptr() for p in model.parameters()])
    storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    return [len(storages), places[1] == places[2], len(set(places[0]))]


class Crossed(torch.nn.Module):
    """Its layers run in another order than they are registered, each rank in its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, inputs, order):
        for number in order:
            inputs = torch.tanh(self.layers[number](inputs))
        return inputs


def order_is_learned():
    """Rank 0's order is everybody's after the first step; another order still gives its sums."""
    model = Crossed()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, bucket_bytes=80, overlap="on")
    order = [2, 0, 3, 1] if blink.rank() == 0 else [1, 3, 2, 0]
    torch.manual_seed(blink.rank())
    inputs = torch.randn(3, 4)
    local = Crossed()
    largest = 0.0
    for _ in range(3):
        ours.zero_grad()
        local.zero_grad()
        model(inputs, order).sum().backward()
        local(inputs, order).sum().backward()
        ours.synchronize()
        for shared, own in zip(model.parameters(), local.parameters(), strict=True):
            average = blink.allreduce(own.grad)
            largest = max(largest, float((average - shared.grad).abs().max()))
        with ours.skip_synchronize():
            ours.step()
        local.load_state_dict(model.state_dict())
    layout = ours._blinkrun.reducer.layout
    biases = [slot.gradient // 2 for b in layout.buckets for slot in b.slots if slot.gradient % 2]
    return {"distance": largest, "bits": bits(model), "layers": biases}


def parameters_without_gradients():
    """Layer 0: every rank has a gradient; 1: only rank 0; 2: all but rank 0; 3: no rank."""
    return [
        *(missing(overlap) for overlap in ("on", "off")),
        *(missing(overlap, limit_bytes=20) for overlap in ("on", "off")),
    ]


def missing(overlap, limit_bytes=1 << 30):
    with uncopied(limit_bytes):
        model = Crossed()
        ours = wrap(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
            model,
            bucket_bytes=80,
            overlap=overlap,
        )
    before = [p.detach().clone() for p in model.layers[3].parameters()]
    uses = [0, 1] if blink.rank() == 0 else [0, 2]
    for _ in range(3):
        ours.zero_grad()
        local = Crossed()
        local.load_state_dict(model.state_dict())
        local(torch.ones(2, 4), uses).sum().backward()
        model(torch.ones(2, 4), uses).sum().backward()
        ours.synchronize()
        want = [
            blink.allreduce(torch.zeros_like(p) if p.grad is None else p.grad)
            for p in local.parameters()
        ]
        got = [p.grad for p in model.parameters()]
        with ours.skip_synchronize():
            ours.step()
    return {
        "none": [grad is None for grad in got],
        "distance": max(
            float((g - w).abs().max()) for g, w in zip(got, want, strict=True) if g is not None
        ),
        "frozen": all(map(torch.equal, before, model.layers[3].parameters())),
        "bits": bits(model),
    }


def parameters_that_come_and_go():
    """Layer 3: no rank has a gradient, then rank 0, then no rank, then all, then the last."""
    model = Crossed()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    is_last = blink.rank() == blink.size() - 1
    seen = []
    for uses in (False, blink.rank() == 0, False, True, is_last):
        ours.zero_grad()
        model(torch.ones(2, 4), [0, 3] if uses else [0]).sum().backward()
        ours.step()
        seen.append(model.layers[3].bias.grad is not None)
    return [seen, bits(model)]


def ranks_without_backward():
    """The last rank has no data left: it calls step() and gets everybody's gradients."""
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    has_data = blink.rank() < blink.size() - 1 or blink.size() == 1
    for step in range(3):
        ours.zero_grad()
        if has_data:
            loss_of(model, *map(mine, batch(step))).backward()
        ours.step()
    return [bits(model), bits(model) != bits(mlp())]


def clip_both(clip, *, synchronize, op=blink.Average):
    alone, plain, shared, ours = pair(op=op)
    for step in range(4):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        clip(alone.parameters(), 0.1)
        plain.step()
        ours.zero_grad()
        loss = loss_of(shared, mine(inputs), mine(targets))
        (loss / blink.size() if op == blink.Sum else loss).backward()
        if synchronize:
            ours.synchronize()
        clip(shared.parameters(), 0.1)
        with ours.skip_synchronize() if synchronize else nullcontext():
            ours.step()
    return report(alone, shared)


def clipping_with_skip_synchronize():
    return clip_both(torch.nn.utils.clip_grad_norm_, synchronize=True)


def clipping_without_a_call():
    """By names bound before blinkrun was there too. With Sum a second reduction would show."""
    return [
        clip_both(torch.nn.utils.clip_grad_norm_, synchronize=False, op=blink.Sum),
        clip_both(clip_grad_norm_, synchronize=False),
        clip_both(clip_grad_value_, synchronize=False),
    ]


def step_after_synchronize():
    """Warns as Horovod does, and does not reduce again, which Sum would show."""
    alone, plain, shared, ours = pair(op=blink.Sum)
    inputs, targets = batch(0)
    loss_of(alone, inputs, targets).backward()
    plain.step()
    (loss_of(shared, mine(inputs), mine(targets)) / blink.size()).backward()
    ours.synchronize()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ours.step()
    return {**report(alone, shared), "heard": [str(warning.message) for warning in heard]}


def accumulation():
    """Two passes over half a batch each, as one pass over the whole."""
    found = []
    for set_to_none in (True, False):
        alone, plain, shared, ours = pair(backward_passes_per_step=2)
        for step in range(4):
            inputs, targets = batch(step)
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            plain.step()
            ours.zero_grad(set_to_none=set_to_none)
            own_inputs, own_targets = mine(inputs), mine(targets)
            half = -(-len(own_inputs) // 2)
            for part in (slice(0, half), slice(half, None)):
                weight = len(own_inputs[part]) / len(own_inputs)
                loss = loss_of(shared, own_inputs[part], own_targets[part])
                (loss * weight).backward()
            ours.step()
        found.append(report(alone, shared))
    return found


def accumulation_in_one_pass_only():
    """A layer that only the first of two passes uses is reduced in step()."""
    model = Crossed()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, backward_passes_per_step=2)
    local = Crossed()
    for passes in ([0, 1, 2], [0, 3]):
        inputs = torch.full((2, 4), 0.1 * (blink.rank() + 1))
        model(inputs, passes).sum().backward()
        local(inputs, passes).sum().backward()
    ours.synchronize()
    pairs = zip(model.parameters(), local.parameters(), strict=True)
    far = max(float((p.grad - blink.allreduce(q.grad)).abs().max()) for p, q in pairs)
    return {"distance": far, "bits": bits(model)}


def accumulation_begun_again():
    """zero_grad() in the middle of the passes starts over."""
    alone, plain, shared, ours = pair(backward_passes_per_step=2)
    inputs, targets = batch(0)
    loss_of(alone, inputs, targets).backward()
    plain.step()
    loss_of(shared, mine(inputs), mine(targets)).backward()
    ours.zero_grad()
    for _ in range(2):
        (loss_of(shared, mine(inputs), mine(targets)) / 2).backward()
    ours.step()
    return report(alone, shared)
