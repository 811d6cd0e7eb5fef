"""What torch builds on a process group, against one process with all ranks' data."""

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASES = (
    "ddp",
    "ddp_variants",
    "ddp_with_unused_parameters",
    "ddp_with_sparse_gradients",
    "ddp_of_double_and_half",
    "ddp_join",
    "fsdp2",
    "zero_redundancy",
    "checkpoints",
    "dtensors",
    "mesh_of_two_dimensions",
    "sampler",
    "same_bits_again",
)
ROWS = 12  # a multiple of every number of ranks in the tests


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 5)).double()


def data(step, whole=False):
    torch.manual_seed(100 + step)
    inputs, wanted = torch.randn(ROWS, 6).double(), torch.randn(ROWS, 5).double()
    if whole:
        return inputs, wanted
    size, rank = dist.get_world_size(), dist.get_rank()
    return inputs.chunk(size)[rank], wanted.chunk(size)[rank]


def train(net, optimizer, steps=4, whole=False):
    for step in range(steps):
        inputs, wanted = data(step, whole)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), wanted).backward()
        optimizer.step()
    return net


def alone(kind=torch.optim.SGD, **options):
    net = model()
    return list(train(net, kind(net.parameters(), **options), whole=True).parameters())


def distance(found, wanted):
    return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))


def ddp():
    net = DistributedDataParallel(model())
    train(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return distance(net.parameters(), alone(lr=0.1, momentum=0.9))


def ddp_variants():
    """The distance for each way to set DDP up."""
    found = {}
    for name, options in {
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "small buckets": {"bucket_cap_mb": 0.0001},
    }.items():
        net = DistributedDataParallel(model(), **options)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
        found[name] = distance(net.parameters(), alone(lr=0.1))
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.allreduce_hook)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    found["hook"] = distance(net.parameters(), alone(lr=0.1))
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, wanted = data(0)
    half = len(inputs) // 2
    with net.no_sync():
        nn.functional.mse_loss(net(inputs[:half]), wanted[:half]).backward()
    nn.functional.mse_loss(net(inputs[half:]), wanted[half:]).backward()
    for parameter in net.parameters():
        parameter.grad.mul_(0.5)
    optimizer.step()
    one = model()
    train(one, torch.optim.SGD(one.parameters(), lr=0.1), steps=1, whole=True)
    found["no_sync"] = distance(net.parameters(), one.parameters())
    return found


def ddp_with_unused_parameters():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.left, self.right = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, inputs):
            return (self.left if dist.get_rank() == 0 else self.right)(inputs)

    net = DistributedDataParallel(Either(), find_unused_parameters=True)
    net(torch.ones(1, 2)).sum().backward()
    return [parameter.grad.flatten()[0].item() for parameter in net.parameters()]


def ddp_with_sparse_gradients():
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.EmbeddingBag(8, 2, mode="sum", sparse=True))
    rank = dist.get_rank()
    net(torch.tensor([[rank, 5]])).sum().backward()
    return net.module.weight.grad.to_dense().sum(1).tolist()


def ddp_of_double_and_half():
    """Gradients of two types, of which one travels in bfloat16."""
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()])

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = net

        def forward(self, inputs):
            return self.parts[0](inputs) + self.parts[1](inputs.bfloat16()).float()

    both = DistributedDataParallel(Both())
    both(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    return [part.weight.grad.float().mean().item() for part in net]


def ddp_join():
    """Ranks with different numbers of batches; whether all end with the same parameters."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Join([net]):
        train(net, optimizer, steps=2 + dist.get_rank())
    mine = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(each, mine) for each in everyone)


def fsdp2():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, torch.optim.Adam(net.parameters(), lr=0.01))
    whole = [parameter.full_tensor() for parameter in net.parameters()]
    return distance(whole, alone(torch.optim.Adam, lr=0.01))


def zero_redundancy():
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer)
    optimizer.consolidate_state_dict(to=0)
    has_state = dist.get_rank() != 0 or len(optimizer.state_dict()["state"]) == 4
    return {
        "distance": distance(net.parameters(), alone(torch.optim.Adam, lr=0.01)),
        "whole": has_state,
    }


def checkpoints():
    """Whether a sharded model comes back from what all ranks have saved together."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net, other = model(), model()
    for each in (net, other):
        fully_shard(each, mesh=mesh)
    checkpoint.save({"net": net.state_dict()}, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    state = {"net": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["net"])
    found = distance(
        [each.full_tensor() for each in other.parameters()],
        [each.full_tensor() for each in net.parameters()],
    )
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return found


def dtensors():
    """Products of tensors that are spread in different ways, gathered."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    left, right = torch.randn(7, 5).double(), torch.randn(5, 6).double()
    found = []
    for of_left, of_right in (
        (Shard(0), Replicate()),
        (Replicate(), Shard(1)),
        (Shard(1), Shard(0)),
    ):
        product = distribute_tensor(left, mesh, [of_left]) @ distribute_tensor(
            right, mesh, [of_right]
        )
        found.append(distance([product.full_tensor()], [left @ right]))
    spread = distribute_tensor(left, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    return [*found, distance([spread.full_tensor()], [left])]


def mesh_of_two_dimensions():
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("data", "model"))
    mine = torch.full((1,), float(rank))
    dist.all_reduce(mine, group=mesh.get_group("data"))
    own = torch.full((1,), float(rank))
    dist.all_reduce(own, group=mesh["model"].get_group())
    return [mine.item(), own.item()] == [float(sum(range(size))), float(rank)]


def sampler():
    """Every image is seen by one rank, however they are shuffled."""
    images = TensorDataset(torch.arange(ROWS))
    share = DistributedSampler(images, shuffle=True, seed=1)
    share.set_epoch(2)
    seen = torch.cat([batch for (batch,) in DataLoader(images, batch_size=2, sampler=share)])
    everyone = torch.empty(ROWS, dtype=torch.int64)
    dist.all_gather_into_tensor(everyone, seen)
    return sorted(everyone.tolist()) == list(range(ROWS))


def same_bits_again():
    """Whether two runs of one training end with the same bits."""
    ends = []
    for _ in range(2):
        net = DistributedDataParallel(model().float(), bucket_cap_mb=0.0005)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            inputs, wanted = data(step)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs.float()), wanted.float()).backward()
            optimizer.step()
        ends.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    return torch.equal(*ends)
