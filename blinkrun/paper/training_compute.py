"""How long the paper's models compute on a V100: the one setting that all training rows share.

The paper says neither its batches nor its precision (not in the data that we have). Figure 5 says
which part of an iteration NCCL communicates. With float32 gradients over the rings that we simulate
those shares mean steps of about 15 to 18 ms (ResNet18), 35 ms (ResNet50), 70 ms (AlexNet) and 120
to 140 ms (VGG16), on all allocations alike, and only if allreduces are not hidden behind the
backward pass: with rings over NVLink a hidden allreduce would leave shares of 1 or 2 %, where the
figure begins at 9.5 %. A V100 takes about that long for 32 images in mixed precision (256 for
AlexNet). So the setting is: mixed precision, gradients in float32, 32 images per GPU (256 for
AlexNet), allreduces after the backward pass. It was chosen from figure 5, not from figure 17.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinkrun.errors import UsageError
from blinkrun.paper.models import Model
from blinkrun.simulator.overlap import Gradient, split_by_weight

BACKWARD = Fraction(2, 3)
"""Part of a step: a layer's backward pass makes two products where the forward pass makes one."""


@dataclass(frozen=True, slots=True)
class Compute:
    """How fast a V100 trains a model, without communication.

    Attributes
    ----------
    model : str
    batch : int
        Images per GPU and step.
    measured_images : int
    measured_ns : Fraction
        What so many images took, forward and backward: measured, or scaled as `source` says.
    source : str
        Who measured it and with what; what was assumed if it was not measured.
    """

    model: str
    batch: int
    measured_images: int
    measured_ns: Fraction
    source: str

    def __post_init__(self) -> None:
        if self.batch < 1 or self.measured_images < 1 or self.measured_ns <= 0:
            raise UsageError(
                f"{self.model}: {self.batch} images per step, {self.measured_images} images in "
                f"{self.measured_ns} ns; need at least 1 of each"
            )

    @property
    def images_per_s(self) -> Fraction:
        """Of one GPU."""
        return self.measured_images * Fraction(10**9) / self.measured_ns

    @property
    def step_ns(self) -> int:
        """Forward and backward pass of a batch, at the measured rate."""
        return round(self.batch * self.measured_ns / self.measured_images)

    @property
    def backward_ns(self) -> int:
        """The part of a step in which gradients appear."""
        return round(self.step_ns * BACKWARD)

    @property
    def forward_ns(self) -> int:
        """The part of a step before the first gradient."""
        return self.step_ns - self.backward_ns


def gradients(model: Model, compute: Compute) -> tuple[Gradient, ...]:
    """Return what each layer's backward pass gives, first layer first.

    The backward pass is divided over the layers by their arithmetic.
    """
    flops = [layer.forward_flops for layer in model.layers]
    times = split_by_weight(compute.backward_ns, flops)
    return tuple(
        Gradient(layer.gradient_bytes, time_ns)
        for layer, time_ns in zip(model.layers, times, strict=True)
    )


def _ms(text: str) -> Fraction:
    return Fraction(text) * 10**6


# torchvision's ResNet50, 128 images, V100-SXM2, automatic mixed precision, NCHW.
_RESNET50_NS = _ms("152.20")
# One GPU runs both (GTX 1080, cuDNN 5.1.10, 16 images): 43.83 ms for ResNet18, 148.65 for ResNet50.
_RESNET18_OF_50 = Fraction("43.83") / Fraction("148.65")
# PyTorch 0.3.0, VGG16, 16 images, V100 of an Amazon p3, forward and backward.
_VGG16_NS, _VGG16_FLOAT32_NS = _ms("58.8"), _ms("83.5")
# MXNet 1.2.0, AlexNet, 256 images, V100 of an Amazon p3, float32: 2994.32 images/s.
_ALEXNET_FLOAT32_NS = 256 * Fraction(10**9) / Fraction("2994.32")

COMPUTE = (
    Compute(
        "resnet18",
        32,
        128,
        _RESNET50_NS * _RESNET18_OF_50,
        "assumed: ResNet50's rate times 3.39, as both compare on a GTX 1080 (43.83 and 148.65 ms "
        "for 16 images; cnn-benchmarks, D. Mikushin after J. Johnson)",
    ),
    Compute(
        "resnet50",
        32,
        128,
        _RESNET50_NS,
        "measured at 128 images: 152.20 ms, V100-SXM2, PyTorch's automatic mixed precision "
        "(pytorch_experiments, S. Kumar)",
    ),
    Compute(
        "alexnet",
        256,
        256,
        _ALEXNET_FLOAT32_NS * _VGG16_NS / _VGG16_FLOAT32_NS,
        "assumed: the float32 rate at 256 images, 2994 images/s (MXNet 1.2.0 on a p3, Apache "
        "MXNet, performance tips), times 1.42, which VGG16 gains by mixed precision",
    ),
    Compute(
        "vgg16",
        32,
        16,
        _VGG16_NS,
        "measured at 16 images: 58.8 ms in half precision (83.5 in float32), PyTorch 0.3.0 on a "
        "p3 (deep-learning-benchmark, Y. Sako)",
    ),
)
"""One row per model, in the order of `models.MODELS`."""


def compute_of(model: Model) -> Compute:
    """Return how fast a V100 trains that model.

    Examples
    --------
    >>> from blinkrun.paper.models import MODELS
    >>> [round(compute_of(model).step_ns / 1e6, 1) for model in MODELS]
    [11.2, 38.0, 60.2, 117.6]
    """
    return next(compute for compute in COMPUTE if compute.model == model.name)
