"""Write every program the C++ tests run, one line each: name, size, rank, words.

Plans are stars and chains, so that one-hop and deep trees, direct, staged and one-shot programs
are all there. Those whose name begins with "paced" are for a machine with a link from every rank to
every other, numbered by its ends; those that begin with "hosts" run on the hosts of the digits.
"device" ones are the same for devices that all reach each other, "devicecut" for those of which
only some do (`reaches`), "devicehosts" over hosts.
"""

from fractions import Fraction

from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.schedule.devices import fits, hosted_slots
from blinkrun.schedule.encode import encode, encode_device
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower import lower
from blinkrun.schedule.lower_hosts import lower_alltoall_hosts, lower_eager_hosts, lower_hosts
from blinkrun.schedule.routes import Routes
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Collective


def star(root, size):
    return tuple(-1 if rank == root else root for rank in range(size))


def chain(root, size):
    """Ranks in a row with `root` somewhere in it: depth up to size - 1."""
    return tuple(
        -1 if rank == root else rank + 1 if rank < root else rank - 1 for rank in range(size)
    )


def packing(trees):
    planned = tuple(PlannedTree(r, parents, i, i + 1) for i, (r, parents) in enumerate(trees))
    return PlannedPacking(len(trees), planned, Fraction(1), Fraction(1), "lane")


def joint(trees):
    planned = tuple(PlannedTree(r, parents, 0, 1) for r, parents in trees)
    return PlannedPacking(1, planned, Fraction(1), Fraction(1), "lane", joint=True)


def plan(shape, size):
    everyone = range(size)
    single = tuple(packing([(root, shape(root, size))]) for root in everyone)
    double = packing([(root, shape(root, size)) for root in everyone])
    everywhere = joint([(root, shape(root, size)) for root in everyone])
    return Plan(size, double, single, single, everywhere, everywhere, "test")


def routes(size):
    wires = [(a, b) for a in range(size) for b in range(size) if a != b]
    links = tuple(Link(a, b, (f"{a}->{b}",), LinkKind.NVLINK) for a, b in wires)
    resources = tuple(Resource(f"{a}->{b}", 1) for a, b in wires)
    return Routes(Topology("all", tuple(range(size)), links, resources, "MB/s"))


def show(name, program, links=None):
    for rank in range(program.size):
        words = " ".join(map(str, encode(program, rank, links)))
        print(name, program.size, rank, words)


def reaches(a, b):
    """Return whether device `a` can address `b` where some cannot (test_device_block.cpp)."""
    return a == b or (2 * a + b) % 3 != 1


def show_device(name, program, reach):
    if not fits(program, reach):
        return
    hosted = hosted_slots(program, reach)
    for rank in range(program.size):
        print(name, program.size, rank, " ".join(map(str, encode_device(program, rank, hosted))))


def show_devices(shape, program):
    everyone = range(program.size)
    show_device(f"device-{shape.__name__}", program, [[True] * program.size] * program.size)
    cut = [[reaches(a, b) for b in everyone] for a in everyone]
    show_device(f"devicecut-{shape.__name__}", program, cut)


def over(hosts, shape, slot_depth=4):
    """Yield programs for ranks on `hosts`: trees cross from one to another wherever they do."""
    planned = plan(shape, len(hosts))
    trees = {
        Collective.ALLREDUCE: planned.allreduce,
        Collective.ALLGATHER: planned.allgather,
        Collective.REDUCESCATTER: planned.reducescatter,
    }
    yield lower_eager_hosts(hosts)
    for addressing in Addressing:
        yield lower_alltoall_hosts(hosts, addressing=addressing, slot_depth=slot_depth)
        for collective, packing in trees.items():
            how = {"addressing": addressing, "slot_depth": slot_depth}
            yield lower_hosts(packing, collective, hosts, **how)
        for root in range(len(hosts)):
            how = {"root": root, "addressing": addressing, "slot_depth": slot_depth}
            yield lower_hosts(planned.broadcast[root], Collective.BROADCAST, hosts, **how)
            yield lower_hosts(planned.reduce[root], Collective.REDUCE, hosts, **how)


def main():
    for size in (1, 2, 3, 5):
        for shape in (star, chain):
            planned = plan(shape, size)
            for collective in Collective:  # BARRIER only enters
                if collective is Collective.BARRIER:
                    continue
                for root in range(size) if collective.is_rooted else [0]:
                    for eager, addressing in ((True, 0), (False, 0), (False, 1), (False, 2)):
                        program = lower(
                            planned,
                            collective,
                            root=root,
                            addressing=Addressing(addressing),
                            eager=eager,
                        )
                        show(shape.__name__, program)
                        show_devices(shape, program)
                        if not eager and size > 1:
                            show(f"paced-{shape.__name__}", program, routes(size))
    for hosts in ((0, 1), (0, 0, 1, 1), (0, 1, 0, 2, 1)):
        for shape in (star, chain):
            for program in over(hosts, shape):
                digits = "".join(map(str, hosts))
                show(f"hosts-{shape.__name__}-{digits}", program)
            # Slots of more chunks than the rings of messages hold, and of fewer.
            for program in over(hosts, shape, slot_depth=6 if shape is star else 3):
                reach = [[True] * len(hosts)] * len(hosts)
                if not program.eager:
                    show_device(f"devicehosts-{shape.__name__}-{digits}", program, reach)


if __name__ == "__main__":
    main()
