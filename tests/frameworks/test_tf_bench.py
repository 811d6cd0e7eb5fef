import pytest

pytest.importorskip("tensorflow", reason="needs tensorflow")
pytest.importorskip("tf_keras", reason="needs tf_keras")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")

from blinkrun.bench.framework import TF_WAYS
from blinkrun.bench.tf_table import lines
from blinkrun.bench.tf_training import OURS


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_all_ways_of_tensorflow_take_turns_and_ranks_agree(run_ranks, tmp_path):
    path = tmp_path / "training.json"
    words = [
        "--framework=tf",
        "--model=cnn",
        "--batch=2",
        "--rounds=1",
        "--against=mwms,apart,single",
    ]
    (code, text, result), (other_code, other_text, _) = run_ranks(
        "bench_tf_program:train", 2, words=words, json_name=str(path), timeout_s=200
    )
    assert (code, other_code, other_text) == (0, 0, "")
    model = result["models"]["cnn"]
    assert set(model["samples_per_s"]) == {
        *OURS.values(),
        *(TF_WAYS[name] for name in ("mwms", "apart", "single")),
    }
    assert all(rate["median"] > 0 for rate in model["samples_per_s"].values())
    assert model["agree"] == dict.fromkeys([*OURS.values(), TF_WAYS["mwms"]], True)
    assert set(model["efficiency"]) == {*model["agree"], TF_WAYS["apart"]} - {OURS["tape"]}
    for share in model["share"].values():
        assert 0 < share["timeline"] < 1
        assert 0 <= share["busy"] < 1
    memory = model["memory"]
    assert 0 < memory["plain_rest_bytes"] < memory["plain_peak_bytes"] < memory["peak_bytes"]
    assert memory["mwms_peak_bytes"] > 0
    assert text.splitlines()[1:] == lines("cnn", model)


@pytest.mark.parametrize(("keras_name", "torch_name"), [("mlp25m", "mlp25"), ("cnn", "cnn1")])
@pytest.mark.slow
def test_models_are_those_of_torch(keras_name, torch_name):
    torch_models = pytest.importorskip("blinkrun.bench.models", reason="needs torch")
    import keras

    from blinkrun.bench.tf_models import make_model

    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras has another backend here")
    expected = torch_models.num_bytes(torch_models.MODELS[torch_name]())
    assert 4 * make_model(keras, keras_name).count_params() == expected
