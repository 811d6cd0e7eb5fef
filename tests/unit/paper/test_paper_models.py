import pytest

from blinkrun.errors import UsageError
from blinkrun.paper.models import MODELS, Layer, model

# as torchvision counts them; FLOPs are twice the multiplications that its tables state
KNOWN = {
    "resnet18": (11_689_512, 1.82),
    "resnet50": (25_557_032, 4.09),
    "alexnet": (61_100_840, 0.71),
    "vgg16": (138_357_544, 15.47),
}


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_the_published_ones(name):
    assert model(name).parameters == KNOWN[name][0]


@pytest.mark.parametrize("name", KNOWN)
def test_arithmetic_is_the_published_one(name):
    assert model(name).forward_flops / 2e9 == pytest.approx(KNOWN[name][1], abs=0.02)


@pytest.mark.parametrize("name", KNOWN)
def test_gradients_are_four_bytes_each(name):
    assert model(name).gradient_bytes == 4 * KNOWN[name][0]


def test_models_are_those_of_the_figure_in_its_order():
    assert [one.name for one in MODELS] == list(KNOWN)


@pytest.mark.parametrize("one", MODELS, ids=lambda one: one.name)
def test_layers_have_names_of_their_own(one):
    names = [layer.name for layer in one.layers]
    assert len(set(names)) == len(names)
    assert names[0].startswith("conv")
    assert names[-1].startswith("fc")


@pytest.mark.parametrize(("name", "weighted"), [("resnet18", 18), ("resnet50", 50)])
def test_a_residual_network_has_as_many_layers_as_it_is_called(name, weighted):
    layers = [layer.name for layer in model(name).layers]
    counted = [one for one in layers if "downsample" not in one and "bn" not in one]
    assert len(counted) == weighted


def test_the_first_classifier_layer_holds_three_quarters_of_vgg16():
    # 25088 x 4096 weights and 4096 biases: a bucket of its own however large buckets are
    largest = max(model("vgg16").layers, key=lambda layer: layer.parameters)
    assert (largest.name, largest.parameters) == ("fc1", 25_089 * 4096)


def test_an_unknown_model_is_named_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"no model 'vgg19'; there are resnet18, .*vgg16"):
        model("vgg19")


def test_a_layer_without_parameters_is_refused():
    with pytest.raises(UsageError, match="layer relu: 0 parameters"):
        Layer("relu", 0, 1)
