"""The verifier refuses every program with a fault, and nothing that it lets through is wrong.

Of the mutants of a program (a step dropped, two swapped, a lag, flag, part or operand changed) some
are as right as the original. Those are named here, by a rule that does not ask the verifier.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutants import mutants
from support.programs import lowered, plan_of, programs, star, star_plan

from blinkrun.errors import ProgramError
from blinkrun.executors import reference
from blinkrun.schedule.ir import Addressing, Buffer, Program, Reduce, Signal, Wait
from blinkrun.schedule.promise import location, moves_only
from blinkrun.schedule.verify import verify
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


def is_accepted(program: Program, **how) -> bool:
    try:
        verify(program, **how)
    except ProgramError:
        return False
    return True


def commute(program: Program, one, other) -> bool:
    """Whether two steps that follow each other may change places."""
    if isinstance(one, Wait) and isinstance(other, Wait):
        return True
    if isinstance(one, Reduce) and isinstance(other, Reduce):
        touched = [
            {location(o, program.collective, in_place=True) for o in operands}
            for operands in (one.dsts, one.srcs, other.dsts, other.srcs)
        ]
        return not (touched[0] & (touched[2] | touched[3]) or touched[1] & touched[2])
    # The root's copy to its own OUTPUT, which nobody else reads, may as well come after a wait.
    copy = one if isinstance(one, Reduce) else other
    return (
        not isinstance(one, Signal)
        and not isinstance(other, Signal)
        and moves_only(program.collective)
        and {o.buffer for o in (*copy.dsts, *copy.srcs)} == {Buffer.INPUT, Buffer.OUTPUT}
        and len({o.rank for o in (*copy.dsts, *copy.srcs)}) == 1
    )


def changed_steps(program: Program, mutant: Program):
    """The (old, new) steps of the one channel that differs."""
    for old, new in zip(program.ranks, mutant.ranks, strict=True):
        for kind in ("prologue", "channels"):
            for a, b in zip(getattr(old, kind), getattr(new, kind), strict=False):
                if a != b:
                    return a.steps, b.steps
    raise AssertionError("nothing differs")


def only_paces(program: Program, old, new) -> bool:
    """Whether what was moved, dropped or loosened is a wait that guards no slot: it keeps pace."""
    gone = Counter(old) - Counter(new)
    moved = {a for a, b in zip(old, new, strict=False) if a != b}
    loose = set(gone) or moved
    paces = {step for step in loose if isinstance(step, Wait) and step.lag}
    return not program.slots and bool(paces) and (loose == paces or not gone)


def is_no_fault(program: Program, what: str, mutant: Program) -> bool:
    if "lag=" in what and only_paces(program, *changed_steps(program, mutant)):
        return True
    if " swap " in what:
        old, new = changed_steps(program, mutant)
        return any(
            (b, a) == (new[i], new[i + 1]) and commute(program, a, b)
            for i, (a, b) in enumerate(pairwise(old))
            if new[i] != old[i]
        )
    if program.eager and moves_only(program.collective):
        # A rank may take its own block from its slot, where it has put it for the others.
        old, new = changed_steps(program, mutant)
        differing = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        return len(old) == len(new) and all(
            step.srcs[0].rank == step.dsts[0].rank for pair in differing for step in pair
        )
    # A later flag of another rank may say as much, by way of others.
    return " other rank of Wait" in what or " other flag of Wait" in what


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
