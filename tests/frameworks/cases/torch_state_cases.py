"""What one rank has, given to all."""

import copy

import torch
from torch_ops_cases import refused

import blinkrun.torch as blink
from blinkrun.torch import state

CASES = (
    "parameters_of_every_dtype",
    "parameters_from_a_generator",
    "parameters_in_pieces",
    "parameters_without_names",
    "parameters_in_another_order",
    "parameters_of_some_ranks",
    "parameters_that_differ",
    "parameters_that_cannot_be_sent",
    "optimizer_state_of_the_root_only",
    "optimizer_state_of_others_only",
    "optimizer_state_in_groups",
    "optimizer_state_of_every_kind",
    "gradients_of_a_fresh_optimizer",
    "objects",
)


def values_of(rank):
    """A state_dict with every kind of value, different on every rank."""
    torch.manual_seed(rank)
    return {
        "weight": torch.randn(7, 3),
        "transposed": torch.randn(4, 6).t(),
        "strided": torch.randn(6, 4)[::2],
        "half": torch.randn(5).half(),
        "brain": torch.randn(5).bfloat16(),
        "double": torch.randn(3, dtype=torch.float64),
        "short": torch.randint(100, (3,), dtype=torch.int16),
        "complex": torch.randn(3, dtype=torch.complex64),
        "count": torch.tensor(rank + 10),
        "mask": torch.rand(9) > 0.5,
        "empty": torch.empty(0, 4),
        "step": rank,
        "note": f"from rank {rank}",
        "nothing": None,
    }


def unlike(mine, want):
    """The names whose values are not those wanted."""
    return [
        name
        for name, value in want.items()
        if not (torch.equal(mine[name], value) if torch.is_tensor(value) else mine[name] == value)
    ]


def parameters_of_every_dtype():
    found = []
    for root in {0, blink.size() - 1}:
        mine = values_of(blink.rank())
        memory = {name: v.data_ptr() for name, v in mine.items() if torch.is_tensor(v)}
        blink.broadcast_parameters(mine, root_rank=root)
        found += unlike(mine, values_of(root))
        found += [f"{name} moved" for name, at in memory.items() if mine[name].data_ptr() != at]
    return found


def parameters_from_a_generator():
    torch.manual_seed(blink.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    blink.broadcast_parameters(model.named_parameters(), root_rank=0)
    torch.manual_seed(0)
    want = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    return [
        unlike(model.state_dict(), want.state_dict()),
        all(param.requires_grad for param in model.parameters()),
    ]


def parameters_without_names():
    torch.manual_seed(blink.rank())
    model = torch.nn.Linear(3, 4)
    blink.broadcast_parameters(list(model.parameters()), root_rank=0)
    torch.manual_seed(0)
    return unlike(model.state_dict(), torch.nn.Linear(3, 4).state_dict())


def parameters_in_another_order():
    """A mapping's order may depend on the rank."""
    items = list(values_of(blink.rank()).items())
    mine = dict(items if blink.rank() % 2 else items[::-1])
    blink.broadcast_parameters(mine, 0)
    return unlike(mine, values_of(0))


def parameters_of_some_ranks():
    """The last two ranks, from the last."""
    chosen = list(range(blink.size()))[-2:]
    if blink.size() < 3:
        return []
    some = blink.add_process_set(chosen)
    mine = values_of(blink.rank())
    if some.included():
        blink.broadcast_parameters(mine, chosen[-1], process_set=some)
        _, optimizer = trained(torch.optim.Adam, blink.rank(), lr=0.1)
        blink.broadcast_optimizer_state(optimizer, chosen[-1], process_set=some)
        _, want = trained(torch.optim.Adam, chosen[-1], lr=0.1)
        if flat(optimizer.state_dict()) != flat(want.state_dict()):
            return ["optimizer"]
    blink.remove_process_set(some)
    return unlike(mine, values_of(chosen[-1] if blink.rank() in chosen else blink.rank()))


def parameters_in_pieces():
    """More than one joined broadcast, and tensors that travel alone."""
    before, state._JOINED_BYTES = state._JOINED_BYTES, 100
    try:
        return parameters_of_every_dtype()
    finally:
        state._JOINED_BYTES = before


def parameters_that_differ():
    last = blink.rank() == blink.size() - 1
    shape = {"a": torch.zeros(2), "b": torch.zeros(3 if last else 2)}
    names = {"a": torch.zeros(2), "c" if last else "b": torch.zeros(2)}
    longer = {"a": torch.zeros(2), **({"extra": torch.zeros(1)} if last else {})}
    return {
        "shape": refused(lambda: blink.broadcast_parameters(shape)),
        "names": refused(lambda: blink.broadcast_parameters(names)),
        "longer": refused(lambda: blink.broadcast_parameters(longer)),
    }


def parameters_that_cannot_be_sent():
    return {
        "sparse": refused(lambda: blink.broadcast_parameters({"s": torch.eye(2).to_sparse()})),
        "lazy": refused(
            lambda: blink.broadcast_parameters(torch.nn.LazyLinear(3).named_parameters())
        ),
        "plain": refused(lambda: blink.broadcast_parameters([("n", 3)])),
        "no_pairs": refused(lambda: blink.broadcast_parameters([1.0])),
        "nothing": refused(lambda: blink.broadcast_parameters(None)),
    }


def trained(optimizer_class, steps, **options):
    """A model and its optimizer after some steps on data of seed 5."""
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3)
    optimizer = optimizer_class(model.parameters(), **options)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


def flat(value):
    """The numbers of a state_dict, in order."""
    if torch.is_tensor(value):
        return value.double().flatten().tolist()
    if isinstance(value, dict):
        return [n for key in sorted(value, key=str) for n in flat(value[key])]
    if isinstance(value, list | tuple):
        return [n for item in value for n in flat(item)]
    return [repr(value)]


OPTIMIZERS = (
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.Adagrad, {"lr": 0.01}),
    (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4}),
)


def optimizer_state_of_the_root_only():
    """A checkpoint loaded on one rank reaches all, and training goes on alike."""
    found = []
    root = blink.size() - 1
    for optimizer_class, options in OPTIMIZERS:
        _, want = trained(optimizer_class, 3, **options)
        is_root = blink.rank() == root
        _, mine = trained(optimizer_class, 3 if is_root else 0, **options)
        blink.broadcast_optimizer_state(mine, root_rank=root)
        if flat(mine.state_dict()) != flat(want.state_dict()):
            found.append(optimizer_class.__name__)
    return found


def optimizer_state_of_others_only():
    _, mine = trained(torch.optim.Adam, 0 if blink.rank() == 0 else 2, lr=0.01 + blink.rank())
    blink.broadcast_optimizer_state(mine, root_rank=0)
    return [len(mine.state_dict()["state"]), mine.param_groups[0]["lr"]]


def optimizer_state_in_groups():
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    rate = 0.5 if blink.rank() == 0 else 0.1
    groups = [{"params": first.parameters()}, {"params": second.parameters(), "lr": rate}]
    optimizer = torch.optim.AdamW(groups, lr=rate / 2, betas=(rate, rate))
    before = copy.copy(optimizer.param_groups[0]["params"])
    blink.broadcast_optimizer_state(optimizer, 0)
    kept = all(a is b for a, b in zip(before, optimizer.param_groups[0]["params"], strict=True))
    return [kept, [(group["lr"], group["betas"]) for group in optimizer.param_groups]]


def every_optimizer():
    """All that torch has, but for those that want other parameters than a matrix."""
    base = torch.optim.Optimizer
    kinds = (getattr(torch.optim, name) for name in sorted(vars(torch.optim)))
    classes = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base)]
    return [kind for kind in classes if kind not in (base, torch.optim.SparseAdam)]


def stepped(kind, steps):
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    optimizer = kind([weight], lr=0.01)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return optimizer


def optimizer_state_of_every_kind():
    found = []
    for kind in every_optimizer():
        mine = stepped(kind, 2 if blink.rank() == 0 else 0)
        blink.broadcast_optimizer_state(mine, root_rank=0)
        want = stepped(kind, 2)
        same_types = all(
            type(mine.param_groups[0][key]) is type(value)
            for key, value in want.param_groups[0].items()
        )
        if flat(mine.state_dict()) != flat(want.state_dict()) or not same_types:
            found.append(kind.__name__)
    return found


def gradients_of_a_fresh_optimizer():
    """Zeros where one is required, as Horovod leaves them; frozen parameters have none."""
    frozen = torch.nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    weight = torch.nn.Parameter(torch.rand(3))
    optimizer = torch.optim.SGD([frozen, weight], lr=0.1, momentum=0.9)
    blink.broadcast_optimizer_state(optimizer, root_rank=0)
    return [frozen.grad is None, weight.grad.tolist()]


def objects():
    mine = {"rank": blink.rank(), "names": ["a", "b"]}
    return [
        blink.broadcast_object(mine, root_rank=blink.size() - 1, name="n")["rank"],
        [each["rank"] for each in blink.allgather_object(mine)],
    ]
