"""The backend blink of torch.distributed; the cases run in one job for each number of ranks."""

import pytest
from support.harness import RankRunner

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

pytestmark = pytest.mark.timeout(320)  # the first test of a job waits for all its cases

EXACT = 1e-12  # double precision: sums in another order


class Suite:
    """The results of all cases on `size` ranks."""

    def __init__(self, size, results):
        self.size = size
        self._results = results

    def of(self, case):
        """What `case` returned, rank by rank; fails the test if it raised, skips it if left out."""
        if all(case not in result for result in self._results):
            pytest.skip(f"{case} is not for this job")
        answers = [result[case] for result in self._results]
        raised = [f"--- rank {r}\n{a['raised']}" for r, a in enumerate(answers) if "raised" in a]
        if raised:
            pytest.fail(f"{case} on {self.size} ranks\n" + "\n".join(raised), pytrace=False)
        return [answer["returned"] for answer in answers]


JOBS = {  # the host of each rank
    "3ranks": [0, 0, 0],
    "3ranks on 2hosts": [0, 1, 0],
    "2ranks on devices": [0, 0],
}
ON_DEVICES = "2ranks on devices"


@pytest.fixture(scope="module", params=JOBS)
def suite(request, tmp_path_factory, plan_cache):
    folder = tmp_path_factory.mktemp("distributed")
    hosts = JOBS[request.param]
    # DDP's calls by a helper thread while backward runs, and in backward's own thread.
    overlap = "on" if request.param == "3ranks" else "off"
    environ = {"BLINKRUN_CACHE_DIR": str(plan_cache), "BLINKRUN_OVERLAP": overlap}
    suite = "torch_distributed_suite"
    if request.param == ON_DEVICES:
        suite = "torch_distributed_devices_suite"
        environ["BLINKRUN_DEVICE_ARENA_BYTES"] = "128M"  # a group has its own
    results = RankRunner(folder, environ=environ)(
        f"{suite}:run_all",
        len(hosts),
        timeout_s=300,
        hosts=hosts,
        store=str(folder / "store"),
        ranks=len(hosts),
    )
    return Suite(len(hosts), results)


CHECKED_BY_RANKS = [
    "reductions",
    "special_reductions",
    "complex_reductions",
    "reduce_to_a_root",
    "reduce_scatters",
    "sparse_sums",
    "moves",
    "uneven_moves",
    "layouts",
    "large_pieces",
    "asynchronous",
    "coalesced",
    "sub_groups",
    "objects",
    "functional_collectives",
    "gradients_through_collectives",
]


@pytest.mark.parametrize("case", CHECKED_BY_RANKS)
def test_results_are_those_that_the_inputs_give(suite, case):
    for bad in suite.of(case):
        assert not bad, bad[:5]


def test_a_token_goes_around_in_every_type_and_layout(suite):
    assert suite.of("around_the_ring") == [[6.0] * 5] * suite.size


def test_sends_and_receives_larger_than_shared_memory_in_any_order(suite):
    wanted = [[float((rank - 1) % suite.size)] for rank in range(suite.size)]
    assert suite.of("large_both_ways") == wanted


def test_started_sends_do_not_block(suite):
    assert suite.of("many_without_receivers") == [[float(at) for at in range(30)]] * suite.size


def test_messages_are_matched_by_tag(suite):
    assert suite.of("tags_in_any_order") == [[0.0, 1.0, 2.0, 3.0]] * suite.size
    assert suite.of("waits_in_another_order") == [[1.0, 2.0]] * suite.size


@pytest.mark.parametrize("case", ["from_anyone", "to_oneself", "batches", "object_lists"])
def test_messages_of_other_forms(suite, case):
    assert all(suite.of(case))


def test_messages_go_beside_collectives_that_wait(suite):
    wanted = [[float(rank or suite.size), float(suite.size)] for rank in range(suite.size)]
    assert suite.of("beside_collectives") == wanted


@pytest.mark.parametrize("case", ["ddp", "fsdp2", "checkpoints"])
def test_training_on_shares_is_training_on_the_whole(suite, case):
    assert max(suite.of(case)) < EXACT


def test_ddp_however_it_is_set_up(suite):
    for found in suite.of("ddp_variants"):
        assert max(found.values()) < EXACT, found


def test_ddp_averages_what_only_some_ranks_used(suite):
    left, right = 1 / suite.size, (suite.size - 1) / suite.size
    wanted = pytest.approx([left, left, right, right], rel=1e-6)
    assert all(found == wanted for found in suite.of("ddp_with_unused_parameters"))


def test_ddp_adds_sparse_gradients(suite):
    wanted = [2.0 / suite.size if row < suite.size else 0.0 for row in range(8)]
    wanted[5] += 2.0
    for found in suite.of("ddp_with_sparse_gradients"):
        assert found == pytest.approx(wanted, rel=1e-6)


def test_ddp_reduces_gradients_of_several_types(suite):
    average = (suite.size - 1) / 2
    for found in suite.of("ddp_of_double_and_half"):
        assert found == pytest.approx([average, average], rel=1e-2)


def test_ranks_with_fewer_batches_join(suite):
    assert all(suite.of("ddp_join"))


def test_an_optimizer_whose_state_is_spread(suite):
    for found in suite.of("zero_redundancy"):
        assert found["distance"] < EXACT
        assert found["whole"]


def test_tensors_that_are_spread(suite):
    for found in suite.of("dtensors"):
        assert max(found) < EXACT


@pytest.mark.parametrize("case", ["mesh_of_two_dimensions", "sampler", "same_bits_again"])
def test_what_holds_on_every_rank(suite, case):
    assert all(suite.of(case))


@pytest.mark.parametrize("what", ["count", "dtype", "op", "root", "kind", "splits", "scatter"])
def test_ranks_that_disagree_all_learn_it(suite, what):
    for said in suite.of("disagreements"):
        assert said[what].startswith("MismatchError: "), said[what]
        assert "rank" in said[what]


def test_the_group_works_on_after_disagreements(suite):
    for said in suite.of("disagreements"):
        assert said["after"] == [float(suite.size)] * 3


def test_bad_arguments_are_said_before_anything_moves(suite):
    for said in suite.of("bad_arguments"):
        kinds = {text.partition(":")[0] for text in said.values()}
        assert kinds == {"InvalidBufferError", "UsageError"}, said


def test_what_torch_asks_of_a_group(suite):
    for rank, found in enumerate(suite.of("what_torch_asks")):
        assert found == {
            "backend": "blink",
            "available": True,
            "sizes": [rank, suite.size],
            "devices": ["cpu", "cuda"],
            "ranks": list(range(suite.size)),
            "monitored": "nothing",
        }


def test_collectives_of_devices_run_there(suite):
    """Most of the more than a thousand calls of the cases, and those of a stream of its own."""
    assert min(suite.of("launches")) > 900
    assert all(suite.of("own stream"))
    assert suite.of("left") == [[], []]
