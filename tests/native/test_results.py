"""Memory of results in C: which is lent, when it comes back, and what its owner holds."""

import sys

import numpy as np
import pytest

from topocomm.native._native import Results

BYTES = np.dtype(np.uint8)
LIKE = np.broadcast_to(np.empty((), np.float32), (3, 5))


def places(results):
    return [memory.ctypes.data for memory in results.kept]


def test_an_array_has_the_shape_and_dtype_asked_for():
    array = Results(BYTES, 1000).lend(LIKE)
    assert (type(array), array.shape, array.dtype) == (np.ndarray, (3, 5), np.float32)
    assert array.flags.carray and not array.flags.owndata
    array[...] = 1
    assert array.sum() == 15


def test_the_last_memory_of_the_size_that_came_back_is_lent_first():
    results = Results(BYTES, 1000)
    first, second, longer = results.lend(LIKE), results.lend(LIKE), results.lend(np.empty(16, np.float32))
    at = [array.ctypes.data for array in (first, second, longer)]
    del first, second, longer
    assert places(results) == at
    again = results.lend(LIKE)
    assert again.ctypes.data == at[1]
    assert places(results) == [at[0], at[2]]


def test_what_came_back_first_goes_first():
    results = Results(BYTES, 2 * LIKE.size * 4)
    arrays = [results.lend(LIKE) for _ in range(3)]
    at = [array.ctypes.data for array in arrays]
    while arrays:
        arrays.pop(0)
    assert places(results) == at[1:]


def test_memory_comes_back_in_the_midst_of_an_error():
    results = Results(BYTES, 1000)

    def fail():
        array = results.lend(LIKE)
        raise ValueError(array.shape)

    with pytest.raises(ValueError, match=r"\(3, 5\)"):
        fail()
    assert len(results.kept) == 1


def test_an_array_outlives_who_lent_it():
    results = Results(BYTES, 1000)
    array = results.lend(LIKE)
    array[...] = 7
    del results
    assert (array == 7).all()


def test_nothing_comes_back_to_one_that_is_closed():
    results = Results(BYTES, 1000)
    held, gone = results.lend(LIKE), results.lend(LIKE)
    del gone
    results.close()
    assert results.kept == []
    del held
    assert results.kept == []


def test_lending_leaves_no_references():
    results, dtype = Results(BYTES, 1000), LIKE.dtype
    before = [sys.getrefcount(one) for one in (results, dtype, BYTES, LIKE)]
    for _ in range(1000):
        results.lend(LIKE)
    after = [sys.getrefcount(one) for one in (results, dtype, BYTES, LIKE)]
    assert all(abs(now - then) < 10 for now, then in zip(after, before, strict=True))


def test_a_result_is_like_an_array():
    with pytest.raises(TypeError, match="a result is like a NumPy array, got <class 'list'>"):
        Results(BYTES, 1000).lend([1.0])
