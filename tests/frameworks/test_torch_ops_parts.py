"""The parts of the torch adapter that need no other rank."""

import doctest
import inspect
import sys
import types

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

import blinkrun.torch as blink
from blinkrun.adapter import operations, process_sets, where
from blinkrun.engine.request import ADASUM
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.torch import dtypes
from blinkrun.torch.autograd import is_wanted
from blinkrun.types import DType, Op

COMPUTED = (*dtypes.DTYPES, torch.int16, torch.uint16, torch.uint32, torch.uint64)


@pytest.mark.parametrize(
    ("compressor", "narrow"),
    [
        (blink.Compression.none, None),
        (blink.Compression.fp16, torch.float16),
        (blink.Compression.bf16, torch.bfloat16),
    ],
)
def test_compression_narrows_floats_alone_and_gives_them_their_type_back(compressor, narrow):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        tensor = torch.tensor([1, 2, 300]).to(dtype)
        packed, context = compressor.compress(tensor)
        is_narrowed = narrow is not None and dtype.is_floating_point
        assert packed.dtype == (narrow if is_narrowed else dtype)
        back = compressor.decompress(packed, context)
        assert back.dtype == dtype
        assert torch.equal(back, tensor)
    assert compressor.compress(tensor)[0] is tensor  # integers


@pytest.mark.parametrize("dtype", COMPUTED, ids=dtypes.label)
def test_a_type_that_is_wide_holds_every_value(dtype):
    least, most = (0, 1) if dtype is torch.bool else (-8, 8)
    if not (dtype.is_floating_point or dtype is torch.bool):
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    tensor = torch.tensor([least, most, 1], dtype=dtype)
    for op in (Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT):
        wire = dtypes.reduced(dtype, op)
        if wire.wide is None:
            assert wire.dtype is dtypes.DTYPES[dtype]
            continue
        wide = dtypes.to_wide(tensor, wire, op)
        assert dtypes.DTYPES[wide.dtype] is wire.dtype
        assert torch.equal(dtypes.from_wide(wide, dtype, op, size=3), tensor)


def test_numbers_that_are_unsigned_keep_their_order_on_the_way():
    tensor = torch.tensor([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=torch.uint64)
    for op in (Op.MIN, Op.MAX):
        wide = dtypes.to_wide(tensor, dtypes.reduced(torch.uint64, op), op)
        assert wide.tolist() == sorted(wide.tolist())


def test_every_dtype_of_torch_can_be_moved_and_is_told_apart():
    found = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    wires = {dtype: dtypes.moved(dtype) for dtype in found}
    for dtype, wire in wires.items():
        assert wire.per * wire.dtype.itemsize == dtype.itemsize
    assert len({(wire.dtype, wire.device) for wire in wires.values()}) == len(found)
    assert dtypes.moved(torch.float32).dtype is DType.FLOAT32


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.bool, Op.AVERAGE),
        (torch.complex64, Op.MAX),
        (torch.complex128, Op.PRODUCT),
        (torch.int64, ADASUM),
        (torch.bits8, Op.SUM),
        (torch.float4_e2m1fn_x2, Op.SUM),
    ],
)
def test_operations_without_a_meaning_are_refused(dtype, op):
    with pytest.raises(InvalidBufferError, match=dtypes.label(dtype)):
        dtypes.reduced(dtype, op)


def test_the_operation_comes_of_op_or_of_average():
    assert operations.op_of(None, None) is blink.Average
    assert operations.op_of(blink.Max, None) is blink.Max
    with pytest.warns(DeprecationWarning, match="give op="):
        assert operations.op_of(None, False) is blink.Sum
    for op, average in ((blink.Sum, True), (None, blink.Sum), (7, None), ("sum", None)):
        with pytest.raises(UsageError):
            operations.op_of(op, average)


def test_the_caller_is_the_nearest_line_outside_of_libraries():
    """Also where torch lies between, as in a backward pass."""
    seen = []

    def call(_=None):
        seen.append(where.caller())

    line = call.__code__.co_firstlineno + 1
    call()
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(call)
    (tensor * 2).backward()
    assert [place.rpartition("/")[2] for place in seen] == [f"test_torch_ops_parts.py:{line}"] * 2
    inside = types.CodeType.replace(call.__code__, co_filename=torch.__file__)
    types.FunctionType(inside, globals(), closure=call.__closure__)(None)
    line = sys._getframe().f_lineno - 1
    assert seen[-1].endswith(f"test_torch_ops_parts.py:{line}")


def test_only_inputs_that_require_a_gradient_lead_into_the_graph():
    plain, weight = torch.ones(1), torch.ones(1, requires_grad=True)
    assert not is_wanted([plain])
    assert is_wanted([plain, weight])
    with torch.no_grad():
        assert not is_wanted([weight])


def test_arguments_stand_where_scripts_for_horovod_have_them():
    """Names in order, of the functions that are called by position most."""
    wanted = {
        "allreduce": "tensor average name compression op prescale_factor postscale_factor "
        "process_set",
        "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
        "grouped_allreduce": "tensors average name compression op prescale_factor "
        "postscale_factor process_set",
        "sparse_allreduce_async": "tensor name op process_set",
        "allgather": "tensor name process_set",
        "grouped_allgather_async": "tensors name process_set",
        "broadcast_": "tensor root_rank name process_set",
        "alltoall": "tensor splits name process_set",
        "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
        "grouped_reducescatter_async": "tensors name op process_set prescale_factor "
        "postscale_factor",
        "broadcast_object": "obj root_rank name process_set",
        "start_timeline": "file_path mark_cycles",
        "barrier": "process_set",
        "join": "device",
    }
    for name, arguments in wanted.items():
        assert list(inspect.signature(getattr(blink, name)).parameters) == arguments.split(), name


@pytest.mark.parametrize("module", [dtypes, process_sets], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
