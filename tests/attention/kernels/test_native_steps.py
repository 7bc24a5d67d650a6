"""Steps of the attention kernel bound to a cache's memory: bits of its calls, rows appended, what is turned away."""

import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack

from attention.cache.storage_run import StorageRun
from tests.attention.kernels.test_native import native, run, tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def bound_to(q, k, v, scale=0.3, softcap=5.0, counters=(None, None, None)):
    lse = torch.full(q.shape[:3], np.nan)
    out = torch.empty(*q.shape[:3], v.shape[3])
    memories = ((None,), *map(to_dlpack, (out, lse)))
    steps = native.bind_step(
        tuple(map(to_dlpack, (q, k, v))),
        (scale, softcap),
        (torch.Tensor, torch.Tensor.__dlpack_c_exchange_api__),
        (lambda: tuple([(torch.empty_like(out), {}, None) for _ in range(2)]), None, False),
        ((memories,), None),
        (None, None, 0),
        counters,
        (None, {}, (), 0),
        None,
    )
    return (*steps, lse)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bound_steps_have_the_bits_of_calls(dtype):
    q, k, v = tensors((2, 6, 1, 8), 3, 40, 5, dtype)
    begin, _, attend, lse = bound_to(torch.zeros_like(q), k[:, :, 1:], v[:, :, 1:])
    strided = torch.cat([q, q], -1).transpose(0, 1).contiguous().transpose(0, 1)[..., 8:]
    for first, end in ((0, 0), (0, 39), (7, 8), (5, 30)):
        rows = slice(1 + first, 1 + end)
        wanted = run(q, k[:, :, rows], v[:, :, rows], 0.3, softcap=5.0)
        for query in (q, strided):
            begin(*StorageRun(first, end))
            got = attend(query, None, {}), lse
            assert all(map(np.array_equal, got, wanted))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_appended_where_they_belong(dtype):
    q, k, v = tensors((2, 6, 1, 8), 3, 40, 5, dtype)
    memory_k, memory_v = (
        torch.zeros(2, 3, 50, 8, dtype=dtype)[:, :, 5:],
        torch.zeros(2, 3, 50, 5, dtype=dtype)[:, :, 5:],
    )
    counters = [np.zeros(1, np.int64) for _ in range(3)]
    begin, append, _, _ = bound_to(q, memory_k, memory_v, counters=tuple(x.__dlpack__() for x in counters))
    for row in range(0, 40, 4):
        begin(*StorageRun(0, row, left=4, own=True, length=2 * row))
        for at in range(row, row + 4):
            from_heads = k[:, :, at : at + 1].transpose(1, 2).contiguous().transpose(1, 2)
            assert append(from_heads, v[:, :, at : at + 1]) is True
        assert append(from_heads, v[:, :, row : row + 1]) is False  # none left
        assert counters == [2 * row + 4, row + 4, row + 4]
        begin(*StorageRun(0, row + 4, left=1, own=False, length=2 * row + 4))
        assert append(-k[:, :, row : row + 1], v[:, :, row : row + 1]) is True  # nowhere
        assert counters == [2 * row + 5, row + 4, row + 4]
    assert torch.equal(memory_k[:, :, :40], k) and torch.equal(memory_v[:, :, :40], v)
    assert not memory_k[:, :, 40:].any() and not memory_v[:, :, 40:].any()


def test_a_window_moves_over_the_rows():
    q, k, v = tensors((1, 6, 1, 8), 3, 40, 5)
    positions = np.arange(0, 80, 2)
    begin, append, attend, _ = bound_to(q, k, v, softcap=0.0)
    begin(*StorageRun(5, 20, left=8, own=True, length=40, window=30, positions=positions.__dlpack__()))
    for row in range(20, 28):
        assert append(k[:, :, row : row + 1].clone(), v[:, :, row : row + 1].clone()) is True
        seen = [at for at in range(row + 1) if positions[at] >= 41 + row - 20 - 30]
        wanted, _ = run(q, k[:, :, seen], v[:, :, seen], 0.3)
        assert np.array_equal(attend(q, None, {}), wanted)


def test_rows_of_another_kind_are_not_appended():
    q, k, v = tensors((2, 6, 1, 8), 3, 1, 5)
    memory_k, memory_v = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 5)
    begin, append, _, _ = bound_to(q, memory_k, memory_v)
    kinds = (
        lambda x: x.double(),
        lambda x: x[:1],
        lambda x: x[0],
        lambda x: torch.cat([x, x], 2),
        lambda x: torch.cat([x, x], 3)[..., ::2],
        lambda x: x.clone().requires_grad_(),
        torch.nn.Parameter,
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: x.numpy(),
    )
    begin(*StorageRun(0, 1, left=1, own=True))
    for other in kinds:
        assert append(other(k), v) is False and append(k, other(v)) is False
    assert not memory_k.any() and not memory_v.any()
    with pytest.raises(TypeError):
        append(k, v, 1)


def test_runs_that_do_not_fit_a_bound_step():
    q, k, v = tensors((2, 6, 1, 8), 3, 7, 5)
    begin, _, attend, _ = bound_to(q, k, v)
    runs = [StorageRun(first, end) for first, end in ((-1, 2), (3, 2), (0, 8), (0, 1 << 62))]
    for wrong in (*runs, StorageRun(0, 5, left=3, own=True), StorageRun(0, 5, left=-1)):
        with pytest.raises(ValueError, match="rows must lie from 0 to 7"):
            begin(*wrong)
        assert attend(q, None, {}) is None
    for wrong, message in (
        (StorageRun(0, 5, (1,)), "firsts must be 2 rows"),
        (StorageRun(0, 5, window=3), "a window needs the positions"),
        (StorageRun(0, 5, window=3, positions=np.zeros(5).__dlpack__()), "must be int64"),
    ):
        with pytest.raises(ValueError, match=message):
            begin(*wrong)
    with pytest.raises(TypeError):
        attend(q)
    for wrong in ((q, k[:1], v), (q[:, :5], k, v), (q, k.transpose(2, 3), v), (q, k.double(), v)):
        with pytest.raises(ValueError, match=r"fit each other|must be"):
            bound_to(*wrong)
