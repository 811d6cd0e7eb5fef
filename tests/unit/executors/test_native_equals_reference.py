"""The native executor against the reference: same program, same bytes."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import chain_plan, plans, star_plan
from support.threads import run_threads

from blinkrun.executors import reference
from blinkrun.executors.numerics import numpy_dtype
from blinkrun.planner.make import make_plan
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective, DType, Op

EAGER, CHUNK = 256, 1024  # bytes; small, so that few elements see every path
COUNTS = [0, 1, 7, 63, 64, 255, 1009, 3001]
MOVES = (Collective.BROADCAST, Collective.ALLGATHER, Collective.ALLTOALL)


def inputs_of(collective, size, count, dtype, seed):
    blocks = size if collective in (Collective.REDUCESCATTER, Collective.ALLTOALL) else 1
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, 5, count * blocks) for _ in range(size)]
    return [each.astype(numpy_dtype(dtype)) for each in drawn]


ADDRESSING = {
    "user": Addressing.STAGED,
    "arena": Addressing.DIRECT,
    "output in arena": Addressing.OUTPUT_ONLY,
}


def native(plan, collective, inputs, op, *, root, place, in_place=False):
    """Return every rank's result (None where it takes none) through the communicator."""

    def body(comm):
        x = inputs[comm.rank]
        mine = comm.empty(x.shape, x.dtype) if place == "arena" else np.empty_like(x)
        mine[:] = x
        out = {"out": mine} if in_place else {}
        if place == "output in arena":
            out = {"out": comm.empty(x.shape, x.dtype)}
        if collective is Collective.ALLREDUCE:
            return comm.allreduce(mine, op, **out)
        if collective is Collective.BROADCAST:
            return comm.broadcast(mine, root, **out)
        if collective is Collective.REDUCE:
            return comm.reduce(mine, root, op, **(out if comm.rank == root else {}))
        if collective is Collective.ALLGATHER:
            return comm.allgather(mine)
        if collective is Collective.ALLTOALL:
            return comm.alltoall(mine, **out)
        return comm.reducescatter(mine, op)

    results = run_threads(plan, body, chunk_bytes=CHUNK, eager_bytes=EAGER)
    return [None if each is None else np.array(each) for each in results]


def expected(plan, collective, inputs, op, *, root, place, count):
    itemsize = inputs[0].itemsize
    eager = count * itemsize <= EAGER
    program = lower(plan, collective, root=root, addressing=ADDRESSING[place], eager=eager)
    verify(program)
    call = reference.Call(op=op, chunk_elements=max(CHUNK // itemsize, 1))
    return reference.run(program, inputs, call)


def check(plan, collective, dtype, op, *, count, root, place, in_place=False, seed=0):
    inputs = inputs_of(collective, plan.size, count, dtype, seed)
    got = native(plan, collective, inputs, op, root=root, place=place, in_place=in_place)
    want = expected(plan, collective, inputs, op, root=root, place=place, count=count)
    for rank in range(plan.size):
        if collective is Collective.REDUCE and rank != root:
            assert got[rank] is None
        else:
            assert got[rank].tobytes() == want[rank].tobytes(), (rank, got[rank], want[rank])


@settings(max_examples=60)
@given(
    plan=plans(1, 5),
    collective=st.sampled_from([c for c in Collective if c is not Collective.BARRIER]),
    dtype=st.sampled_from(DType),
    op=st.sampled_from(Op),
    count=st.sampled_from(COUNTS),
    data=st.data(),
)
def test_any_plan_any_call(plan, collective, dtype, op, count, data):
    """Bit for bit, on integers and (same order of operations) on floats."""
    if dtype is DType.BOOL and op is Op.AVERAGE:
        op = Op.MAX
    root = data.draw(st.integers(0, plan.size - 1)) if collective.is_rooted else 0
    in_place = data.draw(st.booleans()) and collective is not Collective.REDUCE
    places = list(ADDRESSING) if collective is Collective.ALLREDUCE else ["user", "arena"]
    check(
        plan,
        collective,
        dtype,
        op,
        count=count,
        root=root,
        place=data.draw(st.sampled_from(places)),
        in_place=in_place,
        seed=data.draw(st.integers(0, 99)),
    )


@pytest.mark.parametrize("gpus", [(0, 1, 4), (1, 4, 5, 7), (0, 1, 2, 3, 4, 5, 6, 7)])
@pytest.mark.parametrize("place", list(ADDRESSING))
def test_planned_topology_to_bytes(gpus, place):
    """DGX-1V's links, planned, lowered, verified with its links only, run by the native core."""
    topology = induce(machine("dgx-1v"), gpus)
    plan = make_plan(topology)
    links = {(link.src, link.dst) for link in topology.links}
    links |= {(dst, src) for src, dst in links}
    verify(lower(plan, Collective.ALLREDUCE, addressing=ADDRESSING[place]), links=links)
    check(plan, Collective.ALLREDUCE, DType.INT64, Op.SUM, count=3001, root=0, place=place)


@pytest.mark.parametrize("make", [star_plan, chain_plan])
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_scales(make, dtype):
    """Prescale on what is read, postscale on what is stored, the same as the reference."""
    plan = make(3)
    inputs = inputs_of(Collective.ALLREDUCE, 3, 777, dtype, 5)

    def body(comm):
        return comm.allreduce(inputs[comm.rank], Op.SUM, prescale=2.0, postscale=0.5)

    got = run_threads(plan, body, chunk_bytes=CHUNK, eager_bytes=EAGER)
    program = lower(plan, Collective.ALLREDUCE, addressing=Addressing.STAGED)
    call = reference.Call(prescale=2.0, postscale=0.5, chunk_elements=CHUNK // dtype.itemsize)
    want = reference.run(program, inputs, call)
    for rank in range(3):
        assert np.array_equal(got[rank], want[rank]), dtype


def test_nan_and_infinity_pass_through():
    values = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)

    def body(comm):
        mine = values if comm.rank == 1 else np.ones(4, np.float32)
        return [comm.allreduce(mine, op) for op in (Op.SUM, Op.MIN, Op.MAX)]

    for total, low, high in run_threads(star_plan(3), body):
        assert np.isnan(total[0])
        assert list(total[1:]) == [np.inf, -np.inf, 3.0]
        assert np.isnan(low[0])
        assert np.isnan(high[0])
        assert list(low[1:]) == [1.0, -np.inf, 1.0]
        assert list(high[1:]) == [np.inf, 1.0, 1.0]


def test_rerun_gives_the_same_bits():
    """Float sums depend on the order of additions, and the plan fixes it."""
    random = np.random.default_rng(1)
    inputs = [random.standard_normal(5003).astype(np.float32) for _ in range(4)]

    def body(comm):
        return [comm.allreduce(inputs[comm.rank]).tobytes() for _ in range(5)]

    results = run_threads(chain_plan(4), body, chunk_bytes=CHUNK)
    assert len({bits for rank in results for bits in rank}) == 1


def test_average_of_integers_is_the_floor():
    def body(comm):
        return comm.allreduce(np.array([1 + comm.rank, -3 - comm.rank], np.int32), Op.AVERAGE)

    assert [list(x) for x in run_threads(star_plan(2), body)] == [[1, -4]] * 2


def test_uneven_shares_cover_everything():
    """A plan with shares of one and many."""
    plan = star_plan(3)
    trees = plan.allreduce.trees
    lopsided = type(plan.allreduce)(
        9,
        (
            type(trees[0])(0, trees[0].parents, 0, 1),
            type(trees[0])(1, trees[1].parents, 1, 2),
            type(trees[0])(2, trees[2].parents, 2, 9),
        ),
        Fraction(1),
        Fraction(1),
        "lane",
    )
    uneven = replace(plan, allreduce=lopsided)
    for count in COUNTS:
        check(uneven, Collective.ALLREDUCE, DType.INT32, Op.SUM, count=count, root=0, place="arena")
