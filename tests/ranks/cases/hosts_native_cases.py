"""What each rank does in test_hosts_native.py; every function returns a JSON value."""

import itertools

import numpy as np
from support.programs import chain, joint, packing, star

import blinkrun
from blinkrun.executors import numerics
from blinkrun.executors.reference import Call, run
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.types import Collective, DType, Op

CHUNK_BYTES = 1024
COUNTS = (1, 255, 256, 257, 2003)  # around a chunk of float32, and several


def as_the_reference():
    """Trees of two shapes on the core against the reference: the calls whose bytes differ."""
    blinkrun.init()
    world = blinkrun.world()
    wrong = []
    for shape in (star, chain):
        _load(world, shape)
        cases = zip(itertools.cycle(COUNTS), itertools.product(DType, Op), strict=False)
        for number, (count, (dtype, op)) in enumerate(cases):
            if dtype is DType.BOOL and op is Op.AVERAGE:
                continue
            wrong += _differs(world, shape, number, (count, dtype, op))
    return wrong


def _load(world, shape):
    """Make trees of `shape` from every rank what allreduce and reducescatter run on."""
    group, hosts = world.executor.group, world.host_of
    group.set_eager_bytes(256)
    for collective, trees in _trees(world.size, shape).items():
        group.unload(int(collective), 0)
        for addressing in Addressing:
            program = lower_hosts(trees, collective, hosts, addressing=addressing)
            group.load(encode(program, world.rank), chunk_bytes=CHUNK_BYTES)
    group.load(encode(lower_eager_hosts(hosts), world.rank))


def _trees(size, shape):
    shapes = [shape(size, root) for root in range(size)]
    return {
        Collective.ALLREDUCE: packing(shapes),
        Collective.REDUCESCATTER: joint([packing([each]) for each in shapes]),
    }


def _differs(world, shape, number, case):
    """Return the names of the collectives whose results are not the reference's."""
    count, dtype, op = case
    numpy_dtype = numerics.numpy_dtype(dtype)
    scales = {} if dtype.label in ("bool",) or op is not Op.SUM else {"prescale": 0.5}
    scales = scales if numpy_dtype.kind in "fV" else {}
    rng = np.random.default_rng(number)
    inputs = [_values(rng, count * world.size, numpy_dtype) for _ in range(world.size)]
    call = Call(op=op, chunk_elements=CHUNK_BYTES // numpy_dtype.itemsize, **scales)
    is_small = count * numpy_dtype.itemsize <= 256
    found = []
    for collective, trees in _trees(world.size, shape).items():
        blocks = world.size if collective is Collective.REDUCESCATTER else 1
        if collective is Collective.ALLREDUCE and is_small:
            program = lower_eager_hosts(world.host_of)
        else:
            program = lower_hosts(trees, collective, world.host_of)
        parts = [each[: count * blocks] for each in inputs]
        # Ranks of different hosts lay their arrays where they like.
        mine = parts[world.rank]
        if (world.cross_rank + number) % 3:
            mine = world.empty(mine.size, numpy_dtype)
            mine[:] = parts[world.rank]
        act = getattr(world, collective.label)
        results = world.allgather_object(act(mine, op, **scales).tobytes())
        if world.rank != number % world.size:  # the reference is slow: one rank asks it
            continue
        expected = [each.tobytes() for each in run(program, parts, call)]
        if results != expected:
            found.append(f"{collective.label} of {count} {dtype.label} ({op.label})")
    return found


def _values(rng, count, dtype):
    if dtype.kind in "fV":
        return rng.standard_normal(count).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 120, count).astype(dtype)
