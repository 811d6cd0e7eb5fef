"""Named calls, an optimizer and torch.distributed on (fake) devices of ranks on several hosts."""

import gc
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from support import torch_side
from support.fake_cuda import FakeMachine
from support.torch_disguise import Disguise
from torch.nn.parallel import DistributedDataParallel
from torch_pairs import batch, bits, distance, loss_of, mine, mlp, pair

import blinkrun.torch as blink
from blinkrun.engine import engine
from blinkrun.errors import MismatchError

COUNTS = (1, 5, 33, 509, 0, 100_003)
TURNS, TIMES = 2, 4  # the second turn is from the engine's cache


def run_all(store):
    """What each part found, what went through devices, and what is left on them."""
    torch.set_num_threads(1)
    blink.init()
    rank, size = blink.rank(), blink.size()
    machine = FakeMachine(size, lenient=True, seed=rank)
    machine.install()
    disguise = Disguise(machine, blink.local_rank(), lambda tensor: tensor.is_floating_point())
    found = {
        "hosts": engine.current().world.cross_size,
        "joined": with_a_rank_that_has_joined(),
        "in any order": sums_in_any_order(),
        "launches": len(machine.launches),
        "sums": TURNS * TIMES * len(COUNTS),
        "moved": what_moves(),
        "said": mismatch_and_after(),
        "optimizer": optimizer(),
    }
    torch_side.install()
    dist.init_process_group(
        "blink",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=40),
    )
    found |= {"calls": calls_of_a_group(), "ddp": ddp(), "own stream": torch_side.HostSide.made > 0}
    dist.destroy_process_group()
    gc.collect()
    blink.shutdown()
    disguise.close()
    found["left"] = machine.leaks(within_s=10)
    machine.close()
    return found


def with_a_rank_that_has_joined():
    """It has never used its device; its part changes nothing."""
    total = 0.0
    if blink.rank() != 1:
        total = float(blink.allreduce(torch.full((70_001,), 3.0), name="alone", op=blink.Sum).max())
    blink.join()
    return total


def sums_in_any_order():
    """Small ones are fused, large ones travel alone, and ranks ask in different orders."""
    rank, size = blink.rank(), blink.size()
    wrong = []
    for turn in range(TURNS):
        names = {f"sum.{number}": n for number, n in enumerate(COUNTS * TIMES)}
        order = list(names)
        random.Random(f"{rank} {turn}").shuffle(order)
        given = {name: torch.arange(n, dtype=torch.float64) % 7 + rank for name, n in names.items()}
        handles = {
            name: blink.allreduce_async(given[name], name=name, op=blink.Sum) for name in order
        }
        for name, n in names.items():
            wanted = (torch.arange(n) % 7 * size + sum(range(size))).double()
            if not torch.equal(blink.synchronize(handles[name]), wanted):
                wrong.append([turn, name])
    return wrong


def what_moves():
    """What came out wrong of broadcasts, gathers and scatters, even and uneven."""
    rank, size = blink.rank(), blink.size()
    rows = torch.arange(6.0).reshape(3, 2) + 10 * rank
    uneven = torch.full((rank + 1, 2), float(rank))
    splits = [rank + r for r in range(size)]
    whole = torch.full((2 * size + 1, 3), rank + 1.0)
    shuffled, received = blink.alltoall(
        torch.full((sum(splits),), float(rank)), torch.tensor(splits)
    )
    checks = {
        "broadcast": (
            blink.broadcast(rows, size - 1),
            torch.arange(6.0).reshape(3, 2) + 10 * (size - 1),
        ),
        "even": (
            blink.allgather(rows),
            torch.cat([torch.arange(6.0).reshape(3, 2) + 10 * r for r in range(size)]),
        ),
        "uneven": (
            blink.allgather(uneven),
            torch.cat([torch.full((r + 1, 2), float(r)) for r in range(size)]),
        ),
        "alltoall": (shuffled, torch.cat([torch.full((rank + r,), float(r)) for r in range(size)])),
        "received": (received.double(), torch.tensor([rank + r for r in range(size)]).double()),
        "scatter": (
            blink.reducescatter(whole, op=blink.Sum),
            torch.full((2 + (rank == 0), 3), size * (size + 1) / 2),
        ),
        "average": (blink.allreduce(rows), torch.arange(6.0).reshape(3, 2) + 5.0 * (size - 1)),
    }
    return [what for what, (got, wanted) in checks.items() if not torch.equal(got, wanted)]


def mismatch_and_after():
    rank = blink.rank()
    try:
        blink.allreduce(torch.ones(4 if rank == 1 else 3), name="differs")
        said = ""
    except MismatchError as err:
        said = str(err)
    return [said, blink.allreduce(torch.ones(3), name="differs", op=blink.Sum).tolist()]


def optimizer():
    """A net trained by all ranks on devices beside the same net trained by one on the CPU."""
    alone, plain, shared, ours = pair(bucket_bytes=400)
    blink.broadcast_parameters(shared.state_dict())
    apart = 0.0
    for step in range(4):
        inputs, targets = batch(step)
        plain.zero_grad()
        wanted = loss_of(alone, inputs, targets)
        wanted.backward()
        plain.step()
        ours.zero_grad()
        loss = loss_of(shared, mine(inputs), mine(targets))
        loss.backward()
        ours.step()
        mean = blink.allreduce(loss.detach(), name=f"loss.{step}")
        apart = max(apart, abs(float(mean) - wanted.item()))
    arena = engine.current().world.devices
    grads = [param.grad.data_ptr() for param in shared.parameters()]
    return {
        "apart": max(apart, distance(alone, shared)),
        "bits": bits(shared),
        "in the arena": all(arena.contains(pointer) for pointer in grads),
    }


def calls_of_a_group():
    """What came out wrong of torch.distributed's calls."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, root, scattered = (
        torch.full((70_001,), rank + 1.0),
        torch.full((5,), float(rank)),
        torch.empty(3),
    )
    everyone, swapped = [torch.empty(4) for _ in range(size)], torch.empty(size)
    works = [
        dist.all_reduce(total, async_op=True),
        dist.broadcast(root, src=size - 1, async_op=True),
    ]
    dist.all_gather(everyone, torch.full((4,), float(rank)))
    dist.reduce_scatter(scattered, list(torch.arange(3.0 * size).chunk(size)))
    dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
    for work in works:
        work.wait()
    ranks = torch.arange(float(size))
    checks = {
        "all_reduce": (total, torch.full((70_001,), size * (size + 1) / 2)),
        "broadcast": (root, torch.full((5,), size - 1.0)),
        "all_gather": (torch.stack(everyone), ranks.repeat_interleave(4).reshape(size, 4)),
        "reduce_scatter": (scattered, (torch.arange(3.0) + 3 * rank) * size),
        "all_to_all": (swapped, 10 * ranks + rank),
    }
    return [what for what, (got, wanted) in checks.items() if not torch.equal(got, wanted)]


def ddp():
    """How far DDP is from one process on the CPU after some steps, and its bits."""
    alone, shared = mlp(), DistributedDataParallel(mlp())
    plain, ours = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (alone, shared))
    for step in range(3):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return {"apart": distance(alone, shared), "bits": bits(shared)}
