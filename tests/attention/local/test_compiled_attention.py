"""The compiled kernel behind `local_attention`: cuts by keys and threads, segments, and doing without it."""

import sys
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from attention import Spec, local_attention, reference_attention
from attention.arrays import check_inputs
from attention.local import compiled_attention as rows
from attention.local.calls import call_of_inputs
from attention.local.choice import ROWS, Machine, choose
from attention.local.compiled_attention import covers
from attention.visibility import Masking
from tests.attention.cases import SHAPES, arrays, assert_close
from tests.attention.local.test_calls import arrays as zeros
from tests.attention.local.test_dispatch import check
from tests.attention.local.test_features import plain
from tests.examples import examples


@pytest.mark.parametrize("shape", [(2, 3, 4, 1, 3000, 64, 64), (1, 2, 2, 200, 300, 16, 16)], ids=str)
def test_threads_do_not_change_bits(shape, monkeypatch):
    q, k, v = arrays(shape)
    monkeypatch.setattr(rows.torch, "get_num_threads", lambda: 1)
    one = local_attention(q, k, v)
    monkeypatch.setattr(rows.torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(rows, "BYTES_PER_THREAD", 1)
    four = local_attention(q, k, v)
    assert one.out.tobytes() == four.out.tobytes()
    assert one.lse.tobytes() == four.lse.tobytes()


def test_without_the_compiled_part_blocks_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "attention.kernels._native", None)
    assert rows._kernel.__wrapped__() is None
    monkeypatch.setattr(rows, "_kernel", lambda: None)
    without = Machine("cpu", "CPU", None, {"native": "not built"})
    monkeypatch.setattr("attention.local.dispatch.machine_of", lambda device, *, gpu: without)
    check(*arrays(SHAPES[1]))


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_kernel_is_asked_without_the_table(seed):
    """`covers` is what the table says of it, also for calls that it does not get."""
    rng = np.random.default_rng(seed)
    here = Machine("cpu", "CPU", None, {"torch.amx": "none"})
    for _ in range(40):
        q_len, n, d = (int(rng.choice(sizes)) for sizes in ((1, 3, 16, 17, 30), (1, 5, 40), (8, 20)))
        q, k, v = zeros(q_len, n, d, int(rng.choice([d, 12])), dtype=torch.float32)
        if rng.random() < 0.2:
            k = k.transpose(2, 3).contiguous().transpose(2, 3)
        spec = Spec(causal=bool(rng.random() < 0.5), window=int(rng.choice([2, 9])) if rng.random() < 0.3 else None)
        mask = rng.random(n) < 0.8 if rng.random() < 0.3 else None
        inputs = check_inputs("test", q, k, v, spec=spec, masking=Masking(kv_mask=mask))
        call = call_of_inputs(inputs, exact=bool(rng.random() < 0.5))
        assert covers(inputs) == (choose(call, here).row.name == ROWS)
        assert ("kv_mask" in call.features) == (mask is not None and not mask.all())


@examples(60)
@given(
    n=st.integers(0, 300), q_len=st.integers(1, 16), heads=st.integers(1, 3), group=st.integers(1, 9),
    d=st.integers(1, 70), d_v=st.integers(1, 70), seed=st.integers(0, 1 << 30), causal=st.booleans(),
)  # fmt: skip
def test_kernel_on_random_shapes(n, q_len, heads, group, d, d_v, seed, causal):
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal(size, np.float32)
        for size in ((2, heads * group, q_len, d), (2, heads, n, d), (2, heads, n, d_v))
    )
    positions = {"q_positions": rng.integers(0, n + 1, q_len), "kv_positions": rng.permutation(n)}
    exact = reference_attention(q, k, v, spec=Spec(causal=causal), **positions)
    got = local_attention(q, k, v, spec=Spec(causal=causal), **positions)
    assert_close(got.out, exact.out, atol=1e-5)
    assert_close(got.lse, exact.lse, atol=1e-5)


RUNS = st.lists(st.tuples(st.integers(-5, 300), st.integers(1, 70)), min_size=1, max_size=4)


@examples(40)
@given(
    q_runs=RUNS, k_runs=RUNS, window=st.none() | st.integers(1, 90), softcap=st.none() | st.just(2.0),
    sloped=st.booleans(), masked=st.booleans(), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_prompts_of_runs_of_positions(q_runs, k_runs, window, softcap, sloped, masked, dtype, seed):
    """What no query sees is not a number; rows that see nothing are (0, -inf)."""
    rng = np.random.default_rng(seed)
    queries, keys = (np.concatenate([np.arange(at, at + count) for at, count in runs]) for runs in (q_runs, k_runs))
    slopes = (0.01, 0.2) if sloped else None
    spec = Spec(causal=True, window=window, softcap=softcap, alibi_slopes=slopes)
    q, k, v = (
        torch.from_numpy(rng.standard_normal((1, heads, n, d), np.float32)).to(dtype)
        for heads, n, d in ((2, len(queries), 9), (1, len(keys), 9), (1, len(keys), 17))
    )
    mask = rng.random(len(keys)) < 0.7 if masked else np.ones(len(keys), bool)
    apart = queries[:, None] - keys
    seen = (apart >= 0) & (apart < (window or 1000)) & mask
    k[:, :, ~seen.any(0)], v[:, :, ~seen.any(0)] = torch.nan, torch.inf
    options = {"spec": spec, "q_positions": queries, "kv_positions": keys, "kv_mask": mask}
    got = check(q, k, v, **options)
    assert ((got.lse == -np.inf).numpy() == ~seen.any(1)).all() and (got.out[:, :, ~seen.any(1)] == 0).all()


def test_long_work_is_cut_into_more_pieces(monkeypatch):
    inputs = check_inputs("test", *arrays((1, 1, 2, 400, 30, 8, 8)), spec=Spec(), masking=Masking())
    for piece_bytes, pieces in ((1 << 30, rows.PIECES), (1, 13)):  # 800 rows: 13 tiles
        calls = []
        monkeypatch.setattr(rows, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(rows.torch, "get_num_threads", lambda: 1)
        rows.attend_rows(inputs, inputs.empty_partial(), partial(calls.append, 1))
        assert len(calls) == pieces


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_cuts_do_not_change_bits(threads):
    rng = np.random.default_rng(4)
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 1, n, 64), np.float32)) for n in (3, 20_000, 20_000))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = local_attention(q, k, v)
    finally:
        torch.set_num_threads(before)
    first = local_attention(q, k, v)
    assert torch.equal(got.out, first.out) and torch.equal(got.lse, first.lse)
    exact = reference_attention(q, k, v)
    assert_close(got.out, exact.out, atol=1e-6)


def test_segments_have_the_bits_that_their_keys_alone_have():
    q, k, v = (torch.from_numpy(x) for x in plain((2, 2, 3, 2, 200, 16, 24)))
    order = np.random.default_rng(0).permutation(200)
    segments = np.array([[0, 70], [70, 70], [70, 200]])
    inputs = check_inputs("test", q, k, v, spec=Spec(), masking=Masking())
    got = rows.attend_segments(inputs, order[None], segments)
    for number, (start, stop) in enumerate(segments.tolist()):
        index = torch.from_numpy(order[start:stop].copy())
        alone = local_attention(q, k.index_select(2, index), v.index_select(2, index))
        assert torch.equal(got.out[number], alone.out) and torch.equal(got.lse[number], alone.lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_every_number_of_16_bits_as_a_query(dtype, strided):
    """Subnormals, both zeros, infinities and NaN too: with one key, 1, the score is the query."""
    q = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(1, 4096, 16, 1)
    if strided:
        q = torch.stack([q, torch.ones_like(q)], -1)[..., 0]
    key = torch.ones(1, 4096, 1, 1, dtype=dtype)
    out, lse = local_attention(q, key, key, spec=Spec(scale=0.5))
    wanted = q[..., 0].float() * 0.5
    finite = wanted.isfinite()
    assert torch.equal(lse[finite], wanted[finite]) and torch.equal(out[..., 0][finite], torch.ones(int(finite.sum())))
    assert torch.equal(lse.isnan() | lse.isinf(), ~finite)
