"""What a group over hosts has of MPI is given back when all of its ranks have left, not before."""

from dataclasses import dataclass, field

from blinkrun.executors.leaving import Leaving


@dataclass
class Group:
    """Executor, its native group, and control plane of one group at once."""

    have_left: bool = False
    did: list[str] = field(default_factory=list)

    @property
    def group(self):
        return self

    def all_left(self):
        return self.have_left

    def let_go(self):
        self.did.append("let go")

    def finalize(self):
        self.did.append("finalize")


def test_communicators_stay_until_all_ranks_have_left():
    """Freed at once, their number went to the next group, which got what was sent to the last."""
    leaving, slow, near = Leaving(), Group(), Group()
    leaving.add(slow, slow, num_hosts=2)
    leaving.add(near, near, num_hosts=1)
    leaving.sweep()
    assert slow.did == []
    assert near.did == ["finalize"]
    slow.have_left = True
    leaving.sweep()
    leaving.sweep()
    assert slow.did == ["let go", "finalize"]


def test_at_the_end_nothing_stays_under_way():
    leaving, dead = Leaving(), Group()
    leaving.add(dead, dead, num_hosts=2)
    leaving.let_go()
    leaving.sweep()
    assert dead.did == ["let go"]


def test_worlds_before_the_present_one_end_before_mpi_does():
    """One that was kept called MPI after its end; its control plane is the next one's, too."""
    leaving, last, other = Leaving(), Group(have_left=True), Group()
    leaving.add_world(last)
    assert last.did == ["let go"]
    leaving.add_world(other)
    assert other.did == []
    leaving.let_go()
    assert other.did == ["let go"]
