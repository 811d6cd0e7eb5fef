import pytest
from support.needs import need

from blinkrun.bench.framework import TF_WAYS
from blinkrun.bench.tf_table import lines
from blinkrun.bench.tf_training import OURS

need("tensorflow", "tf_keras")
pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


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
    (code, text, result, num_bytes), (other_code, other_text, *_) = run_ranks(
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
    models = pytest.importorskip("blinkrun.bench.models", reason="needs torch")
    for name, torch_name in (("mlp25m", "mlp25"), ("cnn", "cnn1")):
        assert num_bytes[name] == models.num_bytes(models.MODELS[torch_name]())
