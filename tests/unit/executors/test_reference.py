"""The reference executor against plain numpy, for every collective, type, op and odd size."""

from functools import reduce as fold

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_hosts import plan_of_sizes
from support.programs import (
    chain_plan,
    hosted_packings,
    hosted_programs,
    lowered,
    packing,
    plans,
    programs,
    star,
    star_plan,
)

from blinkrun.errors import ProgramError, UsageError
from blinkrun.executors import reference
from blinkrun.executors.numerics import combine, finish, numpy_dtype
from blinkrun.executors.reference import Call
from blinkrun.schedule.ir import (
    Addressing,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Reduce,
    Send,
    Sent,
    Wait,
)
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.types import Collective, DType, Op

REDUCING = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)
MOVING = [collective for collective in Collective if collective is not Collective.BARRIER]
ANY_HOSTS = st.one_of(programs(max_size=5), hosted_programs(MOVING))
INTEGERS = (DType.UINT8, DType.INT8, DType.INT32, DType.INT64)
COUNTS = st.sampled_from([0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 97, 131])
CHUNK = 16


def draw_inputs(program, count, dtype, seed=0):
    """Any bit patterns for integers, small whole numbers for floats, so that sums are exact."""
    random = np.random.default_rng(seed)
    shape = program.size, program.input_blocks * count
    if dtype in INTEGERS:
        info = np.iinfo(numpy_dtype(dtype))
        values = random.integers(info.min, info.max, shape, numpy_dtype(dtype), endpoint=True)
    else:
        values = random.integers(0, 2 if dtype is DType.BOOL else 4, shape)
    return list(values.astype(numpy_dtype(dtype)))


def expected(program, inputs, op=Op.SUM):
    """What numpy says; None for an OUTPUT that must stay as it was."""
    size = program.size
    ranks = range(size)
    match program.collective:
        case Collective.BROADCAST:
            return [inputs[program.root]] * size
        case Collective.ALLGATHER:
            return [np.concatenate(inputs)] * size
        case Collective.ALLTOALL:
            split = [np.split(each, size) for each in inputs]
            return [np.concatenate([split[sender][rank] for sender in ranks]) for rank in ranks]
    total = finish(op, fold(lambda a, b: combine(op, a, b), inputs), size, 1.0)
    if program.collective is Collective.REDUCESCATTER:
        return np.split(total, size)
    is_reduce = program.collective is Collective.REDUCE
    return [None if is_reduce and rank != program.root else total for rank in ranks]


def ops_of(dtype):
    return [op for op in Op if not (op is Op.AVERAGE and dtype is DType.BOOL)]


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
@settings(max_examples=10)
@given(program=ANY_HOSTS, count=COUNTS, data=st.data())
def test_results_equal_numpy(dtype, program, count, data):
    op = data.draw(st.sampled_from(ops_of(dtype)))
    in_place = data.draw(st.booleans()) and program.collective is not Collective.ALLTOALL
    inputs = draw_inputs(program, count, dtype, seed=count)
    if dtype not in INTEGERS and op is Op.AVERAGE:
        inputs = [each * program.size for each in inputs]  # so that floats divide exactly
    before = [each.copy() for each in inputs]
    mark = np.ones(program.output_blocks * count, numpy_dtype(dtype))
    call = Call(
        op, chunk_elements=CHUNK, in_place=in_place, seed=data.draw(st.sampled_from([None, 1]))
    )
    got = reference.run(program, inputs, call, [mark] * program.size)
    for rank, wanted in enumerate(expected(program, inputs, op)):
        untouched = inputs[rank] if in_place else mark
        assert np.array_equal(got[rank], untouched if wanted is None else wanted)
    assert all(np.array_equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("addressing", Addressing)
@pytest.mark.parametrize("collective", Collective)
def test_every_size_and_odd_count(collective, addressing):
    for size in range(1, 7):
        for plan in (star_plan(size), chain_plan(size)):
            program = lowered(plan, collective, addressing=addressing)
            for count in (0, 1, CHUNK - 1, 5 * CHUNK + 1):
                inputs = draw_inputs(program, count, DType.INT32)
                got = reference.run(program, inputs, Call(chunk_elements=CHUNK))
                if collective is Collective.BARRIER:
                    continue
                for each, wanted in zip(got, expected(program, inputs), strict=True):
                    assert wanted is None or np.array_equal(each, wanted)


@settings(max_examples=10)
@given(
    plan=plans(min_size=2, max_size=5),
    addressing=st.sampled_from(Addressing),
    eager=st.booleans(),
    dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16]),
    op=st.sampled_from([Op.SUM, Op.AVERAGE, Op.PRODUCT]),
    prescale=st.sampled_from([1.0, 0.3]),
)
def test_all_ranks_get_the_same_bits_in_any_order_of_steps(
    plan, addressing, eager, dtype, op, prescale
):
    program = lowered(plan, Collective.ALLREDUCE, addressing=addressing, eager=eager)
    random = np.random.default_rng(3)
    inputs = [random.standard_normal(97).astype(numpy_dtype(dtype)) for _ in range(plan.size)]
    results = {
        each.tobytes()
        for seed in (None, 1, 2, 3)
        for each in reference.run(
            program, inputs, Call(op, prescale, 1.7, chunk_elements=CHUNK, seed=seed)
        )
    }
    assert len(results) == 1


@settings(max_examples=10)
@given(
    data=st.data(),
    hosts=st.sampled_from([(0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 2)]),
    dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]),
    op=st.sampled_from([Op.SUM, Op.AVERAGE]),
)
def test_all_hosts_get_the_same_bits_whenever_messages_arrive(data, hosts, dtype, op):
    trees = data.draw(hosted_packings(Collective.ALLREDUCE, len(hosts), 0))
    addressing = data.draw(st.sampled_from(Addressing))
    random = np.random.default_rng(3)
    inputs = [random.standard_normal(97).astype(numpy_dtype(dtype)) for _ in hosts]
    for program in (
        lower_hosts(trees, Collective.ALLREDUCE, hosts, addressing=addressing),
        lower_eager_hosts(hosts),
    ):
        results = {
            each.tobytes()
            for seed in (None, 1, 2, 3)
            for each in reference.run(program, inputs, Call(op, chunk_elements=CHUNK, seed=seed))
        }
        assert len(results) == 1


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (2, 1, 2)])
@pytest.mark.parametrize(("dtype", "prescale"), [(DType.FLOAT32, 0.3), (DType.FLOAT16, 1.0)])
def test_bits_over_hosts_depend_neither_on_the_way_nor_on_the_place(sizes, dtype, prescale):
    """Else what is fused with what, and so falls to which root, would change results."""
    plan = plan_of_sizes(sizes)
    random = np.random.default_rng(5)
    inputs = [random.standard_normal(301).astype(numpy_dtype(dtype)) for _ in range(plan.size)]
    trees = plan.packing(Collective.ALLREDUCE)
    programs = [
        lower_hosts(trees, Collective.ALLREDUCE, plan.hosts_of, addressing=addressing)
        for addressing in Addressing
    ]
    call = Call(Op.SUM, chunk_elements=CHUNK, prescale=prescale)
    results = {
        each.tobytes()
        for program in (*programs, lower_eager_hosts(plan.hosts_of))
        for each in reference.run(program, inputs, call)
    }
    assert len(results) == 1


@settings(max_examples=10)
@given(program=ANY_HOSTS, in_place=st.booleans())
def test_contributions_are_scaled_before_and_results_after(program, in_place):
    inputs = draw_inputs(program, 31, DType.FLOAT64)
    plain = expected(program, inputs)
    call = Call(
        prescale=2.0,
        postscale=0.25,
        chunk_elements=CHUNK,
        in_place=in_place and program.collective is not Collective.ALLTOALL,
    )
    factor = 0.5 if program.collective in REDUCING else 1.0  # the others only move data
    for got, wanted in zip(reference.run(program, inputs, call), plain, strict=True):
        assert wanted is None or np.array_equal(got, wanted * factor)


def test_integers_are_scaled_one_by_one_and_averaged_before_the_postscale():
    program = lowered(star_plan(2), Collective.ALLREDUCE)
    inputs = [np.array([5], np.int32), np.array([2], np.int32)]
    got = reference.run(program, inputs, Call(Op.AVERAGE, prescale=0.5, postscale=2.5))
    assert got[0].tolist() == [2]  # 5 -> 2, 2 -> 1; 3 // 2 = 1; 2.5 -> 2


def test_partial_sums_of_16_bit_floats_are_rounded_where_they_are_stored():
    ulp = 2.0**-10  # of float16 between 1 and 2
    inputs = [np.array([each], np.float16) for each in (1.0, ulp / 2, ulp / 2)]
    star = lowered(star_plan(3), Collective.ALLREDUCE)
    chain = lowered(chain_plan(3), Collective.REDUCE, root=2)
    assert reference.run(star, inputs)[0] == np.float16(1 + ulp)
    # 2 <- 0 <- 1: rank 0 stores 1 + ulp/2, which rounds to even; then ulp/2 is lost again.
    assert reference.run(chain, inputs)[2] == np.float16(1)


def test_16_bit_floats_are_rounded_where_they_leave_their_host():
    ulp = 2.0**-10
    inputs = [np.array([each], np.float16) for each in (ulp / 2, 1.0, ulp / 2)]
    trees = packing([(0, (-1, 0, 1))])
    together = lower_hosts(trees, Collective.ALLREDUCE, (0, 1, 1))
    assert reference.run(together, inputs)[0] == np.float16(1)  # 1 + ulp/2 crosses as 1
    apart = lower_hosts(packing([star(3, 0)]), Collective.ALLREDUCE, (0, 1, 1))
    assert reference.run(apart, inputs)[0] == np.float16(1 + ulp)


def test_in_place_collectives_lie_in_each_other():
    gather = lowered(star_plan(3), Collective.ALLGATHER)
    inputs = [np.array([rank]) for rank in range(3)]
    got = reference.run(gather, inputs, Call(in_place=True), [np.full(3, -1)] * 3)
    assert [each.tolist() for each in got] == [[0, 1, 2]] * 3
    scatter = lowered(star_plan(3), Collective.REDUCESCATTER)
    got = reference.run(scatter, [np.arange(6)] * 3, Call(in_place=True))
    assert [each.tolist() for each in got] == [[0, 3], [6, 9], [12, 15]]


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ([np.zeros(2)], None, "2 ranks need as many arrays"),
        ([np.zeros(2), np.zeros(3)], None, "of one shape and dtype"),
        ([np.zeros(2), np.zeros(2, np.int8)], None, "of one shape and dtype"),
        ([np.zeros((2, 2))] * 2, None, r"input of shape \(2, 2\)"),
        ([np.zeros(3)] * 2, None, "does not hold 2 equal blocks"),
        ([np.zeros(2, np.uint16)] * 2, None, "cannot be reduced"),
        ([np.zeros(4)] * 2, [np.zeros(2), np.zeros(3)], r"output of rank 1 is float64\(3,\)"),
        ([np.zeros(4)] * 2, [np.zeros(2, int)] * 2, r"output of rank 0 is int64\(2,\)"),
    ],
)
def test_buffers_that_do_not_fit(inputs, outputs, says):
    program = lowered(star_plan(2), Collective.REDUCESCATTER)
    with pytest.raises(UsageError, match=says):
        reference.run(program, inputs, outputs=outputs)


def test_ranks_that_wait_for_ever_are_named():
    copy = Reduce((Operand(0, Buffer.OUTPUT),), (Operand(0, Buffer.INPUT),))
    channel = Channel(Part(0, 1), (copy, Wait(0, 0)))
    program = Program(
        Collective.BROADCAST, 0, Addressing.DIRECT, 1, (RankProgram(channels=(channel,)),)
    )
    with pytest.raises(ProgramError, match=r"rank 0 waits for ever at chunk 0, step 1: Wait\("):
        reference.run(program, [np.zeros(2)])


def test_messages_that_nobody_expects_are_waited_for_in_vain():
    """Nothing relies on a message that is buffered: it is a matter of size and of luck."""
    slot = Operand(0, Buffer.SCRATCH)
    put = Reduce((slot,), (Operand(0, Buffer.INPUT),))
    alone = RankProgram(channels=(Channel(Part(0, 1), (put, Send(slot, 1), Sent(1))),))
    program = Program(
        Collective.REDUCE, 0, Addressing.DIRECT, 1, (alone, RankProgram()), slots=1, hosts=(0, 1)
    )
    with pytest.raises(ProgramError, match=r"rank 0 waits for ever at chunk 0, step 2: Sent\("):
        reference.run(program, [np.zeros(2)] * 2)
