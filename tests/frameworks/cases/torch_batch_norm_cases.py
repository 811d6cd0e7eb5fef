"""SyncBatchNorm on parts of a batch, against torch's BatchNorm on the whole."""

import torch
from torch_ops_cases import refused

import blinkrun.torch as blink

CASES = (
    "batch_norm_of_joined_batches",
    "batch_norm_of_uneven_batches",
    "batch_norm_in_evaluation",
    "batch_norm_of_narrow_types",
    "batch_norm_converted",
    "batch_norm_while_a_rank_has_joined",
    "batch_norm_refusals",
)

PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
PLAIN[5] = torch.nn.BatchNorm3d
CHANNELS = 3


def rows_of(rank, size, uneven):
    """Which rows of a batch of 12 a rank has; unevenly: the last has none, the first the rest."""
    if not uneven or size == 1:
        return slice(rank, 12, size)
    return (
        slice(12, 12)
        if rank == size - 1
        else slice(5 * rank, 12 if rank == size - 2 else 5 * rank + 5)
    )


def far(a, b):
    return float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0


def compare(shape, *, uneven=False, dtype=torch.float64, **options):
    """Return how far outputs, gradients and running statistics are from torch's."""
    torch.manual_seed(7)
    whole = (torch.randn(12, CHANNELS, *shape) * 2 + 50).to(dtype)
    alone = PLAIN[whole.dim()](CHANNELS, dtype=dtype, **options)
    shared = blink.SyncBatchNorm(CHANNELS, dtype=dtype, **options)
    weights = torch.randn(CHANNELS, dtype=dtype), torch.randn(CHANNELS, dtype=dtype)
    if alone.affine:
        for module in (alone, shared):
            with torch.no_grad():
                module.weight.copy_(weights[0])
                module.bias.copy_(weights[1])
    mine = rows_of(blink.rank(), blink.size(), uneven)
    distances = {}
    for step in range(3):
        inputs = whole * (1 + step)
        both = inputs.clone().requires_grad_(), inputs[mine].clone().requires_grad_()
        outputs = alone(both[0]), shared(both[1])
        pull = torch.linspace(-1, 1, inputs.numel(), dtype=dtype).view_as(inputs)
        outputs[0].backward(pull)
        outputs[1].backward(pull[mine])
        near = {
            "outputs": far(outputs[0][mine], outputs[1]),
            "gradients": far(both[0].grad[mine], both[1].grad),
        }
        if alone.affine:
            for name in ("weight", "bias"):
                joined = blink.allreduce(getattr(shared, name).grad, op=blink.Sum)
                near[name] = far(getattr(alone, name).grad, joined)
        if alone.track_running_stats:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                near[name] = far(getattr(alone, name), getattr(shared, name))
        distances = {name: max(distances.get(name, 0.0), value) for name, value in near.items()}
    return distances


def batch_norm_of_joined_batches():
    return [
        compare(()),
        compare((4,)),
        compare((2, 5)),
        compare((2, 1, 3), momentum=None),
        compare((2, 2), affine=False),
        compare((2, 2), track_running_stats=False),
        compare((2, 2), momentum=0.7, eps=0.1),
    ]


def batch_norm_of_uneven_batches():
    return [compare((), uneven=True), compare((2, 3), uneven=True)]


def batch_norm_in_evaluation():
    """Takes running statistics, and only the last rank calls it."""
    torch.manual_seed(8)
    shared = blink.SyncBatchNorm(CHANNELS)
    alone = torch.nn.BatchNorm2d(CHANNELS)
    shared(torch.randn(6, CHANNELS, 2, 2))
    alone.load_state_dict(shared.state_dict())
    shared.eval()
    alone.eval()
    inputs = torch.randn(4, CHANNELS, 2, 2)
    if blink.rank() == blink.size() - 1:
        return far(alone(inputs), shared(inputs))
    return 0.0


def batch_norm_of_narrow_types():
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(9)
        whole = torch.randn(12, CHANNELS, 4)
        mine = rows_of(blink.rank(), blink.size(), uneven=False)
        shared = blink.SyncBatchNorm(CHANNELS)
        want = torch.nn.BatchNorm1d(CHANNELS)(whole)
        got = shared(whole[mine].to(dtype))
        label = str(dtype).removeprefix("torch.")
        found[label] = [str(got.dtype), far(want[mine], got)]
    return found


def batch_norm_converted():
    torch.manual_seed(10)
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(2, CHANNELS, 1), torch.nn.Sequential(torch.nn.BatchNorm2d(CHANNELS))
    )
    weight = plain[1][0].weight
    converted = blink.SyncBatchNorm.convert_sync_batchnorm(plain)
    same = converted[1][0].weight is weight
    keys = sorted(converted.state_dict())
    return [type(converted[1][0]).__name__, same, keys]


def batch_norm_while_a_rank_has_joined():
    """Its part of the batch is missing: the statistics are those of the others."""
    size, rank = blink.size(), blink.rank()
    torch.manual_seed(11)
    whole = torch.randn(12, CHANNELS)
    shared = blink.SyncBatchNorm(CHANNELS)
    distance = 0.0
    if rank or size == 1:
        others = torch.cat([whole[r::size] for r in range(size > 1, size)])
        want = torch.nn.BatchNorm1d(CHANNELS)(others)
        got = shared(whole[rank::size])
        start = sum(len(whole[r::size]) for r in range(1, rank))
        distance = far(want[start : start + len(got)], got)
    blink.join()
    return distance


def batch_norm_refusals():
    norm = blink.SyncBatchNorm(CHANNELS)
    is_first = blink.rank() == 0
    return [
        refused(lambda: norm(torch.ones(CHANNELS))),
        refused(lambda: norm(torch.ones(2, CHANNELS + 1))),
        # One value in all, with one rank torch's own error
        "" if blink.size() == 1 else refused(lambda: norm(torch.ones(int(is_first), CHANNELS))),
    ]
