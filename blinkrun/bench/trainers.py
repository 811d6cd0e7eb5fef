"""One training step each way: ours, DDP, Horovod, one flat MPI allreduce, one process alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import blinkrun.torch as blink
from blinkrun.bench.libraries import UserMemory
from blinkrun.bench.models import MODELS, num_bytes, random_batch
from blinkrun.bench.peers import Mpi
from blinkrun.bench.work import Work
from blinkrun.types import DType, Op

PHASES = ("forward", "backward", "exposed", "optimizer")


class Trainer:
    """A model of its own in training: momentum SGD on one batch, over and over.

    Parameters
    ----------
    name : str
        What tables call it.
    model : str
        A name in `MODELS`.
    batch : int
        Images of this rank in a step.
    rank : int
        This rank: every rank has its own images.
    """

    takes_all_ranks = True

    def __init__(self, name: str, model: str, *, batch: int, rank: int) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model: nn.Module = MODELS[model]()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.001, momentum=0.9
        )
        self.images, self.classes = random_batch(batch, seed=rank)

    def step(self) -> None:
        """Train one step as a user's loop does."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.reduce()
        self.optimizer.step()

    def loss(self) -> torch.Tensor:
        """Return the loss of the batch."""
        return nn.functional.cross_entropy(self.model(self.images), self.classes)

    def reduce(self) -> None:
        """Do what comes between backward and the optimizer's step."""


class Single(Trainer):
    """One process alone, the others asleep."""

    takes_all_ranks = False


class Ours(Trainer):
    """`blinkrun.torch.DistributedOptimizer`."""

    def __init__(self, name: str, model: str, *, batch: int, rank: int, overlap: str) -> None:
        super().__init__(name, model, batch=batch, rank=rank)
        self.ours: Any = blink.DistributedOptimizer(
            self.optimizer, self.model.named_parameters(), overlap=overlap
        )

    def phases(self) -> dict[str, float]:
        """Train one step; return the seconds of each of `PHASES`.

        Exposed is what is left of the communication when backward is through.
        """
        ticks = [time.perf_counter()]

        def tick() -> None:
            ticks.append(time.perf_counter())

        self.ours.zero_grad()
        loss = self.loss()
        tick()
        loss.backward()
        tick()
        self.ours.synchronize()
        tick()
        with self.ours.skip_synchronize():
            self.ours.step()
        tick()
        spans = (end - begin for begin, end in itertools.pairwise(ticks))
        return dict(zip(PHASES, spans, strict=True))


class Ddp(Trainer):
    """`torch.nn.parallel.DistributedDataParallel` over gloo; the process group must be there."""

    def __init__(self, name: str, model: str, *, batch: int, rank: int) -> None:
        super().__init__(name, model, batch=batch, rank=rank)
        self.model = nn.parallel.DistributedDataParallel(self.model)


class DdpBlink(Trainer):
    """The same over backend ``blink``, whose group stands beside the default one."""

    def __init__(self, name: str, model: str, *, batch: int, rank: int) -> None:
        import blinkrun.torch.distributed  # noqa: F401, PLC0415  (registers it)

        super().__init__(name, model, batch=batch, rank=rank)
        group = torch.distributed.new_group(backend="blink")
        self.model = nn.parallel.DistributedDataParallel(self.model, process_group=group)


class Horovod(Trainer):
    """Horovod's DistributedOptimizer, where Horovod is installed."""

    def __init__(self, name: str, model: str, *, batch: int, rank: int) -> None:
        import horovod.torch as hvd  # noqa: PLC0415  (a peer)

        super().__init__(name, model, batch=batch, rank=rank)
        hvd.init()
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer, named_parameters=self.model.named_parameters()
        )


class Flat(Trainer):
    """All gradients in one buffer, reduced by one blocking MPI allreduce after backward."""

    def __init__(self, name: str, model: str, *, batch: int, rank: int, num_ranks: int) -> None:
        super().__init__(name, model, batch=batch, rank=rank)
        work = Work("allreduce", DType.FLOAT32, Op.SUM, 0, num_ranks, num_bytes(self.model))
        mpi = Mpi(UserMemory())
        buffers = mpi.make_buffers(work)
        self._scale = 1.0 / num_ranks
        self._allreduce: Callable[[], object] = mpi.make_call(work, buffers)
        self._flat = torch.from_numpy(buffers.send)
        self._parts = self._flat.split([param.numel() for param in self.model.parameters()])

    def reduce(self) -> None:
        """Copy all gradients in, reduce, scale, copy them out."""
        pairs = [
            (param.grad, part.view_as(param))
            for param, part in zip(self.model.parameters(), self._parts, strict=True)
            if param.grad is not None
        ]
        for grad, part in pairs:
            part.copy_(grad)
        self._allreduce()
        self._flat.mul_(self._scale)
        for grad, part in pairs:
            grad.copy_(part)
