import pytest
from support.harness import RankRunner

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

from blinkrun.bench import named
from blinkrun.bench.models import MODELS, num_bytes, random_batch
from blinkrun.bench.training import WAYS, parse, table
from blinkrun.errors import UsageError

pytestmark = pytest.mark.timeout(220)  # the first test waits for the job of all


@pytest.fixture(scope="module")
def job(tmp_path_factory, plan_cache):
    """What two ranks end with, print and write, by benchmark."""
    folder = tmp_path_factory.mktemp("bench")
    runner = RankRunner(folder, environ={"BLINKRUN_CACHE_DIR": str(plan_cache)})
    paths = {f"{what}_json": str(folder / f"{what}.json") for what in ("training", "engine")}
    answers = runner("torch_bench_cases:all_ways", 2, timeout_s=200, **paths)
    return {what: [answer[what] for answer in answers] for what in answers[0]}


def test_all_ways_take_turns_and_the_figures_are_written(job):
    (code, text, result), (other_code, other_text, _) = job["train"]
    assert (code, other_code, other_text) == (0, 0, "")
    model = result["models"]["cnn1"]
    assert set(model["samples_per_s"]) == {
        "blinkrun, overlap off",
        "blinkrun, overlap on",
        *WAYS.values(),
    }
    assert all(rate["median"] > 0 for rate in model["samples_per_s"].values())
    assert model["auto"] in model["samples_per_s"]
    assert model["gradient_bytes"] == num_bytes(MODELS["cnn1"]())
    assert set(model["step_ms"]) == {"overlap off", "overlap on"}
    assert list(model["step_ms"]["overlap off"]) == ["forward", "backward", "exposed", "optimizer"]
    assert text.splitlines()[1:] == table("cnn1", model)
    assert text.splitlines()[-1].startswith(f"# {model['auto']}: ")


def test_the_last_line_is_about_communication_and_efficiency():
    phases = {"forward": 5.0, "backward": 3.0, "exposed": 1.0, "optimizer": 1.0}
    rates = {"blinkrun, overlap off": 1800.0, WAYS["single"]: 1000.0, WAYS["apart"]: 2000.0}
    result = {
        "ranks": 2,
        "gradient_bytes": 1_000_000,
        "auto": "blinkrun, overlap off",
        "samples_per_s": {name: {"median": r, "min": r, "max": r} for name, r in rates.items()},
        "step_ms": {"overlap off": phases},
    }
    assert table("cnn1", result)[-1] == (
        "# blinkrun, overlap off: 10.0 % of a step is exposed communication, 10.0 % by the"
        " difference to ranks that reduce nothing, 90 % efficiency"
    )


def test_wrong_usage_is_one_line_from_one_rank(job):
    (code, text, _), (other_code, other_text, _) = job["wrong"]
    assert (code, other_code, other_text) == (2, 2, "")
    assert text == "blinkrun: bench --training: --models gpt: choose of mlp25, cnn1, cnn27\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--batch=0"], "--batch is 0, need at least 1"),
        (["--rounds=x"], "invalid int value: 'x'"),
        (
            ["--against=mpi"],
            "--against mpi: choose of ddp, ddp-blink, flat, single, apart, horovod",
        ),
        (["--against=horovod"], "horovod: it is not installed here"),
        (["--json=/no/such/folder/x.json"], "there is no such folder"),
        (["--epochs=3"], "unrecognized arguments"),
    ],
)
def test_options_are_checked(words, line):
    with pytest.raises(UsageError, match=line):
        parse(words)


def test_named_allreduces_are_measured_beside_gloo(job):
    (code, text, result), (other_code, other_text, _) = job["engine"]
    assert (code, other_code, other_text) == (0, 0, "")
    assert [row["size_bytes"] for row in result["rows"]] == [4, 16384]
    assert all(row["wrong"] == 0 and row["peers"]["gloo"]["time_us"] > 0 for row in result["rows"])
    assert set(result["burst"]["seconds"]) == {"blinkrun", "gloo"}
    assert text.splitlines()[-2].startswith("# 20 tensors of 256 B at once: blinkrun ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--sizes=6"], "size 6 is no multiple of 4 bytes"),
        (["--burst=-1"], "--burst needs at least 0"),
        (["--against=mpi"], "--against mpi: choose of gloo, horovod, or none"),
        (["--against=horovod"], "horovod: it is not installed here"),
        (["--json=/no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_options_of_the_engine_benchmark_are_checked(words, line):
    with pytest.raises(UsageError, match=line):
        named.parse(words)


def test_none_is_against_nobody_and_help_is_no_run():
    assert parse(["--against=none"]).against == ()
    assert parse(["--help"]) is None


@pytest.mark.parametrize(("name", "megabytes"), [("mlp25", 25.2), ("cnn1", 0.9), ("cnn27", 26.7)])
def test_models_have_the_size_that_they_are_known_by(name, megabytes):
    model = MODELS[name]()
    assert num_bytes(model) / 1e6 == pytest.approx(megabytes, abs=0.05)
    images, _ = random_batch(2, seed=0)
    assert model(images).shape == (2, 10)
