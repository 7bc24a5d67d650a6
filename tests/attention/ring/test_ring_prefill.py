"""Ring attention over sharded queries, keys and values: results, gradients and balance."""

import numpy as np
import pytest
import torch

from attention import Spec, local_attention
from attention.ring.ring_layout import LAYOUTS
from attention.ring.ring_prefill import ring_attention
from tests.attention.gradients import SPECS, attention64, spec_of
from tests.attention.ring_cases import case, check, dealt, exact_of, held, run
from tests.thinning import thinned
from topocomm import run_local

CASES = [(1, 5), (1, 40), (2, 23), (3, 150), (4, 37), (5, 4), (5, 61), (8, 3), (8, 90)]
"""Ranks and tokens: not divisible, fewer tokens than ranks, and parts long enough for matrix products."""
CAUSAL = Spec(causal=True)


@pytest.mark.parametrize(
    ("name", "ranks", "n", "layout"),
    thinned(
        (name, *one, list(LAYOUTS)[(place + turn) % len(LAYOUTS)])
        for turn, name in enumerate(SPECS)
        for place, one in enumerate(CASES)
    ),
)
def test_results_and_gradients_are_exact(name, ranks, n, layout):
    """Every spec with every case, in one of the layouts."""
    tensors, arriving = case(n, seed=n)
    spec = spec_of(name, 6)
    found = run(tensors, held(layout, n, ranks), arriving=arriving, spec=spec, layout=layout)
    check(found, exact_of(tensors, spec, arriving))


@pytest.mark.parametrize(("ranks", "n"), thinned(CASES))
def test_positions_in_any_order_and_uneven(ranks, n):
    tensors, arriving = case(n, seed=n)
    for seed, name in enumerate(("plain", "causal", "all")):
        spec = spec_of(name, 6)
        exact = exact_of(tensors, spec, arriving)
        parts = dealt(n, ranks, seed)
        check(run(tensors, parts, arriving=arriving, spec=spec, positions=parts.__getitem__), exact)
        striped = [np.arange(n)[rank::ranks] for rank in range(ranks)]
        check(run(tensors, striped, arriving=arriving, spec=spec, positions=striped.__getitem__), exact)


@pytest.mark.parametrize("layout", thinned(LAYOUTS))
def test_seventeen_ranks(layout):
    tensors, arriving = case(45)
    spec = spec_of("all", 6)
    found = run(tensors, held(layout, 45, 17), arriving=arriving, spec=spec, layout=layout)
    check(found, exact_of(tensors, spec, arriving))


def test_contiguous_parts_of_any_length():
    tensors, arriving = case(50)
    for sizes in ([0, 50, 0], [1, 2, 47], [0, 0, 50], [20, 0, 30]):
        parts = np.split(np.arange(50), np.cumsum(sizes)[:-1])
        check(run(tensors, parts, arriving=arriving, spec=CAUSAL), exact_of(tensors, CAUSAL, arriving))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_rank_has_a_token(layout):
    tensors, arriving = case(0)
    shapes = [x.shape for x in run(tensors, held(layout, 0, 3), arriving=arriving, spec=CAUSAL, layout=layout)]
    assert shapes == [(2, 6, 0, 12), (2, 6, 0), (2, 6, 0, 8), (2, 2, 0, 8), (2, 2, 0, 12)]


@pytest.mark.parametrize("name", ["plain", "all"])
def test_as_on_one_process(name):
    (q, k, v), _ = case(70)
    spec = spec_of(name, 6)
    if spec.sinks is not None:
        spec = Spec(**{**vars(spec), "sinks": None})
    alone = local_attention(q, k, v, spec=spec)
    out, lse = run((q, k, v), [np.arange(70)], spec=spec)
    assert torch.equal(out, alone.out)
    assert torch.equal(lse, alone.lse)
    for ranks in (2, 3, 8):
        check(run((q, k, v), held("zigzag", 70, ranks), spec=spec, layout="zigzag"), [x.double() for x in alone])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    tensors, (d_out, d_lse) = case(61, dtype=dtype)
    arriving = d_out, d_lse
    spec = spec_of("all", 6)
    found = run(tensors, held("zigzag", 61, 3), arriving=arriving, spec=spec, layout="zigzag")
    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype]
    check(found, exact_of(tensors, spec, arriving), unit={torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype])


def test_arrays_strides_and_plain_results():
    """NumPy in, NumPy out; keys and values with any strides; out alone without return_lse."""
    (q, k, v), _ = case(30)
    parts = held("zigzag", 30, 3)
    exact = attention64(*(x.double() for x in (q, k, v)), Spec(), (torch.arange(30),) * 2).out.numpy()

    def on_rank(comm):
        mine = parts[comm.rank]
        own = [
            np.ascontiguousarray(x.numpy()[:, :, mine].transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0) for x in (q, k, v)
        ]
        own[0].flags.writeable = False
        return ring_attention(*own, comm, layout="zigzag")

    for mine, out in zip(parts, run_local(on_rank, ranks=3), strict=True):
        assert isinstance(out, np.ndarray) and out.dtype == np.float32
        np.testing.assert_allclose(out, exact[:, :, mine], rtol=0, atol=1e-5)


def test_the_same_call_gives_the_same_bits():
    tensors, arriving = case(90)
    parts = held("zigzag", 90, 5)
    spec = spec_of("all", 6)
    first, again = (run(tensors, parts, arriving=arriving, spec=spec, layout="zigzag") for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_parts_of_the_gradients():
    """Only some arguments require them, only out or only lse is used, and backward runs twice."""
    tensors, arriving = case(40)
    exact = exact_of(tensors, CAUSAL, arriving)
    of_out, of_lse = (
        exact_of(tensors, CAUSAL, [x * y for x, y in zip(arriving, on, strict=True)])[2:] for on in [(1, 0), (0, 1)]
    )
    parts = held("contiguous", 40, 3)

    def on_rank(comm):
        mine = torch.from_numpy(parts[comm.rank])
        q, k, v = (x[:, :, mine] for x in tensors)
        k.requires_grad_()
        d_out, d_lse = (x[:, :, mine] for x in arriving)
        result = ring_attention(q, k, v, comm, spec=CAUSAL, return_lse=True)
        of_k = [torch.autograd.grad(result, k, (d_out, d_lse), retain_graph=True)[0] for _ in range(2)]
        assert torch.equal(*of_k)
        of_k.append(torch.autograd.grad(result.out, k, d_out, retain_graph=True)[0])
        of_k.append(torch.autograd.grad(result.lse, k, d_lse)[0])
        with torch.no_grad():
            assert not ring_attention(q, k, v, comm, spec=CAUSAL).requires_grad
        return of_k

    both, _, out_only, lse_only = (torch.cat(x, 2) for x in zip(*run_local(on_rank, ranks=3), strict=True))
    for found, wanted in ((both, exact[3]), (out_only, of_out[1]), (lse_only, of_lse[1])):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
