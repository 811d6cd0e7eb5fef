"""What the engine computes itself: integers, neutral elements, what is finite."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.buffers import numpy_dtype, view
from blinkrun.engine.arithmetic import CHECK_ELEMENTS, divide, is_finite, neutral, scale
from blinkrun.types import DType, Op

INTEGERS = [DType.UINT8, DType.INT8, DType.INT32, DType.INT64]
FLOATS = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]
NUMPY = {Op.SUM: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PRODUCT: np.multiply}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 1000))
def test_division_truncates_exactly(values, divisor):
    got = np.array(values, np.int64)
    divide(got, divisor)
    assert got.tolist() == [abs(v) // divisor * (1 if v >= 0 else -1) for v in values]


def test_unsigned_division_and_scales():
    values = np.array([0, 1, 254, 255], np.uint8)
    divide(values, 2)
    assert values.tolist() == [0, 0, 127, 127]
    numbers = np.array([-5, 5, 7], np.int32)
    scale(numbers, 0.5)
    assert numbers.tolist() == [-2, 2, 3]


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_a_neutral_element_changes_nothing(op, dtype):
    values = np.array([0, 1, 2, 5, 100], numpy_dtype(dtype))
    element = np.array(neutral(op, dtype)).astype(values.dtype)
    assert NUMPY[op](values, element).tolist() == values.tolist()


@pytest.mark.parametrize("prescale", [-2.0, 0.5, 0.0])
@pytest.mark.parametrize("op", NUMPY)
def test_a_neutral_element_is_so_after_the_scale(op, prescale):
    values = np.array([-3.0, 0.0, 5.0]) * prescale
    scaled = np.float64(neutral(op, DType.FLOAT64, prescale)) * prescale
    assert NUMPY[op](values, scaled).tolist() == values.tolist()


def test_bool_is_neutral_by_logic():
    assert [neutral(op, DType.BOOL) for op in (Op.SUM, Op.MAX, Op.MIN, Op.PRODUCT)] == [0, 0, 1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 7, CHECK_ELEMENTS + 3])
def test_what_is_not_finite_is_found_wherever_it_lies(dtype, count):
    values = np.full(count, 3, numpy_dtype(dtype))
    seen = view(values, "x")
    assert is_finite(seen.pointer, seen.count, dtype)
    for place in {0, count // 2, count - 1} if count else ():
        for bad in (np.nan, np.inf, -np.inf):
            values[place] = bad
            assert not is_finite(seen.pointer, seen.count, dtype)
            values[place] = 3
