"""Messages between two ranks, each beside collectives and in orders that could block."""

import torch
import torch.distributed as dist

CASES = (
    "around_the_ring",
    "large_both_ways",
    "many_without_receivers",
    "tags_in_any_order",
    "waits_in_another_order",
    "from_anyone",
    "to_oneself",
    "beside_collectives",
    "batches",
    "object_lists",
)


def neighbours():
    size, rank = dist.get_world_size(), dist.get_rank()
    return (rank + 1) % size, (rank - 1) % size


def around_the_ring():
    """What was received, after a token has gone around; types and layouts as they come."""
    after, before = neighbours()
    found = []
    for dtype in (torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2):
        token = torch.ones(3, 2).to(dtype)
        if dist.get_rank() == 0:
            dist.send(token.t(), after)
            target = torch.zeros(2, 3).to(dtype)
            dist.recv(target, before)
        else:
            target = torch.zeros(2, 3).to(dtype).t().contiguous().t()
            dist.recv(target, before)
            dist.send(target, after)
        found.append(target.to(torch.complex64).real.sum().item())
    return found


def large_both_ways():
    """Both wait for their send before their receive, with more than shared memory holds."""
    after, before = neighbours()
    mine, found = torch.full((300_000,), float(dist.get_rank())), torch.empty(300_000)
    works = [dist.isend(mine, after), dist.irecv(found, before)]
    for work in works:
        work.wait()
    return found.unique().tolist()


def many_without_receivers():
    """Sends of which nobody has asked for one yet do not block, however many they are."""
    after, before = neighbours()
    sends = [dist.isend(torch.full((10_000,), float(at)), after) for at in range(30)]
    found = torch.empty(10_000)
    values = []
    for _ in range(30):
        dist.recv(found, before)
        values.append(found[-1].item())
    for work in sends:
        work.wait()
    return values


def tags_in_any_order():
    after, before = neighbours()
    sends = [dist.isend(torch.full((2,), float(tag)), after, tag=tag) for tag in range(4)]
    found = {}
    for tag in (2, 0, 3, 1):
        target = torch.empty(2)
        dist.recv(target, before, tag=tag)
        found[tag] = target.tolist()
    for work in sends:
        work.wait()
    return [found[tag][0] for tag in range(4)]


def waits_in_another_order():
    """A receive that was started first is waited for last: its message comes only then."""
    after, before = neighbours()
    first, second = torch.empty(1), torch.empty(1)
    works = [dist.irecv(first, before, tag=1), dist.irecv(second, before, tag=2)]
    dist.send(torch.full((1,), 2.0), after, tag=2)
    works[1].wait()
    dist.send(second - 1, after, tag=1)
    works[0].wait()
    return [first.item(), second.item()]


def from_anyone():
    if dist.get_rank() != 0:
        dist.send(torch.full((2,), float(dist.get_rank())), 0, tag=7)
        return True
    found = {}
    for _ in range(dist.get_world_size() - 1):
        target = torch.empty(2)
        sender = dist.recv(target, tag=7)
        found[sender] = target[0].item()
    return found == {rank: float(rank) for rank in range(1, dist.get_world_size())}


def to_oneself():
    rank = dist.get_rank()
    target = torch.empty(3)
    work = dist.irecv(target, rank, tag=3)
    dist.isend(torch.full((3,), rank + 0.5), rank, tag=3).wait()
    work.wait()
    return target.tolist() == [rank + 0.5] * 3


def beside_collectives():
    """A rank that waits for a message while another is in a collective that needs it."""
    after, before = neighbours()
    total = torch.ones(1)
    work = dist.all_reduce(total, async_op=True)  # the last rank comes after its message only
    found = torch.empty(1)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), after)
        dist.recv(found, before)
    else:
        dist.recv(found, before)
        dist.send(found + 1, after)
    work.wait()
    return [found.item(), total.item()]


def batches():
    after, before = neighbours()
    found = torch.empty(5)
    ops = [
        dist.P2POp(dist.irecv, found, before),
        dist.P2POp(dist.isend, torch.full((5,), float(dist.get_rank())), after),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return found.unique().tolist() == [float(before)]


def object_lists():
    after, before = neighbours()
    found = [None, None]
    if dist.get_rank() == 0:
        dist.send_object_list([{"n": 0}, "x"], dst=after)
        dist.recv_object_list(found, src=before)
    else:
        dist.recv_object_list(found, src=before)
        dist.send_object_list([{"n": found[0]["n"] + 1}, "x"], dst=after)
    return found == [{"n": before}, "x"]
