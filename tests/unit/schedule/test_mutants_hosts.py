"""The verifier refuses every program over several hosts with a fault, messages included."""

import pytest
from support.mutants import is_accepted, is_no_fault, mutants
from support.programs import joint, packing, star

from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.schedule.verify import verify
from blinkrun.types import Collective

SHAPES = {
    # A host's ranks below the root, a message from one host to the next, ranks below that.
    "two": ((0, 0, 1, 1), (0, (-1, 0, 0, 2))),
    # A rank that gets messages from both sides, and passes them on.
    "three": ((0, 1, 2), (0, (-1, 0, 1))),
    # A rank with a parent on its host and a child on another.
    "mixed": ((0, 0, 1, 1, 2), (0, (-1, 0, 0, 2, 3))),
}
JOINT = (Collective.ALLGATHER, Collective.REDUCESCATTER)
EACH = (*JOINT, Collective.ALLTOALL)
CASES = [
    pytest.param(name, collective, addressing, id=f"{name}-{collective.label}-{addressing.name}")
    for name in SHAPES
    for collective in Collective
    for addressing in (Addressing.DIRECT, Addressing.STAGED)
    if collective is not Collective.BARRIER and (name != "mixed" or collective not in EACH)
]


def faults(program):
    verify(program)
    accepted = [(what, mutant) for what, mutant in mutants(program) if is_accepted(mutant)]
    return [what for what, mutant in accepted if not is_no_fault(program, what, mutant)]


@pytest.mark.parametrize(("name", "collective", "addressing"), CASES)
def test_every_fault_is_refused(name, collective, addressing):
    hosts, tree = SHAPES[name]
    if collective in EACH:
        hosts = hosts[:3]  # more ranks are many more steps, and show nothing else
    stars = [packing([star(len(hosts), root)]) for root in range(len(hosts))]
    trees = joint(stars) if collective in JOINT else packing([tree])
    assert not faults(lower_hosts(trees, collective, hosts, addressing=addressing))


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 2), (0, 1, 0)])
def test_every_fault_of_a_one_shot_program_is_refused(hosts):
    assert not faults(lower_eager_hosts(hosts))
