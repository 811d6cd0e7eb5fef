import importlib.util

import pytest

from blinkrun.bench import framework, options
from blinkrun.bench.framework import TF_WAYS, as_training, parse
from blinkrun.bench.tf_table import heading, lines
from blinkrun.errors import UsageError


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these packages are there and no others."""
    there = {"tensorflow", "torch", "tf_keras"}
    monkeypatch.setattr(framework, "_is_there", lambda package: package in there)
    return there


def test_everything_is_measured_if_nothing_is_said(installed):
    chosen = parse(["--framework", "tf"])
    assert chosen.models == ("mlp25m", "cnn")
    assert chosen.against == (*TF_WAYS,)
    assert (chosen.batch, chosen.threads, chosen.rounds, chosen.left_out) == (32, 1, 7, "")


def test_without_tf_keras_its_ways_are_left_out_and_that_is_said(installed):
    installed.remove("tf_keras")
    chosen = parse(["--framework=tf"])
    assert chosen.against == ("apart", "single", "single-tape")
    assert heading(chosen, 2, 4) == [
        "# training, tf: 2 ranks, 4 cores, 1 TensorFlow thread each, 32 images a rank, 7 rounds",
        "# tf_keras is not installed: mwms and tf_keras left out",
    ]


def test_torch_is_the_training_benchmark_by_other_words(installed):
    words = ["--framework", "torch", "--model", "cnn", "--against", "ddp,single", "--rounds", "3"]
    chosen = as_training(parse(words))
    assert (chosen.models, chosen.against) == (("cnn1",), ("ddp", "single"))
    assert (chosen.batch, chosen.rounds, chosen.json) == (32, 3, None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--framework=jax"], "--framework jax: choose of tf, torch"),
        (["--framework"], "argument --framework: expected one argument"),
        (["--framework=tf", "--model=gpt"], "--model gpt: choose of mlp25m, cnn"),
        (["--framework=tf", "--against=ddp"], "--against ddp: choose of mwms, apart, single, "),
        (["--framework=torch", "--against=mwms"], "--against mwms: choose of ddp, ddp-blink, "),
        (["--framework=torch", "--against=horovod"], "--against horovod needs horovod, which is "),
        (["--framework=tf", "--batch=0"], "--batch is 0, need at least 1"),
        (["--framework=tf", "--threads=0"], "--threads is 0, need at least 1"),
        (["--framework=tf", "--rounds=x"], "invalid int value: 'x'"),
        (["--framework=tf", "--json=/no/such/x.json"], "there is no folder /no/such"),
        (["--framework=tf", "--sizes=4"], "unrecognized arguments: --sizes=4"),
    ],
)
def test_wrong_usage_is_one_line_before_any_rank_starts(installed, words, line):
    with pytest.raises(UsageError) as caught:
        options.check(words, 2)
    assert str(caught.value).startswith("bench: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "words", "line"),
    [
        ("tensorflow", ["--framework=tf"], "tf needs tensorflow: pip install 'blinkrun[tensorflow"),
        ("torch", ["--framework=torch"], "torch needs torch: pip install 'blinkrun[torch]'"),
        ("tf_keras", ["--framework=tf", "--against=mwms"], "--against mwms needs tf_keras"),
    ],
)
def test_what_is_not_installed_is_named(installed, missing, words, line):
    installed.remove(missing)
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert line in str(caught.value)


def test_help_needs_no_framework(installed):
    installed.clear()
    text = options.check(["--framework", "tf", "--help"], None)
    assert text.startswith("usage: blinkrun -np N bench --framework tf|torch")
    assert max(map(len, text.splitlines())) <= 100
    assert "--framework" in options.check(["--help"], None)


def test_options_load_no_framework():
    assert importlib.util.find_spec("blinkrun.bench.framework") is not None
    assert not hasattr(framework, "tensorflow")


RESULT = {
    "gradient_bytes": 25_214_000,
    "samples_per_s": {
        "blinkrun, Keras fit": {"median": 1800.0, "min": 1700.0, "max": 1900.0},
        "MultiWorkerMirroredStrategy": {"median": 900.0, "min": 850.0, "max": 950.0},
        "Keras fit alone": {"median": 1000.0, "min": 990.0, "max": 1010.0},
    },
    "efficiency": {"blinkrun, Keras fit": 0.9, "MultiWorkerMirroredStrategy": 0.45},
    "agree": {"blinkrun, Keras fit": True, "MultiWorkerMirroredStrategy": False},
    "share": {
        "blinkrun, Keras fit": {
            "step_ms": 35.5,
            "plain_step_ms": 32.0,
            "timeline": 0.1,
            "difference": 0.0986,
            "busy": 0.08,
        }
    },
    "memory": {
        "rest_bytes": 420_000_000,
        "peak_bytes": 640_000_000,
        "allowed_bytes": 50_428_000,
        "plain_rest_bytes": 400_000_000,
        "plain_peak_bytes": 600_000_000,
        "mwms_peak_bytes": 700_000_000,
    },
}


def test_the_table_has_rates_shares_and_memory():
    first, head, ours, mwms, alone, columns, share, memory = lines("mlp25m", RESULT)
    assert first == "# mlp25m: 25.2 MB of gradients"
    assert head.split()[-5:] == ["fit", "is", "efficiency", "ranks", "agree"]
    assert " ".join(ours.split()) == "blinkrun, Keras fit 1800 1700 1900 1.00x 90 % yes"
    assert " ".join(mwms.split()[-5:]) == "950 2.00x 45 % NO"
    assert alone.split()[-1] == "1.80x"
    assert columns.split()[-4:] == ["unreduced", "timeline", "difference", "busy"]
    assert share.split()[-5:] == ["35.50", "32.00", "10.0", "9.9", "8.0"]
    assert memory == (
        "# peak memory of a rank, fit, MB: 640, 600 without blinkrun, 700 with"
        " MultiWorkerMirroredStrategy; 40 more, 20 of it before training; model and gradients"
        " are 50"
    )


def test_one_rank_has_nothing_to_share():
    result = RESULT | {"share": {}}
    del result["memory"]
    assert len(lines("cnn", result)) == 5
