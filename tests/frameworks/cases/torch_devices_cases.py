"""What the torch adapter does with tensors on devices, and with some there and some on the CPU."""

import contextlib

import torch
from torch_ops_cases import refused
from torch_pairs import ADAM, SGD, batch, bits, loss_of, mine, mlp, wrap

import blinkrun.torch as blink
from blinkrun.engine import engine
from blinkrun.errors import InvalidBufferError, MismatchError
from blinkrun.torch import devices

CASES = (
    "losses_are_those_of_the_cpu",
    "gradients_lie_in_the_arena_of_the_device",
    "gradients_that_find_no_room_in_the_arena",
    "adasum_by_way_of_the_host",
    "backward_on_several_streams",
    "optimizer_with_parameters_in_two_places",
    "optimizer_with_parameters_elsewhere_on_a_rank",
    "tensor_elsewhere_on_a_rank",
    "handles_on_other_streams",
    "handles_do_not_wait_for_the_device",
    "state_of_an_optimizer",
)
DISGUISE = []  # the one of this job


@contextlib.contextmanager
def on_device(chooses):
    """Let the tensors that `chooses` names pass for ones on the device, and no others."""
    (disguise,) = DISGUISE
    before, disguise._chooses = disguise._chooses, chooses
    try:
        yield disguise
    finally:
        disguise._chooses = before


def is_float(tensor):
    return tensor.is_floating_point()


def everywhere(tensor):
    return True


def nowhere(tensor):
    return False


def trained(kind, chooses, **options):
    with on_device(chooses):
        model = mlp()
        optimizer_class, arguments = kind
        optimizer = wrap(optimizer_class(model.parameters(), **arguments), model, **options)
        blink.broadcast_parameters(model.state_dict())
        losses = []
        for step in range(6):
            inputs, targets = (mine(each) for each in batch(step))
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        return losses, bits(model)


def losses_are_those_of_the_cpu():
    """Two ranks add up in one order only, so that all bits are the same."""
    found = []
    for kind in (SGD, ADAM):
        for options in ({}, {"overlap": "on", "bucket_bytes": 300}, {"overlap": "off"}):
            found.append(trained(kind, is_float, **options) == trained(kind, nowhere))
    half = {"compression": blink.Compression.bf16}
    return [*found, trained(SGD, is_float, **half) == trained(SGD, nowhere, **half)]


def gradients_lie_in_the_arena_of_the_device():
    with on_device(is_float):
        model = mlp()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for step in range(3):
            inputs, targets = (mine(each) for each in batch(step))
            loss_of(model, inputs, targets).backward()
            optimizer.step()
            grads = [param.grad for param in model.parameters()]
            optimizer.zero_grad(set_to_none=step == 0)
        arena = engine.current().world.devices
        flags = optimizer._blinkrun.reducer._memory.flags
        host = engine.current().world.executor
        return {
            "gradients": all(arena.contains(grad.data_ptr()) for grad in grads),
            "flags": host.contains(flags.data_ptr()),
        }


def gradients_that_find_no_room_in_the_arena():
    with on_device(is_float):
        blink.allreduce(torch.ones(3), name="room")
        world = engine.current().world
        taken = []
        with contextlib.suppress(InvalidBufferError):
            while True:
                taken.append(world.empty_bytes(64 << 20, device=True))
        with contextlib.suppress(InvalidBufferError):
            while True:
                taken.append(world.empty_bytes(512, device=True))
    return trained(SGD, is_float) == trained(SGD, nowhere)


def adasum_by_way_of_the_host():
    def is_parameter(tensor):
        return isinstance(tensor, torch.nn.Parameter)

    step = {"op": blink.Adasum}
    given = torch.randn(5, generator=torch.Generator().manual_seed(blink.rank()))
    with on_device(nowhere):
        wanted = blink.allreduce(given, name="adasum", **step)
    with on_device(everywhere):
        found = blink.allreduce(given, name="adasum", **step)
        placed = blink.allreduce_(given.half(), name="adasum.half", **step)
    return [
        trained(SGD, is_parameter, **step) == trained(SGD, nowhere, **step),
        torch.equal(found, wanted),
        torch.allclose(placed.float(), wanted, atol=1e-2),
    ]


def backward_on_several_streams():
    """Every bucket comes after all streams that gradients were made in."""
    with on_device(is_float) as disguise:
        main, side = disguise.stream, disguise.device.new_stream()
        model = mlp()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap="off")
        first = next(model.parameters())
        first.register_hook(lambda grad: setattr(disguise, "stream", side))
        seen = []
        running = engine.current()
        submit_all = running.submit_all

        def spy(requests, **how):
            handles = submit_all(requests, **how)
            seen.extend(h.passage.streams for h in handles if ".bucket" in h.name)
            return handles

        running.submit_all = spy
        try:
            for step in range(2):
                loss_of(model, *(mine(each) for each in batch(step))).backward()
                disguise.stream = main
                optimizer.step()
                optimizer.zero_grad()
        finally:
            running.submit_all = submit_all
            disguise.device.synchronize(side)
            disguise.device.free_stream(side)
        return bool(seen) and all(set(streams) == {main, side} for streams in seen)


def optimizer_with_parameters_in_two_places():
    model = mlp()
    with on_device(lambda tensor: is_float(tensor) and tensor.dim() == 2):
        return refused(lambda: wrap(torch.optim.SGD(model.parameters(), lr=0.1), model))


def optimizer_with_parameters_elsewhere_on_a_rank():
    with on_device(everywhere if blink.rank() == 1 else nowhere):
        model = mlp()
        return refused(lambda: wrap(torch.optim.SGD(model.parameters(), lr=0.1), model))


def tensor_elsewhere_on_a_rank():
    with on_device(everywhere if blink.rank() == 1 else nowhere):
        try:
            blink.allreduce(torch.ones(3), name="elsewhere")
        except MismatchError as err:
            return str(err)
    return "no error"


def handles_on_other_streams():
    """The allocator hears of streams that use a result and did not make it."""
    with on_device(everywhere) as disguise:
        main, other = disguise.stream, disguise.device.new_stream()
        found = []
        for call in (
            lambda: blink.allreduce_async(torch.ones(3), name="moved.a"),
            lambda: blink.allgather_async(torch.ones(3), name="moved.g"),
        ):
            for stream in (main, other):
                handle = call()
                disguise.recorded.clear()
                disguise.stream = stream
                result = blink.synchronize(handle)
                found.append((result.data_ptr(), stream) in disguise.recorded)
                disguise.stream = main
        disguise.device.synchronize(other)
        disguise.device.free_stream(other)
        return found


def handles_do_not_wait_for_the_device():
    with on_device(everywhere) as disguise:
        blink.allreduce(torch.ones(3), name="waits.first")
        tensor = torch.ones(100_000)
        follow, devices.follow = devices.follow, disguise._follow
        try:
            with disguise.device.hold(disguise.stream):
                handle = blink.allreduce_async_(tensor, name="waits", op=blink.Sum)
                polls = [blink.poll(handle)]
                result = blink.synchronize(handle)
                seen = float(result[0])
            disguise.device.synchronize(disguise.stream)
        finally:
            devices.follow = follow
        return {
            "polled": [*polls, blink.poll(handle)],
            "seen": [seen, float(result[0]), float(result[-1])],
            "same": result is tensor,
        }


def state_of_an_optimizer():
    """What only the root has, in both places: Adam's moments on the device, its steps not."""
    with on_device(lambda tensor: is_float(tensor) and tensor.dim() > 0):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (blink.rank() + 1))
        if blink.rank() == 1:
            for _ in range(3):
                loss_of(model, *batch(0)).backward()
                optimizer.step()
        blink.broadcast_parameters(model.named_parameters(), root_rank=1)
        blink.broadcast_optimizer_state(optimizer, root_rank=1)
        state = optimizer.state_dict()["state"]
        moments = torch.cat([each["exp_avg"].flatten() for each in state.values()])
        return {
            "steps": sorted({float(each["step"]) for each in state.values()}),
            "moments": moments.tolist(),
            "model": bits(model),
            "lr": optimizer.param_groups[0]["lr"],
        }
