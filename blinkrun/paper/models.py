"""The paper's four image models as layers: parameters and arithmetic, from their definitions.

Sizes follow from the architectures as published (and as torchvision builds them), for images of
224 x 224 in 1000 classes: nothing here was read off a framework. The order is that of the forward
pass; gradients become ready from the last layer to the first.

References
----------
.. [1] K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016.
.. [2] A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet classification with deep convolutional
   neural networks", NIPS 2012; channels as in A. Krizhevsky, "One weird trick for parallelizing
   convolutional neural networks", arXiv 1404.5997, 2014.
.. [3] K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image
   recognition", ICLR 2015, configuration D.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blinkrun.errors import UsageError

IMAGE_SIDE = 224
NUM_CLASSES = 1000
GRADIENT_ITEMSIZE = 4  # gradients are float32, under mixed precision as well


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that has parameters.

    Attributes
    ----------
    name : str
    parameters : int
        Weights and biases.
    forward_flops : int
        For one image; a multiplication and an addition count as two.
    """

    name: str
    parameters: int
    forward_flops: int

    def __post_init__(self) -> None:
        if self.parameters < 1 or self.forward_flops < 1:
            raise UsageError(
                f"layer {self.name}: {self.parameters} parameters, {self.forward_flops} FLOPs; "
                "need at least 1 of each"
            )

    @property
    def gradient_bytes(self) -> int:
        """Bytes that an allreduce of this layer's gradients moves."""
        return self.parameters * GRADIENT_ITEMSIZE


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the list of its layers, first to last.

    Attributes
    ----------
    name : str
        As the paper's data spell it.
    title : str
    layers : tuple of Layer

    Examples
    --------
    >>> [(model.name, model.parameters) for model in MODELS]
    [('resnet18', 11689512), ('resnet50', 25557032), ('alexnet', 61100840), ('vgg16', 138357544)]
    """

    name: str
    title: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass of one image."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.gradient_bytes for layer in self.layers)


def _conv(name: str, shape: tuple[int, int, int], side: int, *, bias: bool) -> Layer:
    """Return a convolution; `shape` is channels in, channels out, kernel, `side` of its output."""
    before, after, kernel = shape
    weights = before * after * kernel * kernel
    return Layer(name, weights + (after if bias else 0), 2 * weights * side * side)


def _norm(name: str, channels: int, side: int) -> Layer:
    """Return a batch normalization: a scale and a shift for each channel."""
    return Layer(name, 2 * channels, 2 * channels * side * side)


def _linear(name: str, before: int, after: int) -> Layer:
    """Return a fully connected layer with bias."""
    return Layer(name, (before + 1) * after, 2 * before * after)


def _resnet_stem() -> Iterator[Layer]:
    """Yield what every residual network begins with: 7x7 by stride 2; a max-pool by 2 follows."""
    yield _conv("conv1", (3, 64, 7), IMAGE_SIDE // 2, bias=False)
    yield _norm("bn1", 64, IMAGE_SIDE // 2)


def _basic_block(name: str, before: int, after: int, side: int) -> Iterator[Layer]:
    """Yield two 3x3 convolutions, and the 1x1 of a shortcut between unequal shapes."""
    for at, channels in (("1", before), ("2", after)):
        yield _conv(f"{name}.conv{at}", (channels, after, 3), side, bias=False)
        yield _norm(f"{name}.bn{at}", after, side)
    if before != after:
        yield from _shortcut(name, before, after, side)


def _bottleneck(name: str, before: int, inner: int, side: int, stride: int) -> Iterator[Layer]:
    """Yield 1x1, 3x3, 1x1; the 3x3 has the stride, as in version 1.5 of the network."""
    after = 4 * inner
    shapes = (
        ((before, inner, 1), side * stride),
        ((inner, inner, 3), side),
        ((inner, after, 1), side),
    )
    for at, (shape, out) in enumerate(shapes, start=1):
        yield _conv(f"{name}.conv{at}", shape, out, bias=False)
        yield _norm(f"{name}.bn{at}", shape[1], out)
    if before != after:
        yield from _shortcut(name, before, after, side)


def _shortcut(name: str, before: int, after: int, side: int) -> Iterator[Layer]:
    yield _conv(f"{name}.downsample.0", (before, after, 1), side, bias=False)
    yield _norm(f"{name}.downsample.1", after, side)


def _resnet18() -> Iterator[Layer]:
    yield from _resnet_stem()
    before, side = 64, IMAGE_SIDE // 4
    for stage, after in enumerate((64, 128, 256, 512), start=1):
        side = side if stage == 1 else side // 2
        for block in range(2):
            yield from _basic_block(f"layer{stage}.{block}", before, after, side)
            before = after
    yield _linear("fc", before, NUM_CLASSES)


def _resnet50() -> Iterator[Layer]:
    yield from _resnet_stem()
    before, side = 64, IMAGE_SIDE // 4
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        inner = 32 << stage
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            side //= stride
            yield from _bottleneck(f"layer{stage}.{block}", before, inner, side, stride)
            before = 4 * inner
    yield _linear("fc", before, NUM_CLASSES)


def _alexnet() -> Iterator[Layer]:
    # sides: (224 + 2*2 - 11)/4 + 1 = 55; 3x3 max-pools by stride 2 make 27, 13 and 6 of it
    shapes = (
        ((3, 64, 11), 55),
        ((64, 192, 5), 27),
        ((192, 384, 3), 13),
        ((384, 256, 3), 13),
        ((256, 256, 3), 13),
    )
    for at, (shape, side) in enumerate(shapes, start=1):
        yield _conv(f"conv{at}", shape, side, bias=True)
    yield from _classifier(256 * 6 * 6)


def _vgg16() -> Iterator[Layer]:
    before, side = 3, IMAGE_SIDE
    for stage, (after, convolutions) in enumerate(_VGG16_STAGES, start=1):
        for at in range(1, convolutions + 1):
            yield _conv(f"conv{stage}_{at}", (before, after, 3), side, bias=True)
            before = after
        side //= 2  # a max-pool
    yield from _classifier(before * side * side)


_VGG16_STAGES: Sequence[tuple[int, int]] = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def _classifier(before: int) -> Iterator[Layer]:
    """Yield the three fully connected layers that AlexNet and VGG end with."""
    for at, (width, after) in enumerate(
        ((before, 4096), (4096, 4096), (4096, NUM_CLASSES)), start=1
    ):
        yield _linear(f"fc{at}", width, after)


MODELS = (
    Model("resnet18", "ResNet18", tuple(_resnet18())),
    Model("resnet50", "ResNet50", tuple(_resnet50())),
    Model("alexnet", "AlexNet", tuple(_alexnet())),
    Model("vgg16", "VGG16", tuple(_vgg16())),
)
"""In the order of the paper's figure 17."""


def model(name: str) -> Model:
    """Return the model of that name.

    Raises
    ------
    UsageError
        If there is none.

    Examples
    --------
    >>> resnet = model("resnet50")
    >>> resnet.layers[0], round(resnet.forward_flops / 1e9, 1)
    (Layer(name='conv1', parameters=9408, forward_flops=236027904), 8.2)
    """
    for found in MODELS:
        if found.name == name:
            return found
    raise UsageError(f"no model '{name}'; there are {', '.join(one.name for one in MODELS)}")
