"""A model trained by one process on the joined batch beside the same model trained by all ranks."""

import hashlib
import io

import torch
from torch.nn import functional

import blinkrun.torch as blink

BATCH = 12  # divides by 1, 2, 3 and 4
SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
ADAM = (torch.optim.Adam, {"lr": 0.01})


def mlp(dtype=torch.float32):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )  # fmt: skip
    return model.to(dtype)


def batch(step, dtype=torch.float32):
    torch.manual_seed(100 + step)
    return torch.randn(BATCH, 6).to(dtype), torch.randn(BATCH, 3).to(dtype)


def mine(tensor):
    """This rank's part of a joined batch."""
    return tensor[blink.rank() :: blink.size()]


def wrap(optimizer, model, **options):
    return blink.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), **options
    )


def pair(make_model=mlp, kind=SGD, **options):
    """The same model twice, with a plain optimizer and with ours."""
    alone, shared = make_model(), make_model()
    optimizer_class, arguments = kind
    ours = wrap(optimizer_class(shared.parameters(), **arguments), shared, **options)
    return alone, optimizer_class(alone.parameters(), **arguments), shared, ours


def loss_of(model, inputs, targets):
    return functional.mse_loss(model(inputs), targets)


def distance(alone, shared):
    """The largest difference between the parameters of two models."""
    both = zip(alone.parameters(), shared.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in both)


def bits(model):
    """A digest of all parameters: equal only if they are bitwise equal."""
    whole = io.BytesIO()
    for param in model.parameters():
        whole.write(param.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashlib.sha256(whole.getvalue()).hexdigest()


def report(alone, shared):
    return {"distance": distance(alone, shared), "bits": bits(shared)}


def train_both(steps=6, **options):
    alone, plain, shared, ours = pair(**options)
    for step in range(steps):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return alone, shared
