import json
from fractions import Fraction

import pytest
from support.emulated import job_for

from blinkrun.bench import emulate_plan
from blinkrun.bench.emulate_job import EmulatedJob
from blinkrun.bench.options import check
from blinkrun.cli import Prepared
from blinkrun.errors import LaunchError, UsageError
from blinkrun.planner.plan import Plan
from blinkrun.planner.rings import RingKind
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.simulator.cost import EMULATED, FREE
from blinkrun.simulator.engine import simulate
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Collective


def programs_of(job):
    for call in job.calls:
        for way in job.ways(call, job.ring_programs()):
            yield way.program, way.chunk_bytes, way.simulated_ns


@pytest.mark.parametrize(
    "words",
    [
        "dgx-1v --gpus 1,4,5,7 --against ring --sizes 4M,1M,256K",
        "dgx-1v --gpus 4,0,1 --links nvlink --collective broadcast --root 0 --sizes 1M",
        "dgx-1p --gpus 0,1,2 --collective allgather --sizes 1M",
    ],
)
def test_a_job_is_the_same_after_the_hand_over(words):
    job = job_for(words)
    again = EmulatedJob.from_json(job.to_json())
    assert again == job
    assert again.to_json() == job.to_json()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "text is no emulated job: JSONDecodeError"),
        ("[]", "text is no emulated job"),
        ('{"version": 0}', "a job of version 0, this is 1"),
        ('{"version": 1}', "text is no emulated job: KeyError"),
    ],
)
def test_what_is_no_job_is_said_in_a_line(text, said):
    with pytest.raises(LaunchError, match=said):
        EmulatedJob.from_json(text)


def test_a_job_with_a_broken_number_is_refused():
    data = json.loads(job_for("dgx-1v --gpus 0,1 --sizes 1M").to_json())
    with pytest.raises(LaunchError, match="text is no emulated job"):
        EmulatedJob.from_json(json.dumps(data | {"scale": 0}))
    with pytest.raises(LaunchError, match="text is no emulated job"):
        EmulatedJob.from_json(json.dumps(data | {"collective": "scan"}))


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "reduce", "allgather"])
def test_programs_are_right_and_keep_to_the_links_that_are_emulated(collective):
    job = job_for(f"dgx-1v --gpus 1,4,5 --collective {collective} --against ring --sizes 1M")
    for program, _, _ in programs_of(job):
        verify(program, links=Routes(job.topology).pairs())


def test_what_is_predicted_is_what_the_simulator_says_of_these_programs():
    job = job_for("dgx-1v --gpus 0,1,2 --against ring --sizes 1M --scale 100")
    for program, chunk, predicted_ns in programs_of(job):
        run = simulate(
            program,
            job.topology,
            size_bytes=1 << 20,
            chunk_bytes=chunk,
            cost=EMULATED.over(100),
        )
        assert predicted_ns == 100 * run.time_ns


def test_links_that_are_slower_are_a_clock_that_is_slower():
    """`Cost.over` is exact: links at a hundredth of their rate, simulated in either way."""
    job = job_for("dgx-1v --gpus 0,1,2 --links nvlink --sizes 1M")
    program = job.tree_program(job.calls[0])
    cost = FREE.with_latencies({LinkKind.NVLINK: 2000})
    slow = Topology(
        job.topology.name,
        job.topology.devices,
        tuple(Link(e.src, e.dst, e.resources, e.kind) for e in job.topology.links),
        tuple(Resource(r.name, r.capacity // 100) for r in job.topology.resources),
        job.topology.unit,
    )
    assert all(r.capacity % 100 == 0 for r in job.topology.resources)

    def time_ns(topology, cost):
        found = simulate(program, topology, size_bytes=1 << 20, chunk_bytes=1 << 16, cost=cost)
        return found.time_ns

    direct, turned = time_ns(slow, cost), 100 * time_ns(job.topology, cost.over(100))
    assert turned == pytest.approx(
        direct, rel=0.002
    )  # whole ns on a clock that is 100 times slower


def test_times_are_near_what_the_bound_allows():
    job = job_for("dgx-1v --gpus 1,4,5,7 --collective broadcast --sizes 4M")
    (call,) = job.calls
    least_ns = Fraction(call.size_bytes * 1000 * job.scale) / call.choice.packing.bound
    assert least_ns <= call.simulated_ns <= 1.1 * least_ns


def test_the_usual_sizes_take_a_time_that_says_something():
    job = job_for("dgx-1v --gpus 1,4,5,7 --against ring")
    assert len(job.calls) >= 1
    for call in job.calls:
        assert call.simulated_ns >= 20_000_000
        assert call.rings is not None
        assert call.rings.simulated_ns <= 500_000_000


@pytest.mark.parametrize("scale", [1, 100_000])
def test_there_is_a_usual_size_at_any_scale(scale):
    assert job_for(f"dgx-1v --gpus 1,4 --scale {scale}").calls


def test_rings_may_use_what_trees_may_not():
    """GPUs 1, 4, 5 and 7 form no NVLink ring: the peer goes over PCIe, which is emulated then."""
    job = job_for("dgx-1v --gpus 1,4,5,7 --links nvlink --against ring --sizes 1M")
    assert job.peer is not None
    assert job.peer.kind is RingKind.PCIE
    (tree, _, _), (ring, _, _) = programs_of(job)
    assert kinds_of(tree) == {"nvlink"}
    assert kinds_of(ring) & {"pcie", "pcie-staged"}


def test_without_rings_only_the_links_of_the_trees_are_there():
    job = job_for("dgx-1v --gpus 1,4,5,7 --links nvlink --sizes 1M")
    assert {link.kind for link in job.topology.links} == {LinkKind.NVLINK}
    assert job.topology.unit == "MB/s"
    assert job.peer is None


def kinds_of(program):
    from blinkrun.schedule.routes import ways

    return {kind for _, _, kind in ways(program)}


def test_the_root_is_the_rank_of_its_gpu():
    job = job_for("dgx-1v --gpus 4,5,1 --collective broadcast --root 1 --sizes 1M")
    assert (job.root, job.collective) == (2, Collective.BROADCAST)
    assert {tree.root for tree in job.calls[0].choice.packing.trees} == {2}


def test_sizes_are_whole_elements_in_every_block():
    job = job_for("dgx-1v --gpus 0,1,2 --collective reducescatter --sizes 1000")
    assert [call.size_bytes for call in job.calls] == [996]


def test_a_given_chunk_is_taken():
    job = job_for("dgx-1v --gpus 0,1,4 --sizes 1M,4M --chunk 48K")
    assert {call.choice.chunk_bytes for call in job.calls} == {48 << 10}


def test_trees_may_be_chosen_by_hand():
    exact, few = (
        job_for(f"dgx-1v --gpus 0-7 --trees {trees} --sizes 1M --chunk 32K").calls[0].choice
        for trees in ("exact", "few")
    )
    assert (exact.trees, few.trees) == ("exact", "few")
    assert len(few.packing.trees) < len(exact.packing.trees)


def test_a_machine_with_few_cores_gets_chunks_that_it_can_move(monkeypatch):
    """Without larger chunks eight ranks on one core would measure that core."""

    def moved(cores):
        monkeypatch.setattr(emulate_plan, "_cores", lambda: cores)
        job = job_for("dgx-1v --gpus 0-7 --collective broadcast --sizes 1M")
        (call,) = job.calls
        program = job.tree_program(call)
        return emulate_plan.num_moves(program, call.size_bytes, call.choice.chunk_bytes), call

    many, _ = moved(64)
    few, call = moved(1)
    assert few < many
    assert few * emulate_plan.MOVE_CPU_NS <= call.simulated_ns


def test_the_number_of_ranks_is_that_of_the_gpus():
    prepared = check(
        ["--emulate", "dgx-1v", "--gpus", "0,1,4", "--scale", "100000", "--sizes", "64K"], None
    )
    assert isinstance(prepared, Prepared)
    assert prepared.num_ranks == 3
    assert EmulatedJob.from_json(prepared.texts["BLINKRUN_EMULATION"]).topology.devices == (0, 1, 4)
    assert Plan.from_json(prepared.texts["BLINKRUN_PLAN"]).size == 3


@pytest.mark.parametrize(
    ("words", "num_ranks", "said"),
    [
        ("dgx-1v --gpus 0,1,4", 4, "-np 4: a rank for each of 3 GPUs is 3; leave -np out"),
        ("dgx-9", None, "dgx-9"),
        ("dgx-1v --gpus 0,9", None, "--gpus 9: dgx-1v has GPUs 0-7"),
        ("dgx-1v --gpus 3", None, "allreduce of GPU 3 alone: need at least two"),
        (
            "dgx-1v --gpus 1,4 --links nvlink",
            None,
            "no path over NVLink between GPU 1 and GPU 4; --links all would join them",
        ),
        ("dgx-1v --collective reduce --root 8", None, "--root 8: dgx-1v has GPUs 0-7"),
        ("dgx-1v --gpus 0,1 --sizes 2", None, "--sizes 2 is too small"),
    ],
)
def test_what_the_machine_cannot_do_is_refused_in_one_line(words, num_ranks, said):
    with pytest.raises(UsageError) as caught:
        check(["--emulate", *words.split()], num_ranks)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
