"""The verifier refuses every program with a fault, and nothing that it lets through is wrong.

Of the mutants of a program (a step dropped, two swapped, a lag, flag, part or operand changed) some
are as right as the original. Those are named in `support.mutants`, by rules that do not ask the
verifier.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutants import is_accepted, is_no_fault, mutants
from support.programs import lowered, plan_of, programs, star, star_plan

from blinkrun.executors import reference
from blinkrun.schedule.ir import Addressing
from blinkrun.types import Collective

TREE = (0, (-1, 0, 0, 1))
TREES = plan_of([TREE], [[TREE], *[[star(4, root)] for root in (1, 2, 3)]])
CASES = [
    pytest.param(plan, collective, addressing, eager, id=f"{name}-{collective.label}-{how}")
    for name, plan in (("stars", star_plan(3)), ("trees", TREES))
    for collective in Collective
    for addressing, eager, how in (
        (Addressing.DIRECT, False, "direct"),
        (Addressing.STAGED, False, "staged"),
        (Addressing.STAGED, True, "eager"),
    )
]


@pytest.mark.parametrize(("plan", "collective", "addressing", "eager"), CASES)
def test_every_fault_is_refused(plan, collective, addressing, eager):
    program = lowered(plan, collective, addressing=addressing, eager=eager)
    accepted = [(what, mutant) for what, mutant in mutants(program) if is_accepted(mutant)]
    faults = [what for what, mutant in accepted if not is_no_fault(program, what, mutant)]
    assert not faults


@settings(max_examples=10)
@given(programs(min_size=2, max_size=4), st.data())
def test_what_is_accepted_gives_the_right_result_in_any_order(program, data):
    """Mutants included: the verifier's word is checked by running."""
    candidates = [mutant for _, mutant in mutants(program)]
    some = data.draw(st.lists(st.sampled_from(candidates), max_size=8))
    ones = [
        np.arange(program.input_blocks * 41, dtype=np.int64) * (rank + 1)
        for rank in range(program.size)
    ]
    for aliased in (False, True) if program.collective is not Collective.ALLTOALL else (False,):
        call = reference.Call(chunk_elements=3, in_place=aliased)
        wanted = reference.run(program, ones, call)
        for mutant in filter(is_accepted, some):
            for seed in range(3):
                call = reference.Call(chunk_elements=3, in_place=aliased, seed=seed)
                got = reference.run(mutant, ones, call)
                assert [each.tolist() for each in got] == [each.tolist() for each in wanted]


@settings(max_examples=10)
@given(programs(min_size=2, max_size=4), st.data())
def test_more_chunks_do_not_change_the_verdict(program, data):
    if program.pipelined:
        candidates = [program, *(mutant for _, mutant in mutants(program))]
        for mutant in data.draw(st.lists(st.sampled_from(candidates), max_size=8)):
            assert is_accepted(mutant) == is_accepted(mutant, chunks=(2, 3, 9, 11))
