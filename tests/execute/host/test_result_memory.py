"""Memory of large results serves again when nobody uses it any more, and never before."""

from __future__ import annotations

import gc
import sys
from queue import SimpleQueue
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm import SUM, Communicator, Field, Operator, run_local
from topocomm.execute.host.result_memory import LEAST_BYTES, MOST_KEPT_BYTES, ResultMemory

FLOAT = np.dtype(np.float32)
ITEMS = LEAST_BYTES // FLOAT.itemsize


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_of_an_array_that_is_gone_serves_the_next() -> None:
    memory = ResultMemory()
    array = memory.empty((ITEMS,), FLOAT)
    first = address(array)
    del array
    assert [one.size for one in memory.kept] == [LEAST_BYTES]
    assert address(memory.empty((2, ITEMS // 2), FLOAT)) == first


def test_a_view_keeps_it() -> None:
    memory = ResultMemory()
    view = memory.empty((4, ITEMS), FLOAT)[1:3, ::2]
    gc.collect()
    assert memory.kept == []
    tensor = torch.from_numpy(view)
    del view
    assert memory.kept == []
    del tensor
    assert len(memory.kept) == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, ml_dtypes.bfloat16, np.complex64])
def test_arrays_are_plain_and_can_be_written(dtype: Any) -> None:
    array = ResultMemory().empty((3, LEAST_BYTES), np.dtype(dtype))
    assert array.dtype == dtype
    assert array.shape == (3, LEAST_BYTES)
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.aligned
    array[...] = 1
    assert (array == 1).all()


def test_another_size_gets_memory_of_its_own() -> None:
    memory = ResultMemory()
    memory.empty((ITEMS,), FLOAT)
    assert memory.empty((ITEMS + 1,), FLOAT).nbytes == LEAST_BYTES + FLOAT.itemsize
    assert sorted(one.size for one in memory.kept) == [LEAST_BYTES, LEAST_BYTES + FLOAT.itemsize]


def test_small_results_are_numpys_own() -> None:
    memory = ResultMemory()
    array = memory.empty((ITEMS - 1,), FLOAT)
    assert array.base is None
    del array
    assert memory.kept == []


def test_no_more_is_kept_than_the_limit() -> None:
    memory = ResultMemory()
    arrays = [memory.empty((size,), np.dtype(np.uint8)) for size in (MOST_KEPT_BYTES // 2, MOST_KEPT_BYTES)]
    arrays += [memory.empty((MOST_KEPT_BYTES + 1,), np.dtype(np.uint8)), memory.empty((LEAST_BYTES,), FLOAT)]
    while arrays:
        del arrays[0]
        assert sum(one.size for one in memory.kept) <= MOST_KEPT_BYTES
    assert memory.kept[-1].size == LEAST_BYTES * FLOAT.itemsize


def test_results_may_go_in_other_threads() -> None:
    memory, sizes = ResultMemory(), [LEAST_BYTES + 64 * index for index in range(5)]
    queue: SimpleQueue[Any] = SimpleQueue()

    def drop() -> None:
        while queue.get() is not None:
            pass

    threads = [Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(3000):
        array = memory.empty((sizes[step * 7 % 5],), np.dtype(np.uint8))
        array[:: LEAST_BYTES // 4] = step % 251
        mine = array[:: LEAST_BYTES // 4]
        queue.put(array[1:])
        del array
        assert (mine == step % 251).all()
    for _ in threads:
        queue.put(None)
    for thread in threads:
        thread.join(60)
    del mine
    assert len({address(one) for one in memory.kept}) == len(memory.kept)


def test_without_a_compiled_part_results_are_numpys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "topocomm.native._native", None)
    memory = ResultMemory()
    assert memory.empty((ITEMS,), FLOAT).base is None
    memory.close()
    assert memory.kept == []


def test_nothing_is_kept_once_it_is_closed() -> None:
    memory = ResultMemory()
    first, second = (memory.empty((ITEMS,), FLOAT) for _ in range(2))
    del first
    memory.close()
    assert memory.kept == []
    del second
    assert memory.kept == []
    del [memory.empty((ITEMS,), FLOAT)][0]
    assert memory.kept == []


OWN = Operator(
    "own",
    (Field("value", dtype=FLOAT),),
    lambda left, right: {"value": left["value"] + right["value"]},
    {"value": 0},
    commutative=True,
)


@examples(10)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=8), st.sampled_from(["numpy", "torch"]))
def test_results_that_are_held_keep_their_values(pattern: list[tuple[bool, bool]], library: str) -> None:
    """Some results are held, others dropped, at every step: whatever is held has the value of its own call."""

    def rank(comm: Communicator) -> None:
        held: list[tuple[Any, int]] = []
        for step, (hold, own) in enumerate(pattern):
            x: Any = np.full(ITEMS, step, FLOAT)
            x = torch.from_numpy(x) if library == "torch" else x
            result = comm.allreduce(x, OWN if own else SUM)
            if hold:
                held.append((result[::7], step))
            elif held:
                held.pop(0)
            assert all(bool((part == 2 * number).all()) for part, number in held)

    run_local(rank, ranks=2)


def test_dropped_results_of_a_loop_take_two_pieces_of_memory() -> None:
    def rank(comm: Communicator) -> set[int]:
        x, places = np.ones(ITEMS, FLOAT), set()
        for _ in range(12):
            y = comm.allreduce(x, SUM)
            places.add(address(y))
        return places

    assert all(len(places) <= 2 for places in run_local(rank, ranks=2))


def test_a_closed_communicator_keeps_nothing() -> None:
    def rank(comm: Communicator) -> int:
        comm.allreduce(np.ones(ITEMS, FLOAT), SUM)
        before = len(comm.session.results.kept)
        comm.close()
        return before - len(comm.session.results.kept)

    assert run_local(rank, ranks=2) == [1, 1]
