"""What a DistributedOptimizer does with gradients of all kinds, against one process."""

from functools import partial

import torch
from torch_ops_cases import refused
from torch_pairs import BATCH, SGD, batch, loss_of, mine, mlp, pair, report, train_both, wrap

import blinkrun.torch as blink
from blinkrun.types import DType

CASES = (
    "every_optimizer",
    "sparse_gradients",
    "sparse_gradients_of_some_ranks",
    "compressed_gradients",
    "gradients_through_a_compressor_of_ones_own",
    "groups",
    "groups_complete_together",
    "predivided_gradients",
    "no_sync",
    "gradients_turned_off_and_on",
    "unfrozen_later",
    "parameters_that_change_their_dtype",
    "ranks_that_join",
    "process_sets",
    "check_of_parameters",
    "exceptions_in_hooks",
    "passes_that_change",
    "grad_scaler_over_two_passes",
    "clipping_while_accumulating",
)


def square(dtype=torch.float64):
    """Linear layers without bias: Muon takes nothing but matrices."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(6, 9, bias=False), torch.nn.Tanh(), torch.nn.Linear(9, 3, bias=False)]
    return torch.nn.Sequential(*layers).to(dtype)


def every_optimizer():
    """In float64, so that no sign or comparison turns on rounding. LBFGS and SparseAdam: below."""
    names = sorted(set(torch.optim.__all__) - {"LBFGS", "SparseAdam", "Optimizer", "lr_scheduler"})
    kinds = [getattr(torch.optim, name) for name in names if name[0].isupper()]
    found = {}
    for kind in kinds:
        alone, plain, shared, ours = pair(square, (kind, {"lr": 0.01}))
        for step in range(4):
            inputs, targets = batch(step, torch.float64)
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            plain.step()
            ours.zero_grad()
            loss_of(shared, mine(inputs), mine(targets)).backward()
            ours.step()
        found[kind.__name__] = report(alone, shared)
    return found


class Tables(torch.nn.Module):
    """Two embeddings with sparse gradients; the second is used when asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Embedding(11, 3, sparse=True)
        self.second = torch.nn.Embedding(7, 2, sparse=True)

    def forward(self, words, uses_second):
        loss = self.first(words).square().sum()
        return loss + self.second(words % 7).exp().sum() if uses_second else loss


def words_of(step):
    torch.manual_seed(50 + step)
    return torch.randint(11, (BATCH,))


def sparse_both(kind, *, uses_second, **options):
    """Train with the sum of losses; `uses_second(step)` is asked on every rank."""
    alone, plain, shared, ours = pair(Tables, kind, op=blink.Sum, **options)
    layouts = []
    for step in range(5):
        words = words_of(step)
        plain.zero_grad()
        uses = [uses_second(step, rank) for rank in range(blink.size())]
        parts = [words[rank :: blink.size()] for rank in range(blink.size())]
        sum(alone(part, use) for part, use in zip(parts, uses, strict=True)).backward()
        plain.step()
        ours.zero_grad()
        shared(mine(words), uses[blink.rank()]).backward()
        ours.step()
        grads = [shared.first.weight.grad, shared.second.weight.grad]
        layouts.append(["none" if g is None else str(g.layout)[6:] for g in grads])
    return {**report(alone, shared), "layouts": layouts}


def sparse_gradients():
    """As indices and values, and as dense ones; with and without a helper thread."""
    kinds = (
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SparseAdam, {"lr": 0.1}),
    )
    return [
        sparse_both(kind, uses_second=lambda *_: True, sparse_as_dense=dense, overlap=overlap)
        for kind in kinds
        for dense, overlap in ((False, "off"), (True, "off"), (False, "on"), (True, "on"))
    ]


def sparse_gradients_of_some_ranks():
    """The second table: nobody, then the last rank, nobody, all but the last, all."""

    def uses_second(step, rank):
        is_last = rank == blink.size() - 1
        return (False, is_last, False, not is_last, True)[step]

    kind = (torch.optim.SparseAdam, {"lr": 0.1})
    return [
        sparse_both(kind, uses_second=uses_second, sparse_as_dense=dense) for dense in (False, True)
    ]


def compressed_gradients():
    found = {}
    for name in ("none", "fp16", "bf16"):
        compression = getattr(blink.Compression, name)
        for overlap in ("off", "on"):
            alone, shared = train_both(compression=compression, overlap=overlap)
            found[f"{name}, overlap {overlap}"] = report(alone, shared)
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, compression=compression)
    loss_of(model, *map(mine, batch(0))).backward()
    ours.step()
    grads = {str(param.grad.dtype) for param in model.parameters()}
    buckets = ours._blinkrun.reducer.layout.buckets
    return [found, sorted(grads), all(bucket.dtype == DType.BFLOAT16 for bucket in buckets)]


class Scaled:
    """Sends small whole numbers; needs to know the scale afterwards."""

    @staticmethod
    def compress(tensor):
        return (tensor * 1024).round().to(torch.float64), 1 / 1024

    @staticmethod
    def decompress(tensor, scale):
        return (tensor * scale).float()


class Shrinks:
    @staticmethod
    def compress(tensor):
        return tensor.view(-1)[:1], None

    @staticmethod
    def decompress(tensor, context):
        return tensor


def gradients_through_a_compressor_of_ones_own():
    trained = [report(*train_both(compression=Scaled, overlap=each)) for each in ("off", "on")]
    model = mlp()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return [trained, refused(partial(wrap, plain, model, compression=Shrinks))]


def groups():
    """A number, lists that name some parameters, and Horovod's old name."""
    found = [report(*train_both(groups=3)), report(*train_both(groups=3, overlap="on"))]
    alone, shared = mlp(), mlp()
    chosen = [[shared[0].weight, shared[4].bias], [shared[2].weight]]
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    ours = wrap(torch.optim.SGD(shared.parameters(), lr=0.1), shared, groups=chosen)
    for step in range(3):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return [*found, report(alone, shared)]


def groups_complete_together():
    """Each group is one bucket, whatever its size; what no group names is bucketed as ever."""
    model = mlp()
    chosen = [[model[0].weight, model[4].bias], [model[2].weight]]
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, groups=chosen, bucket_bytes=1)
    loss_of(model, *map(mine, batch(0))).backward()
    ours.step()
    buckets = ours._blinkrun.reducer.layout.buckets
    return sorted(sorted(slot.gradient for slot in bucket.slots) for bucket in buckets)


def predivided_gradients():
    return [
        report(*train_both(gradient_predivide_factor=factor, overlap=overlap))
        for factor, overlap in ((2.0, "off"), (3.0, "on"))
    ]


def no_sync():
    """Two passes of three without a reduction, as one over the whole."""
    alone, plain, shared, ours = pair()
    refusals = []
    for step in range(3):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad(set_to_none=step != 1)
        own = mine(inputs), mine(targets)
        with ours.no_sync():
            for _ in range(2):
                (loss_of(shared, *own) / 4).backward()
            refusals.append(refused(ours.step))
        (loss_of(shared, *own) / 2).backward()
        ours.step()
    return {**report(alone, shared), "refusals": refusals}


def gradients_turned_off_and_on():
    """Two models that train in turns, each frozen while the other does."""
    makers, takers = (mlp(), mlp()), (mlp(), mlp())
    for taker in takers:
        taker.load_state_dict({k: v * 0.5 for k, v in taker.state_dict().items()})
    plain = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (makers[0], takers[0])]
    ours = [
        wrap(torch.optim.SGD(model.parameters(), lr=0.1), model) for model in (makers[1], takers[1])
    ]
    for step in range(6):
        inputs, _ = batch(step)
        for which, optimizers in enumerate((plain, ours)):
            maker, taker = makers[which], takers[which]
            for number, model in enumerate((maker, taker)):
                model.requires_grad_(number == step % 2)
                optimizers[number].zero_grad()
            data = mine(inputs) if which else inputs
            middle = torch.cat([maker(data), maker(-data)], dim=1)
            taker(middle).square().mean().backward()
            optimizers[step % 2].step()
    return [report(makers[0], makers[1]), report(takers[0], takers[1])]


def unfrozen_later():
    """A layer frozen when the optimizer is wrapped is trained from step 2 on."""
    found = []
    for overlap in ("off", "on"):
        alone, shared = mlp(), mlp()
        for model in (alone, shared):
            model[0].weight.requires_grad_(False)
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        ours = wrap(torch.optim.SGD(shared.parameters(), lr=0.1), shared, overlap=overlap)
        for step in range(5):
            if step == 2:
                for model in (alone, shared):
                    model[0].weight.requires_grad_(True)
            inputs, targets = batch(step)
            plain.zero_grad()
            loss_of(alone, inputs, targets).backward()
            plain.step()
            ours.zero_grad()
            loss_of(shared, mine(inputs), mine(targets)).backward()
            ours.step()
        found.append(report(alone, shared))
    return found


def parameters_that_change_their_dtype():
    """Gradients of another type travel in the buckets that there are."""
    alone, plain, shared, ours = pair()
    for step in range(4):
        dtype = torch.float32 if step < 2 else torch.float64
        alone.to(dtype)
        shared.to(dtype)
        for optimizer in (plain, ours):
            for state in optimizer.state.values():
                state.update({k: v.to(dtype) for k, v in state.items() if torch.is_tensor(v)})
        inputs, targets = batch(step, dtype)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return {**report(alone, shared), "dtypes": sorted({str(p.dtype) for p in shared.parameters()})}


def steps_of(epoch, size):
    """Return how many steps each rank has in an epoch."""
    if epoch == 0:
        return [max(rank, size == 1) for rank in range(size)]
    return [2 * (rank == size - 1) if epoch == 1 else rank + 1 for rank in range(size)]


def ranks_that_join():
    """Rank r has r steps: rank 0 does not see how others begin; then the last alone; then all."""
    found = []
    for overlap in ("off", "on"):
        alone, plain, shared, ours = pair(overlap=overlap)
        size, rank = blink.size(), blink.rank()
        lasts = []
        for epoch in range(3):
            steps = steps_of(epoch, size)
            for step in range(max(steps)):
                inputs, targets = batch(10 * epoch + step)
                plain.zero_grad()
                for other in range(size):
                    if step < steps[other]:
                        part = slice(other, None, size)
                        (loss_of(alone, inputs[part], targets[part]) / size).backward()
                plain.step()
            for step in range(steps[rank]):
                inputs, targets = batch(10 * epoch + step)
                ours.zero_grad()
                loss_of(shared, mine(inputs), mine(targets)).backward()
                ours.step()
            lasts.append(blink.join())
            blink.broadcast_parameters(shared.state_dict(), root_rank=size - 1)
            blink.broadcast_optimizer_state(ours, root_rank=size - 1)
        found.append({**report(alone, shared), "lasts": lasts})
    return found


def process_sets():
    """The even ranks train together, then the odd ones; the others train alone meanwhile."""
    size, rank = blink.size(), blink.rank()
    if size == 1:
        return None
    evens = blink.add_process_set(range(0, size, 2))
    odds = blink.add_process_set(range(1, size, 2)) if size > 2 else None
    found = []
    for members in filter(None, (evens, odds)):
        alone, shared = mlp(), mlp()
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        ours = wrap(torch.optim.SGD(shared.parameters(), lr=0.1), shared, process_set=members)
        sharers = members.ranks if members.included() else [rank]
        for step in range(3):
            inputs, targets = batch(step)
            plain.zero_grad()
            for other in sharers:
                part = slice(other, None, size)
                (loss_of(alone, inputs[part], targets[part]) / len(sharers)).backward()
            plain.step()
            ours.zero_grad()
            loss_of(shared, mine(inputs), mine(targets)).backward()
            ours.step()
        found.append(report(alone, shared))
    for each in filter(None, (evens, odds)):
        blink.remove_process_set(each)
    return found


def check_of_parameters():
    """The last rank changes a parameter after step 1; the check after step 2 finds it."""
    model = mlp()
    ours = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, check_every=2)
    lines = []
    for step in range(4):
        if step == 1 and blink.rank() == blink.size() - 1:
            with torch.no_grad():
                model[2].bias[3] += 1e-3
        ours.zero_grad()
        loss_of(model, *map(mine, batch(step))).backward()
        lines.append(refused(ours.step))
        blink.broadcast_parameters(model.state_dict()) if step == 1 else None
    return lines


def exceptions_in_hooks():
    """What a hook of the user raises reaches it, and training goes on."""
    alone, plain, shared, ours = pair(kind=SGD)

    def fail(grad):
        raise ArithmeticError("of the user")

    for step in range(3):
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        if step == 1:
            outputs = shared[:2](mine(inputs))
            outputs.register_hook(fail)
            try:
                loss_of(shared[2:], outputs, mine(targets)).backward()
            except ArithmeticError:
                ours.synchronize()
                ours.zero_grad()
        loss_of(shared, mine(inputs), mine(targets)).backward()
        ours.step()
    return report(alone, shared)


def passes_that_change():
    alone, plain, shared, ours = pair()
    for step in range(4):
        passes = 1 + step % 2
        ours.set_backward_passes_per_step(passes)
        inputs, targets = batch(step)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        ours.zero_grad()
        for _ in range(passes):
            (loss_of(shared, mine(inputs), mine(targets)) / passes).backward()
        ours.step()
    loss_of(shared, mine(inputs), mine(targets)).backward()
    line = refused(partial(ours.set_backward_passes_per_step, 1))
    return {**report(alone, shared), "passes": ours.backward_passes_per_step, "line": line}


def grad_scaler_over_two_passes():
    """Under autocast; the second pass of step 1 overflows on the last rank, and no rank steps."""
    found = []
    for overlap in ("off", "on"):
        alone, plain, shared, ours = pair(backward_passes_per_step=2, overlap=overlap)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        for step in range(4):
            inputs, targets = batch(step)
            if step != 1:
                plain.zero_grad()
                loss_of(alone, inputs, targets).backward()
                plain.step()
            ours.zero_grad()
            for number in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step == 1):
                    loss = loss_of(shared, mine(inputs), mine(targets)) / 2
                if (step, number, blink.rank()) == (1, 1, blink.size() - 1):
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
            scaler.step(ours)
            scaler.update()
        found.append({**report(alone, shared), "scale": scaler.get_scale()})
    return found


def clipping_while_accumulating():
    """In no_sync() and between two passes clipping sees this rank's gradients, and reduces none.

    With Sum what is reduced twice shows.
    """
    alone, plain, shared, ours = pair(backward_passes_per_step=2, op=blink.Sum)
    inputs, targets = batch(0)
    loss_of(alone, inputs, targets).backward()
    plain.step()
    clip = partial(torch.nn.utils.clip_grad_norm_, list(shared.parameters()), 1e9)
    with ours.no_sync():
        (loss_of(shared, mine(inputs), mine(targets)) * 0).backward()
        clip()
    for _ in range(2):
        (loss_of(shared, mine(inputs), mine(targets)) / 2 / blink.size()).backward()
        clip()
    ours.step()
    return report(alone, shared)
