"""The models of the training benchmark, on random images of 3x32x32 in 10 classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

IMAGE = (3, 32, 32)
NUM_CLASSES = 10


def mlp25() -> nn.Module:
    """Return linear 3072-1536-1024-10 with ReLU: 6.3 million parameters, 25 MB."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3072, 1536),
        nn.ReLU(),
        nn.Linear(1536, 1024),
        nn.ReLU(),
        nn.Linear(1024, NUM_CLASSES),
    )


def cnn1() -> nn.Module:
    """Return convolutions 3-32-64-128 and linear 2048-64-10: 1 MB, much arithmetic for it."""
    return _cnn((32, 64, 128), 64)


def cnn27() -> nn.Module:
    """Return convolutions 3-64-128-256 and linear 4096-1536-10: 27 MB."""
    return _cnn((64, 128, 256), 1536)


def _cnn(channels: Sequence[int], hidden: int) -> nn.Module:
    """Return 3x3 convolutions, each with ReLU and 2x2 max-pool, and two linear layers."""
    layers: list[nn.Module] = []
    before = IMAGE[0]
    for after in channels:
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    side = IMAGE[1] >> len(channels)
    layers += [nn.Flatten(), nn.Linear(before * side * side, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, NUM_CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp25": mlp25, "cnn1": cnn1, "cnn27": cnn27}


def num_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters, which are those of all gradients."""
    return sum(param.numel() * param.element_size() for param in model.parameters())


def random_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `size` images and their classes."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, *IMAGE, generator=generator)
    return images, torch.randint(NUM_CLASSES, (size,), generator=generator)
