"""Adasum over threads against the plain recursion that defines it."""

import numpy as np
import pytest
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.engine.adasum import adasum
from blinkrun.errors import InvalidBufferError
from blinkrun.executors.numerics import numpy_dtype
from blinkrun.types import DType

COUNTS = [0, 1, 7, 1009]
BOUND = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def combine(a, b):
    dot, a_square, b_square = a @ b, a @ a, b @ b
    of_a = 1 - dot / (2 * a_square) if a_square else 1
    of_b = 1 - dot / (2 * b_square) if b_square else 1
    return of_a * a + of_b * b


def tree_sum(vectors):
    """Neighbours first, then the results; who has no partner waits."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=False)
        vectors = [combine(a, b) for a, b in pairs] + vectors[len(vectors) // 2 * 2 :]
    return vectors[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_ranks_have_the_tree_sum_and_the_same_bits(size):
    random = np.random.default_rng(size)
    cases = [(numpy_dtype(DType[name.upper()]), count) for name in BOUND for count in COUNTS]
    given = [[random.standard_normal(n).astype(d) for _ in range(size)] for d, n in cases]

    def body(comm):
        return [adasum(comm, vectors[comm.rank]) for vectors in given]

    results = run_threads(star_plan(size), body)
    for number, (dtype, count) in enumerate(cases):
        wanted = tree_sum([vector.astype(np.float64) for vector in given[number]])
        for rank in range(size):
            got = results[rank][number]
            assert (got.dtype, got.shape) == (dtype, (count,))
            assert got.tobytes() == results[0][number].tobytes()
            bound = BOUND[dtype.name] * (1 + np.abs(wanted))
            assert (np.abs(got.astype(np.float64) - wanted) <= bound).all()


def test_what_it_is_for():
    """Orthogonal vectors add, equal ones are averaged, and a rank with nothing has no say."""
    given = {
        "orthogonal": ([3.0, 0.0], [0.0, 4.0], [3.0, 4.0]),
        "equal": ([3.0, 4.0], [3.0, 4.0], [3.0, 4.0]),
        "one is zero": ([0.0, 0.0], [3.0, 4.0], [3.0, 4.0]),
        "both are zero": ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
    }

    def body(comm):
        return {name: adasum(comm, np.array(case[comm.rank])) for name, case in given.items()}

    for result in run_threads(star_plan(2), body):
        for name, case in given.items():
            np.testing.assert_allclose(result[name], case[2], atol=1e-15, err_msg=name)


def test_it_is_symmetric_and_leaves_its_input_alone():
    random = np.random.default_rng(7)
    a, b = random.standard_normal((2, 31, 3)).astype(np.float32)
    kept = a.copy(), b.copy()

    def body(comm):
        there = adasum(comm, (a, b)[comm.rank])
        back = adasum(comm, (b, a)[comm.rank])
        return there, back

    for there, back in run_threads(star_plan(2), body):
        assert there.shape == (31, 3)
        assert there.tobytes() == back.tobytes()
    assert (a == kept[0]).all()
    assert (b == kept[1]).all()


def test_infinities_come_through_without_a_warning():
    def body(comm):
        return adasum(comm, np.array([np.inf, 1.0], np.float32))

    for result in run_threads(star_plan(2), body):
        assert not np.isfinite(result).all()


def test_integers_are_refused_before_anything_moves():
    def body(comm):
        with pytest.raises(InvalidBufferError, match="int64"):
            adasum(comm, np.array([1, 2]))
        return adasum(comm, np.array([1.0]))

    assert len(run_threads(star_plan(2), body)) == 2
