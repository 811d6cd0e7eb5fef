"""What ranks give in the cases of the backend blink, what must come out, and how they differ."""

import functools

import torch
import torch.distributed as dist

SHAPES = ((), (1,), (0,), (7,), (3, 5), (40_001,))
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)
EXOTIC = (torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128)
ROOT = 1


def size():
    return dist.get_world_size()


def rank():
    return dist.get_rank()


def given(dtype, shape, owner):
    """What rank `owner` gives: small whole numbers, so that sums are exact in every type."""
    numbers = (torch.arange(max(1, torch.Size(shape).numel())) * (owner + 3)) % 5 + owner % 2
    numbers = numbers[: torch.Size(shape).numel()].reshape(shape)
    return numbers.bool() if dtype is torch.bool else numbers.to(torch.float64).to(dtype)


def everyone(dtype, shape):
    return [given(dtype, shape, owner) for owner in range(size())]


def differs(what, found, wanted):
    """A list with one line if two tensors differ in a bit."""
    same = found.dtype == wanted.dtype and found.shape == wanted.shape
    if same and found.dtype.itemsize == 1 and not found.dtype.is_complex:
        same = torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    elif same:
        same = torch.equal(found, wanted)
    return [] if same else [f"{what}: {found.flatten()[:6]} instead of {wanted.flatten()[:6]}"]


FOLDS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def folded(fold, tensors):
    """The expected reduction, in a type wide enough, and cut to the type as it would wrap."""
    dtype = tensors[0].dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return functools.reduce(fold, [each.to(wide) for each in tensors]).to(dtype)


def raised(call, kinds=(RuntimeError, ValueError)):
    try:
        call()
    except kinds as err:
        return f"{type(err).__name__}: {err}"
    return "nothing"
