"""What the backend blink says to calls that do not fit together, and to torch's questions."""

import torch
import torch.distributed as dist
from torch_distributed_values import raised, rank, size

CASES = ("disagreements", "bad_arguments", "what_torch_asks")
ANOTHER_KIND = [dist.barrier]  # what some rank calls instead of an allreduce


def disagreements():
    """What every rank is told where ranks differ; the group works on after each."""
    odd = rank() == size() - 1
    said = {
        "count": raised(lambda: dist.all_reduce(torch.ones(4 if odd else 3))),
        "dtype": raised(
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64 if odd else torch.float32))
        ),
        "op": raised(
            lambda: dist.all_reduce(
                torch.ones(3), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
            )
        ),
        "root": raised(lambda: dist.broadcast(torch.ones(3), src=1 if odd else 0)),
        "kind": raised(lambda: ANOTHER_KIND[0]() if odd else dist.all_reduce(torch.ones(3))),
        "splits": raised(
            lambda: dist.all_to_all_single(
                torch.empty(2 * size()),
                torch.empty(2 * size() + odd),
                [2] * size(),
                [2] * (size() - 1) + [2 + odd],
            )
        ),
        "scatter": raised(
            lambda: dist.scatter(
                torch.empty(4 if odd else 3), [torch.ones(3)] * size() if rank() == 0 else None
            )
        ),
    }
    mine = torch.ones(3)
    dist.all_reduce(mine)
    said["after"] = mine.tolist()
    return said


def bad_arguments():
    """What is wrong on one rank alone is raised there, before anything moves."""
    group = dist.group.WORLD
    return {
        "list": raised(lambda: dist.all_gather([torch.empty(2)] * (size() + 1), torch.ones(2))),
        "sizes": raised(lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(size() + 1))),
        "device": raised(lambda: dist.all_reduce(torch.empty(2, device="meta"))),
        "bool": raised(
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG)
        ),
        "bits": raised(lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)),
        "splits": raised(
            lambda: dist.all_to_all_single(
                torch.empty(size()), torch.ones(size()), [1] * size(), [3]
            )
        ),
        "root": raised(lambda: group.broadcast(torch.ones(1), size())),
        "gather": raised(lambda: group.gather([], torch.ones(1), size())),
        "tensors": raised(lambda: group.broadcast([torch.ones(1), torch.ones(1)], 0)),
    }


def what_torch_asks():
    group = dist.group.WORLD
    return {
        "backend": dist.get_backend(),
        "available": dist.is_backend_available("blink"),
        "sizes": [group.rank(), group.size()],
        "devices": [str(each) for each in group._device_types],
        "ranks": dist.get_process_group_ranks(group),
        "monitored": raised(group.monitored_barrier),
    }
