"""Collectives on fake devices, ranks as threads: the bytes of the reference for any buffers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import run_devices
from support.fake_cuda import FakeMachine
from support.programs import chain_plan, plans, star_plan

from blinkrun.executors import reference
from blinkrun.executors.numerics import numpy_dtype
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower
from blinkrun.types import Collective, DType, Op

MOVING = [each for each in Collective if each is not Collective.BARRIER]
MANY_IN = (Collective.REDUCESCATTER, Collective.ALLTOALL)
MANY_OUT = (Collective.ALLGATHER, Collective.ALLTOALL)
CHUNK = 4096  # float32 of the smallest chunk that follows from a size
EDGES = [0, 1, 7, 64, 1009, CHUNK - 1, CHUNK, CHUNK + 1]
LARGE = [3 * CHUNK + 5, 50_021]
GUARD = 64  # elements before and behind an output, which stay as they were
POISON = 0x5A


def inputs_of(collective, size, count, dtype, seed):
    blocks = size if collective in MANY_IN else 1
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, 5, count * blocks) for _ in range(size)]
    return [each.astype(numpy_dtype(dtype)) for each in drawn]


def wanted(plan, collective, inputs, op, *, root=0, scales=(1.0, 1.0)):
    program = lower(plan, collective, root=root, addressing=Addressing.STAGED)
    call = reference.Call(op, *scales, chunk_elements=CHUNK)
    return reference.run(program, inputs, call)


def poisoned(me, count, dtype, place):
    """Return an output with what lies around it, all bytes of it the same."""
    whole = (me.in_arena if place == "arena" else me.device.array)(count + 2 * GUARD, dtype)
    whole.numpy().view(np.uint8)[:] = POISON
    return whole, whole[GUARD : GUARD + count]


def call(me, collective, x, op=Op.SUM, *, root=0, place="user", in_place=False, **how):
    """Return what one rank gets of a call, as numpy; what lies around the output must stay."""
    if collective is Collective.BARRIER:
        raise ValueError("a barrier gives nothing")
    blocks = me.size if collective in MANY_IN else 1
    count = x.size // blocks * (me.size if collective in MANY_OUT else 1)
    whole, out = poisoned(me, count, x.dtype, place)
    if in_place:
        given = out
        out.numpy()[:] = x
    else:
        given = me.in_arena(x.size, x.dtype) if place == "arena" else me.device.array_of(x)
        given.numpy()[:] = x
    gives = collective is not Collective.BROADCAST or me.rank == root
    takes = collective is not Collective.REDUCE or me.rank == root
    stream = me.device.new_stream()
    me.run(
        collective,
        given if gives else None,
        out if takes else None,
        op,
        root=root,
        stream=stream,
        **how,
    )
    me.executor.synchronize(stream)
    me.device.free_stream(stream)
    around = whole.numpy().view(np.uint8)
    item = x.dtype.itemsize
    assert (around[: GUARD * item] == POISON).all()
    assert (around[around.size - GUARD * item :] == POISON).all()
    if not in_place:
        assert given.numpy().tobytes() == x.tobytes()
    return out.numpy().copy() if takes else None


def compare(plan, cases, *, machine=None, devices=None, **options):
    """Run all `cases` (collective, inputs, op, root, how) in one group; the reference's bytes."""

    def body(me):
        return [
            call(me, collective, inputs[me.rank], op, root=root, **how)
            for collective, inputs, op, root, how in cases
        ]

    results = run_devices(plan, body, machine=machine, devices=devices, **options)
    for number, (collective, inputs, op, root, how) in enumerate(cases):
        scales = how.get("scales", (1.0, 1.0))
        want = wanted(plan, collective, inputs, op, root=root, scales=scales)
        for rank in range(plan.size):
            got = results[rank][number]
            if collective is Collective.REDUCE and rank != root:
                assert got is None
            else:
                told = f"{collective.label} {op.name} of {inputs[0].dtype} on rank {rank}: {how}"
                np.testing.assert_array_equal(
                    got.view(np.uint8), want[rank].view(np.uint8), err_msg=told
                )


@pytest.mark.parametrize(("size", "place"), [(1, "user"), (2, "arena"), (3, "user"), (4, "arena")])
def test_every_collective_dtype_and_op(size, place):
    cases = []
    for number, (dtype, op) in enumerate((dtype, op) for dtype in DType for op in Op):
        if dtype is DType.BOOL and op is Op.AVERAGE:
            continue
        for each, collective in enumerate(MOVING):
            count = EDGES[(number + each) % 5]
            inputs = inputs_of(collective, size, count, dtype, number)
            how = {"place": place, "in_place": (number + each) % 3 == 0 and not each}
            cases.append((collective, inputs, op, number % size, how))
    compare((chain_plan if size % 2 else star_plan)(size), cases)


@pytest.mark.parametrize("collective", MOVING)
def test_counts_around_a_chunk_and_many_chunks(collective):
    cases = []
    for count in EDGES + LARGE:
        for place in ("user", "arena"):
            inputs = inputs_of(collective, 3, count, DType.FLOAT32, count)
            cases.append((collective, inputs, Op.SUM, 1, {"place": place}))
    compare(chain_plan(3), cases)
    compare(star_plan(3), cases[-4:], blocks=1)


@st.composite
def machines(draw, size):
    """Devices of ranks, shared or not, and pairs of them that cannot address each other."""
    devices = draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    pairs = [(a, b) for a in range(size) for b in range(a)]
    cut = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return devices, cut, draw(st.integers(0, 99))


@settings(max_examples=25)
@given(plan=plans(1, 4), data=st.data())
def test_any_plan_on_any_devices(plan, data):
    """Several calls, drawn alike, on devices that are shared and cut off from each other."""
    devices, cut, seed = data.draw(machines(plan.size))
    cases = []
    for _ in range(4):
        collective = data.draw(st.sampled_from(MOVING))
        dtype = data.draw(st.sampled_from(DType))
        ops = [op for op in Op if dtype is not DType.BOOL or op is not Op.AVERAGE]
        inputs = inputs_of(
            collective, plan.size, data.draw(st.sampled_from(EDGES + LARGE[1:])), dtype, seed
        )
        how = {
            "place": data.draw(st.sampled_from(["user", "arena"])),
            "in_place": collective is Collective.ALLREDUCE and data.draw(st.booleans()),
        }
        root = data.draw(st.integers(0, plan.size - 1)) if collective.is_rooted else 0
        cases.append((collective, inputs, data.draw(st.sampled_from(ops)), root, how))
    most = data.draw(st.sampled_from([plan.size, 3 * plan.size, 16]))
    machine = FakeMachine(plan.size, cut=cut, seed=seed, most_blocks=most)
    compare(plan, cases, machine=machine, devices=devices)
    assert machine.leaks() == []
    machine.close()


@pytest.mark.parametrize("cut", [[(0, 1)], [(0, 1), (1, 2), (0, 2)]])
@pytest.mark.parametrize("place", ["user", "arena"])
def test_pairs_that_do_not_reach_each_other_go_through_host_memory(cut, place):
    cases = []
    for number, collective in enumerate(MOVING):
        for count in (5, CHUNK - 1, LARGE[1]):
            inputs = inputs_of(collective, 3, count, DType.INT32, number)
            cases.append((collective, inputs, Op.SUM, 2, {"place": place}))
    machine = FakeMachine(3, cut=cut, seed=4)
    compare(chain_plan(3), cases, machine=machine)
    machine.close()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_scales(dtype):
    inputs = inputs_of(Collective.ALLREDUCE, 3, 9001, dtype, 1)
    how = {"scales": (2.0, 0.5)}
    compare(chain_plan(3), [(Collective.ALLREDUCE, inputs, Op.SUM, 0, how)])


def test_a_rerun_gives_the_same_bits():
    """Whatever order the blocks take turns in: float sums depend on the order of additions."""
    random = np.random.default_rng(1)
    inputs = [random.standard_normal(20_011).astype(np.float32) for _ in range(3)]

    def body(me):
        return call(me, Collective.ALLREDUCE, inputs[me.rank]).tobytes()

    bits = set()
    for seed in range(3):
        machine = FakeMachine(3, seed=seed)
        bits |= set(run_devices(chain_plan(3), body, machine=machine))
        machine.close()
    assert len(bits) == 1


def test_a_barrier_and_calls_without_elements():
    def body(me):
        nothing = me.device.array(0, np.float32)
        request = me.request(Collective.BARRIER, nothing, nothing)
        me.executor.run(request)
        me.run(Collective.ALLREDUCE, nothing, nothing)
        me.executor.synchronize(0)
        return True

    assert run_devices(star_plan(3), body) == [True] * 3
