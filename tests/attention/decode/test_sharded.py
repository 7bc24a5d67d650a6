"""The three ways to attend over sharded keys share their arguments, results and checks, and so their tests."""

import numpy as np
import pytest
import torch

import topocomm
from attention import LOGSUMEXP, Partial, Spec, reference_attention, ring_decode, three_allreduce_decode, tree_decode
from tests.attention.cases import SHAPES, arrays, assert_close, cuts
from tests.attention.faults import plant_lse_fault
from tests.thinning import alternating, covering
from topocomm import MismatchError, OperatorError, run_local

CAUSAL = Spec(causal=True)
METHODS = [tree_decode, ring_decode, three_allreduce_decode]
RANKS = [1, 2, 3, 4, 5, 8]

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


def run(method, ranks, q, k, v, shards, **options):
    """method on threads; `shards` are the keys of each rank, as slices or indices, and options may be per rank."""

    def on_rank(comm):
        mine = shards[comm.rank]
        own = {name: x(comm.rank) if callable(x) else x for name, x in options.items()}
        return method(q, k[:, :, mine], v[:, :, mine], comm, return_lse=True, **own)

    return run_local(on_rank, ranks=ranks)


def check(results, exact, largest):
    """Every rank holds the same bits, and they are right."""
    for result in results:
        assert isinstance(result, Partial)
        assert np.asarray(result.out).tobytes() == np.asarray(results[0].out).tobytes()
        assert np.asarray(result.lse).tobytes() == np.asarray(results[0].lse).tobytes()
    assert_close(results[0].out, exact.out, atol=1e-5 * largest)
    assert_close(results[0].lse, exact.lse, atol=1e-5)


def largest_partial(q, k, v, shards):
    return max(float(np.abs(reference_attention(q, k[:, :, s], v[:, :, s]).out).max()) for s in shards)


@pytest.mark.parametrize(("method", "ranks"), alternating(METHODS, RANKS))
def test_uneven_and_empty_shards(method, ranks):
    for seed, shape in enumerate(SHAPES):
        q, k, v = arrays(shape, seed=seed)
        shards = cuts(shape[4], ranks, seed=seed)
        results = run(method, ranks, q, k, v, shards)
        check(results, reference_attention(q, k, v), largest_partial(q, k, v, shards))


@each_method
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["NumPy", "torch", "bfloat16"])
def test_absorbed_queries_over_latents(method, ranks, kind):
    """Values are columns of the keys, in their memory: the attention of heads that multiplied latents would give."""
    heads, nope, rotary, rank, n = 70, 24, 8, 56, 130  # two tiles of rows on one key head
    rng = np.random.default_rng(0)
    w_k, w_v = rng.standard_normal((2, heads, nope, rank)) / 4
    q, rows = rng.standard_normal((2, heads, 2, nope + rotary)), rng.standard_normal((2, 1, n, rank + rotary))
    latents, rotated = rows[..., :rank], np.broadcast_to(rows[..., rank:], (2, heads, n, rotary))
    keys = np.concatenate([np.einsum("bxnr,hdr->bhnd", latents, w_k), rotated], -1)
    spec, told = Spec(causal=True, scale=0.2), {"q_positions": np.arange(n - 2, n)}
    values = np.einsum("bxnr,hdr->bhnd", latents, w_v)
    exact = reference_attention(q, keys, values, spec=spec, kv_positions=np.arange(n), **told)
    absorbed = np.concatenate([np.einsum("bhqn,hnr->bhqr", q[..., :nope], w_k), q[..., nope:]], -1).astype(np.float32)
    rows = rows.astype(np.float32)
    if kind != "NumPy":
        absorbed, rows = (
            torch.from_numpy(x).to(getattr(torch, {"torch": "float32"}.get(kind, kind))) for x in (absorbed, rows)
        )

    def on_rank(comm):
        mine, at = rows[:, :, comm.rank :: comm.size], np.arange(comm.rank, n, comm.size)
        return method(absorbed, mine, mine[..., :rank], comm, spec=spec, kv_positions=at, **told)

    limit = 0.06 if kind == "bfloat16" else 1e-5
    for out in run_local(on_rank, ranks=ranks):
        found = np.einsum("bhqr,hvr->bhqv", out if kind == "NumPy" else out.double().numpy(), w_v)
        assert_close(found, exact.out, atol=limit * float(np.abs(exact.out).max()))


@each_method
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_no_rank_has_a_key(method, ranks):
    q, k, v = arrays((2, 1, 3, 2, 0, 8, 16))
    for result in run(method, ranks, q, k, v, [slice(0, 0)] * ranks):
        assert result.out.shape == (2, 3, 2, 16)
        assert (result.out == 0).all()
        assert (result.lse == -np.inf).all()


@pytest.mark.parametrize(("method", "ranks", "q_len"), covering(METHODS, [2, 3, 5], [1, 2, 5, 8]))
def test_causal_with_interleaved_shards(method, ranks, q_len):
    for n in (1, ranks - 1, ranks * 3 - 1, ranks * 3, ranks * 3 + 1):
        q, k, v = arrays((2, 1, 3, q_len, n, 8, 12), seed=n)
        positions, queries = np.arange(n), np.arange(n - q_len, n)
        shards = [positions[rank::ranks] for rank in range(ranks)]
        results = run(
            method, ranks, q, k, v, shards, spec=CAUSAL, q_positions=queries, kv_positions=lambda r, s=shards: s[r]
        )
        exact = reference_attention(q, k, v, spec=CAUSAL, q_positions=queries, kv_positions=positions)
        check(results, exact, max(float(np.abs(v).max()), 1e-3))


@each_method
def test_lengths_and_masks_of_local_keys(method):
    q, k, v = arrays((3, 2, 2, 2, 30, 8, 12))
    shards = [slice(0, 12), slice(12, 20), slice(20, 30)]
    lengths = np.array([[12, 0, 5], [8, 8, 0], [10, 3, 1]])  # [rank, batch]; rank 0 hides nothing of entry 0
    mask = np.random.default_rng(0).random((3, 30)) < 0.7
    exists = np.concatenate([np.arange(s.stop - s.start) < lengths[r][:, None] for r, s in enumerate(shards)], 1)
    k = np.where((exists & mask)[:, None, :, None], k, np.nan)
    v = np.where((exists & mask)[:, None, :, None], v, np.inf)
    results = run(method, 3, q, k, v, shards, kv_lengths=lambda r: lengths[r], kv_mask=lambda r: mask[:, shards[r]])
    exact = reference_attention(q, k, v, kv_mask=exists & mask)
    assert np.isfinite(exact.out).all()
    check(results, exact, 5.0)


@each_method
def test_only_some_ranks_mask(method):
    q, k, v = arrays(SHAPES[1])
    shards = [slice(0, 10), slice(10, 37)]
    results = run(method, 2, q, k, v, shards, kv_lengths=lambda r: [10, 10] if r == 0 else [5, 27])
    keep = np.ones((2, 37), bool)
    keep[0, 15:] = False
    check(results, reference_attention(q, k, v, kv_mask=keep), 5.0)


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_has_the_kind_and_dtype_of_q(method, dtype):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in arrays(SHAPES[1]))
    results = run(method, 2, q, k, v, cuts(37, 2))
    exact = reference_attention(*(x.double().numpy() for x in (q, k, v)))
    unit = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    for result in results:
        assert result.out.dtype == dtype
        assert result.lse.dtype == torch.float32
        assert_close(result.out.double(), exact.out, atol=(1e-5 + unit) * np.abs(exact.out).max())
        assert_close(result.lse, exact.lse, atol=1e-5)


@each_method
def test_out_is_written_and_may_be_q(method):
    q, k, v = arrays((2, 2, 3, 1, 40, 16, 16))
    shards = cuts(40, 3)
    expected = run(method, 3, q, k, v, shards)[0].out

    def on_rank(comm):
        mine = shards[comm.rank]
        own = [q.copy(), np.empty((1, 6, 2, 16), np.float32).transpose(2, 1, 0, 3)]
        got = [method(q if out is not own[0] else out, k[:, :, mine], v[:, :, mine], comm, out=out) for out in own]
        assert all(x is out for x, out in zip(got, own, strict=True))
        return got

    for got in run_local(on_rank, ranks=3):
        for out in got:
            np.testing.assert_array_equal(out, expected)


@each_method
def test_a_growing_cache_and_changing_shapes(method):
    q, k, v = arrays((2, 2, 2, 9, 60, 8, 8))
    lengths = (7, 8, 8, 48, 49, 50, 51, 60, 49)  # by one token, which memory has room for, and by more

    def on_rank(comm):
        results = []
        for n in lengths:
            queries = q[:, :, : 9 if n == 60 else 1]  # a long prompt, and back to single tokens
            mine = np.arange(n)[comm.rank :: comm.size]
            results.append(method(queries, k[:, :, mine], v[:, :, mine], comm, return_lse=True))
        return results

    per_call = list(zip(*run_local(on_rank, ranks=3), strict=True))
    for n, results in zip(lengths, per_call, strict=True):
        queries = q[:, :, : 9 if n == 60 else 1]
        check(results, reference_attention(queries, k[:, :, :n], v[:, :, :n]), 5.0)


def test_a_plan_that_splits_the_payload():
    """Where the plan sends chunks there is no packed buffer to write into, and `out` may have any strides."""
    topology = topocomm.catalog("rtx4090-pcie-8")
    q, k, v = arrays((1, 2, 3, 400, 20, 16, 64))
    exact = reference_attention(q, k, v)

    def on_rank(comm):
        mine = slice(comm.rank * 5, comm.rank * 5 + 5)
        like = {"out": exact.out.astype(np.float32), "lse": exact.lse.astype(np.float32)}
        chunks = len(comm.explain("allreduce", like=like, operator=LOGSUMEXP).schedule.chunks)
        out = np.empty((1, 400, 6, 64), np.float32).transpose(0, 2, 1, 3)
        got = tree_decode(q, k[:, :, mine], v[:, :, mine], comm, out=out, return_lse=True)
        return chunks, Partial(np.ascontiguousarray(got.out), got.lse)

    outcomes = run_local(on_rank, ranks=4, topology=topology)
    assert outcomes[0][0] > 1
    check([result for _, result in outcomes], exact, 5.0)


def test_a_single_rank_is_causal_without_positions():
    q, k, v = arrays(SHAPES[2])
    exact = reference_attention(q, k, v, spec=CAUSAL, q_positions=np.arange(124, 129), kv_positions=np.arange(129))
    for method in METHODS:
        check(run(method, 1, q, k, v, [slice(None)], spec=CAUSAL), exact, 5.0)
    lengths = np.array([129, 60, 3])
    ends = lengths[:, None] + np.arange(-5, 0)
    exact = reference_attention(q, k, v, spec=CAUSAL, q_positions=ends, kv_positions=np.arange(129))
    check(run(tree_decode, 1, q, k, v, [slice(None)], spec=CAUSAL, kv_lengths=lengths), exact, 5.0)


def test_a_planted_fault_shows(monkeypatch):
    q, k, v = arrays(SHAPES[1])
    shards = [slice(0, 12), slice(12, 25), slice(25, 37)]
    exact = reference_attention(q, k, v)
    plant_lse_fault(monkeypatch)
    results = run(tree_decode, 3, q, k, v, shards)
    assert np.abs(results[0].out - exact.out).max() > 1e-2
    assert np.abs(results[0].lse - exact.lse).max() > 1e-2


@each_method
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"spec": CAUSAL},
            ["attention over 2 shards that is causal", "needs kv_positions and q_positions"],
        ),
        ({"spec": CAUSAL, "kv_positions": np.arange(5)}, ["q_positions is missing"]),
        ({"kv_lengths": [6, 1]}, ["kv_lengths must be 2 integers from 0 to 5", "[6, 1]"]),
        ({"kv_lengths": [1]}, ["kv_lengths must be 2 integers", "[1]"]),
        ({"kv_lengths": [1.0, 2.0]}, ["kv_lengths must be 2 integers"]),
        ({"out": np.empty((2, 6, 4, 8))}, ["out must be torch.float32 [2, 6, 4, 8]", "float64"]),
        ({"out": np.broadcast_to(np.float32(0), (2, 6, 4, 8))}, ["out must be writable"]),
    ],
)
def test_what_does_not_fit_is_named(method, options, parts):
    q = np.zeros((2, 6, 4, 8), np.float32)
    k = np.zeros((2, 3, 5, 8), np.float32)
    with pytest.raises(OperatorError) as raised:
        run_local(lambda comm: method(q, k, k, comm, **options), ranks=2)
    for part in [method.__name__, *parts]:
        assert part in str(raised.value)


def test_ranks_that_disagree():
    def on_rank(comm, method):
        q = np.zeros((1, 2, 1 + comm.rank, 8), np.float32)
        method(q, q[:, :, :1], q[:, :, :1], comm)

    for method in METHODS:
        with pytest.raises(MismatchError):
            run_local(lambda comm, method=method: on_rank(comm, method), ranks=2)

    def other_dtype(comm):
        q = torch.zeros(1, 2, 1, 8)
        k = q.to([torch.float32, torch.float32, torch.bfloat16][comm.rank])
        ring_decode(q, k, k, comm)

    with pytest.raises(MismatchError, match=r"ring_decode: ranks \[2\] differ from rank 0: .*dtype of k and v"):
        run_local(other_dtype, ranks=3)
