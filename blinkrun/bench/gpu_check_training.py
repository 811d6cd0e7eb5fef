"""Training in `gpu_check`: ranks with `DistributedOptimizer` come to the loss of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blinkrun.bench.gpu_check_worker import run_processes

if TYPE_CHECKING:
    from blinkrun.comm.sockets import SocketControl

BATCH = 32  # of all ranks together
STEPS = 20
TOLERANCE = 1e-4  # of a loss, relative: other kernels add in other orders


def check_training(size: int, *, device: str, deadline_s: float) -> dict[str, Any]:
    """Return the losses of `size` ranks on `device` beside those of one process on the CPU."""
    job = {"run": "blinkrun.bench.gpu_check_training:rank", "device": device}
    results = run_processes(size, job, deadline_s=deadline_s)
    alone = losses("cpu", 0, 1, None)
    together = [
        sum(each) / size for each in zip(*(each["losses"] for each in results), strict=True)
    ]
    off = max(abs(a - b) / abs(a) for a, b in zip(alone, together, strict=True))
    return {
        "ranks": size,
        "device": device,
        "steps": STEPS,
        "first_loss": together[0],
        "last_loss": together[-1],
        "last_loss_of_one_process": alone[-1],
        "largest_difference": off,
        "ok": off <= TOLERANCE and alone[-1] < alone[0],
    }


def rank(control: SocketControl, job: Mapping[str, Any]) -> dict[str, Any]:
    """Train as one rank of several."""
    import blinkrun  # noqa: PLC0415 - in the processes that train only
    import blinkrun.torch as blink  # noqa: PLC0415

    blinkrun.init(job["timeout_s"], control=control)
    try:
        return {"losses": losses(job["device"], control.rank, control.size, blink)}
    finally:
        blinkrun.shutdown()


def losses(device: str, rank: int, size: int, blink: Any) -> list[float]:
    """Return the loss of every step on this rank's share of each batch."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)
    )
    model.to(device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if blink is not None:
        optimizer = blink.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        blink.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs = torch.randn(BATCH * STEPS, 20, generator=torch.Generator().manual_seed(1))
    classes = (inputs[:, :5] + inputs[:, 5:10]).argmax(1)
    share = BATCH // size
    found = []
    for step in range(STEPS):
        begin = step * BATCH + rank * share
        part = slice(begin, begin + share)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[part].to(device)), classes[part].to(device))
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def missing(device: str) -> str:
    """Return why nothing can be trained on `device` here; empty if it can."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return "torch is not installed"
    if device.startswith("cuda") and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return ""
