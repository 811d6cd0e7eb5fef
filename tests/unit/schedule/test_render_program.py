import pytest
from support.golden import check_golden
from support.programs import joint, lowered, packing, plan_of, star, star_plan

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.schedule.render import render
from blinkrun.types import Collective

LINE = (0, (-1, 0, 1))
PLAN = plan_of([LINE, star(3, 2)], [[LINE], [star(3, 1)], [star(3, 2)]])


@pytest.mark.parametrize("how", ["direct", "staged", "eager"])
@pytest.mark.parametrize("collective", Collective, ids=lambda collective: collective.label)
def test_listings(collective, how):
    """Every step of every lowering, to be read; a change of lowering shows here first."""
    addressing = Addressing.DIRECT if how == "direct" else Addressing.STAGED
    program = lowered(PLAN, collective, addressing=addressing, eager=how == "eager")
    check_golden(f"programs/{collective.label}_{how}.txt", render(program))


# Two hosts of two ranks: rank 2 is the head of its host in the first tree, rank 1 in the second.
HOSTS = (0, 0, 1, 1)
CROSSING = [(0, (-1, 0, 0, 2)), (3, (1, 3, 3, -1))]


@pytest.mark.parametrize("addressing", [Addressing.DIRECT, Addressing.STAGED])
@pytest.mark.parametrize("collective", Collective, ids=lambda collective: collective.label)
def test_listings_over_hosts(collective, addressing):
    trees = packing(CROSSING)
    if collective.is_rooted:
        trees = packing(CROSSING[:1])
    if collective in (Collective.ALLGATHER, Collective.REDUCESCATTER):
        trees = joint([packing([star(4, root)]) for root in range(4)])
    program = lower_hosts(trees, collective, HOSTS, addressing=addressing)
    name = f"{collective.label}_hosts_{addressing.name.lower()}"
    check_golden(f"programs/{name}.txt", render(program))


def test_listing_of_a_one_shot_program_over_hosts():
    check_golden("programs/allreduce_hosts_eager.txt", render(lower_eager_hosts(HOSTS)))


def test_one_rank():
    program = lowered(star_plan(3), Collective.REDUCE, root=1)
    assert render(program, rank=2) == (
        "reduce, root 1, 3 ranks, direct, stars: 1 share, 0 slots of depth 1, 1 flag\n"
        "rank 2\n"
        "  channel 0, shares [0, 1)\n"
        "    wait r1 f0\n"
    )


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_that_is_not_there(rank):
    with pytest.raises(ProgramError, match=f"rank {rank} is none"):
        render(lowered(star_plan(3), Collective.BARRIER), rank)
