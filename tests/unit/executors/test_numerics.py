import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import UsageError
from blinkrun.executors.numerics import combine, dtype_of, finish, load, numpy_dtype, scale, store
from blinkrun.types import DType, Op

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_has_a_numpy_type_of_its_size(dtype):
    array = np.zeros(3, numpy_dtype(dtype))
    assert dtype_of(array) is dtype
    assert array.itemsize == dtype.itemsize


@pytest.mark.parametrize("unknown", [np.complex64, np.uint16, "U3"])
def test_other_types_are_refused(unknown):
    with pytest.raises(UsageError, match=r"cannot be reduced; known types are uint8, .*bool"):
        dtype_of(np.zeros(1, unknown))


@given(st.lists(st.integers(-128, 127), min_size=1), st.integers(-128, 127), st.sampled_from(Op))
def test_integers_wrap(values, other, op):
    python = {
        Op.SUM: lambda a: a + other,
        Op.AVERAGE: lambda a: a + other,
        Op.MIN: lambda a: min(a, other),
        Op.MAX: lambda a: max(a, other),
        Op.PRODUCT: lambda a: a * other,
    }
    got = combine(op, np.array(values, np.int8), np.full(len(values), other, np.int8))
    assert got.dtype == np.int8
    assert got.tolist() == [(python[op](a) + 128) % 256 - 128 for a in values]


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (Op.SUM, [False, True, True]),
        (Op.MAX, [False, True, True]),
        (Op.MIN, [False, False, True]),
        (Op.PRODUCT, [False, False, True]),
    ],
)
def test_truth_values(op, wanted):
    got = combine(op, np.array([False, False, True]), np.array([False, True, True]))
    assert got.tolist() == wanted
    assert scale(got, 7.0) is got
    assert finish(op, got, 3, 0.0).tolist() == wanted


def test_truth_values_have_no_average():
    with pytest.raises(UsageError, match="bool has no average"):
        combine(Op.AVERAGE, np.array([True]), np.array([True]))
    assert finish(Op.AVERAGE, np.array([True]), 1, 1.0).tolist() == [True]


@pytest.mark.parametrize("sixteen", [np.dtype(np.float16), BF16])
def test_sixteen_bit_floats_are_combined_in_32_and_rounded_once(sixteen):
    small = np.array([2.0**-9], sixteen)  # vanishes when it is added to 1 in bfloat16
    total = load(np.array([1], sixteen))
    for _ in range(4):
        total = combine(Op.SUM, total, load(small))
    assert total.dtype == np.float32
    stored = np.zeros(1, sixteen)
    store([stored], total)
    assert stored == np.array([1 + 2.0**-7], sixteen)


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_to_nearest_even(value):
    stored = np.zeros(1, BF16)
    store([stored], np.array([value], np.float32))
    bits = int(np.float32(value).view(np.uint32))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert int(stored.view(np.uint16)[0]) == nearest


@pytest.mark.parametrize("op", [Op.MIN, Op.MAX, Op.SUM, Op.PRODUCT])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BF16])
def test_nan_and_infinity_pass_through(op, dtype):
    odd = np.array([np.nan, 1, np.inf], dtype)
    plain = np.ones(3, dtype)
    for left, right in ((odd, plain), (plain, odd)):
        got = combine(op, load(left), load(right))
        assert np.isnan(got[0])
        assert got[2] == (1 if op is Op.MIN else np.inf)


def test_too_large_for_16_bits_becomes_infinity_without_a_warning():
    stored = np.zeros(2, np.float16)
    store([stored], np.array([1e6, -1e6], np.float32))
    assert stored.tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("values", "factor", "wanted"),
    [
        (np.array([7, -7], np.int32), 0.5, [3, -3]),  # towards zero
        (np.array([200, 1], np.uint8), 2.0, [255, 2]),  # held to the range
        (np.array([100, -100], np.int8), -2.0, [-128, 127]),
        (np.array([1, 0, -1], np.int64), np.inf, [2**63 - 1, 0, -(2**63)]),
        (np.array([5, -5], np.int64), np.nan, [0, 0]),
        (np.array([2**62], np.int64), 2.0, [2**63 - 1]),
        (np.array([3, 4], np.int64), 1.0, [3, 4]),
        (np.array([3, 5], np.float32), 0.5, [1.5, 2.5]),
        (np.array([1], np.float32), 0.1, [float(np.float32(0.1))]),  # in the type's own precision
    ],
)
def test_scale(values, factor, wanted):
    got = scale(values, factor)
    assert got.dtype == values.dtype
    assert got.tolist() == wanted


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), st.integers(1, 20))
def test_the_average_of_integers_is_rounded_down(values, size):
    got = finish(Op.AVERAGE, np.array(values, np.int32), size, 1.0)
    assert got.dtype == np.int32
    assert got.tolist() == [value // size for value in values]


def test_floats_are_averaged_before_they_are_scaled():
    values = np.array([3e38], np.float32)
    assert finish(Op.AVERAGE, values, 2, 2.0) == values
    assert finish(Op.SUM, values, 2, 2.0) == np.inf
    assert finish(Op.SUM, values, 2, 1.0) is values
