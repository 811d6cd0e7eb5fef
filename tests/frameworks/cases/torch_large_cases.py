"""More elements than 32 bits count."""

import torch

import blinkrun.torch as blink

COUNT = (1 << 31) + 17


def run():
    torch.set_num_threads(1)
    blink.init()
    rank = blink.rank()
    tensor = torch.full((COUNT,), rank + 1, dtype=torch.uint8)
    tensor[-3], tensor[(1 << 31) - 1] = 10 + rank, 20 + rank
    blink.allreduce_(tensor, op=blink.Sum)
    sums = tensor[[0, -3, (1 << 31) - 1, COUNT // 2]].tolist()
    tensor.fill_(rank)
    tensor[-1] = 7 + rank
    blink.broadcast_(tensor, 1)
    given = tensor[[-1, 5]].tolist()
    del tensor
    rows = (1 << 30) + 3
    mine = torch.full((rows if rank == 0 else 5, 2), rank + 1, dtype=torch.int8)
    gathered = blink.allgather(mine)
    ends = [gathered[0, 0].item(), gathered[rows - 1, 1].item(), gathered[rows, 0].item()]
    return [sums, given, len(gathered) - rows, ends]
