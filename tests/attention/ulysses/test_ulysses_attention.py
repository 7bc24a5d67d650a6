"""Ulysses attention over sharded queries, keys and values: results and gradients, with rings and without."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import Spec, local_attention, ring_attention
from attention.ulysses.ulysses_attention import ulysses_attention
from tests.attention.gradients import SPECS, attention64, spec_of
from tests.attention.ring_cases import case, check, dealt, exact_of, held, run
from tests.examples import examples
from tests.thinning import thinned
from topocomm import MismatchError, OperatorError, run_local

HEADS = [(1, 1), (2, 3), (12, 1), (1, 5), (4, 3), (5, 2), (1, 12), (9, 1), (3, 2), (2, 1), (1, 7), (11, 1)]
"""Key heads and query heads of each: fewer, as many as ranks and more."""
GRIDS = [(ranks, ring) for ranks in range(1, 10) for ring in range(1, ranks + 1) if ranks % ring == 0]
CAUSAL = Spec(causal=True)


def exact_on(tensors, arriving, parts, spec, **options):
    found = run(tensors, parts, arriving=arriving, attend=ulysses_attention, spec=spec, **options)
    check(found, exact_of(tensors, spec, arriving))


@pytest.mark.parametrize(
    ("ranks", "ring", "kv_heads", "shared", "name"),
    thinned(
        (
            (*grid, *heads, [*SPECS][(place + 3 * turn) % len(SPECS)])
            for turn, heads in enumerate(HEADS)
            for place, grid in enumerate(GRIDS)
        ),
        every=11,
    ),
)
def test_results_and_gradients_are_exact(ranks, ring, kv_heads, shared, name):
    """Every grid with all heads; in zigzag, and dealt in any order, unevenly."""
    n = 5 * ranks + 3
    tensors, arriving = case(n, seed=n, kv_heads=kv_heads, group=shared, batch=1 + ranks % 2)
    spec = spec_of(name, kv_heads * shared)
    if kv_heads % 2:
        exact_on(tensors, arriving, held("zigzag", n, ranks), spec, ring=ring, layout="zigzag")
    else:
        parts = dealt(n, ranks)
        exact_on(tensors, arriving, parts, spec, ring=ring, positions=parts.__getitem__)


@given(st.data())
@examples(6)
def test_any_call(data):
    ranks = data.draw(st.integers(1, 6), "ranks")
    ring = data.draw(st.sampled_from([r for r in range(1, ranks + 1) if ranks % r == 0]), "ring")
    kv_heads, shared = data.draw(st.integers(1, 4), "kv_heads"), data.draw(st.integers(1, 4), "query heads of each")
    n, d = data.draw(st.integers(0, 30), "tokens"), data.draw(st.integers(1, 9), "d")
    name = data.draw(st.sampled_from([*SPECS]), "spec")
    tensors, arriving = case(n, kv_heads=kv_heads, group=shared, d=d, d_v=data.draw(st.integers(1, 9), "d_v"))
    parts = dealt(n, ranks, data.draw(st.integers(0, 99), "dealt"))
    exact_on(tensors, arriving, parts, spec_of(name, kv_heads * shared), ring=ring, positions=parts.__getitem__)


@pytest.mark.parametrize("ring", [1, 3])
def test_contiguous_parts_of_any_length(ring):
    tensors, arriving = case(50)
    for sizes in ([0, 50, 0], [1, 2, 47], [0, 0, 50], [20, 0, 30]):
        parts = np.split(np.arange(50), np.cumsum(sizes)[:-1])
        exact_on(tensors, arriving, parts, CAUSAL, ring=ring)


@pytest.mark.parametrize("ring", [1, 2, 4])
def test_no_rank_has_a_token(ring):
    tensors, arriving = case(0)
    parts = held("zigzag", 0, 4)
    found = run(tensors, parts, arriving=arriving, attend=ulysses_attention, spec=CAUSAL, layout="zigzag", ring=ring)
    assert [x.shape for x in found] == [(2, 6, 0, 12), (2, 6, 0), (2, 6, 0, 8), (2, 2, 0, 8), (2, 2, 0, 12)]


def test_no_sequence_and_no_head():
    for batch, shared in ((0, 3), (2, 0)):
        tensors, arriving = case(9, batch=batch, group=shared)
        found = run(tensors, held("zigzag", 9, 2), arriving=arriving, attend=ulysses_attention, layout="zigzag")
        assert [len(x) for x in found] == [batch] * 5 and not any(bool(x.any()) for x in found)


def test_heads_alone_are_those_of_one_process():
    """Without a ring every head is attended by one kernel call, so it has the bits that it has on one rank."""
    (q, k, v), _ = case(70)
    alone = local_attention(q, k, v, spec=CAUSAL)
    for ranks in (1, 2, 3):
        out, lse = run((q, k, v), held("zigzag", 70, ranks), attend=ulysses_attention, spec=CAUSAL, layout="zigzag")
        torch.testing.assert_close(out, alone.out, rtol=0, atol=2e-6)
        torch.testing.assert_close(lse, alone.lse, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ring", [1, 2])
def test_other_dtypes(dtype, ring):
    tensors, arriving = case(61, dtype=dtype)
    spec = spec_of("all", 6)
    given = {"attend": ulysses_attention, "spec": spec, "layout": "zigzag", "ring": ring}
    found = run(tensors, held("zigzag", 61, 4), arriving=arriving, **given)
    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype]
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    check(found, exact_of(tensors, spec, arriving), unit=unit)
    check(run(tensors, held("zigzag", 61, 4), **given), exact_of(tensors, spec, arriving)[:2], unit=unit)


def test_queries_of_another_dtype_than_keys():
    (q, k, v), (d_out, d_lse) = case(21)
    tensors = q, k.bfloat16(), v.bfloat16()
    found = run(tensors, held("contiguous", 21, 3), arriving=(d_out, d_lse), attend=ulysses_attention)
    assert [x.dtype for x in found] == [torch.float32] * 3 + [torch.bfloat16] * 2
    check(found, exact_of(tensors, Spec(), (d_out, d_lse)), unit=2.0**-8)


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
        return ulysses_attention(*own, comm, layout="zigzag")

    for mine, out in zip(parts, run_local(on_rank, ranks=3), strict=True):
        assert isinstance(out, np.ndarray) and out.dtype == np.float32
        np.testing.assert_allclose(out, exact[:, :, mine], rtol=0, atol=1e-5)


def test_the_same_call_gives_the_same_bits():
    tensors, arriving = case(45)
    parts = held("zigzag", 45, 4)
    spec = spec_of("all", 6)
    for ring in (1, 2):
        given = {"arriving": arriving, "attend": ulysses_attention, "spec": spec, "layout": "zigzag", "ring": ring}
        first, again = (run(tensors, parts, **given) for _ in range(2))
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_a_ring_of_all_ranks_is_ring_attention():
    tensors, arriving = case(45)
    parts, spec = held("zigzag", 45, 3), spec_of("all", 6)
    given = {"arriving": arriving, "spec": spec, "layout": "zigzag"}
    ring = run(tensors, parts, attend=ring_attention, **given)
    for found, wanted in zip(run(tensors, parts, attend=ulysses_attention, ring=3, **given), ring, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_parts_of_the_gradients():
    """Only some arguments require them, only out or only lse is used, of lse on one rank alone; backward runs twice."""
    tensors, arriving = case(40)
    exact = exact_of(tensors, CAUSAL, arriving)
    parts = held("contiguous", 40, 3)
    on_one = [torch.zeros_like(arriving[0]), arriving[1].clone()]
    on_one[1][:, :, parts[0]] = 0
    on_one[1][:, :, parts[2]] = 0
    of_one = exact_of(tensors, CAUSAL, on_one)[3]

    def on_rank(comm):
        mine = torch.from_numpy(parts[comm.rank])
        q, k, v = (x[:, :, mine] for x in tensors)
        k.requires_grad_()
        d_out, d_lse = (x[:, :, mine] for x in arriving)
        result = ulysses_attention(q, k, v, comm, spec=CAUSAL, return_lse=True)
        of_k = [torch.autograd.grad(result, k, (d_out, d_lse), retain_graph=True)[0] for _ in range(2)]
        assert torch.equal(*of_k)
        used = (result.lse, d_lse) if comm.rank == 1 else (result.out, torch.zeros_like(d_out))
        one = torch.autograd.grad(used[0], k, used[1])[0]
        plain = ulysses_attention(q, k, v, comm, spec=CAUSAL)
        (of_out,) = torch.autograd.grad(plain, k, d_out)
        with torch.no_grad():
            assert not ulysses_attention(q, k, v, comm, spec=CAUSAL).requires_grad
        return of_k[0], one, of_out

    of_out = exact_of(tensors, CAUSAL, (arriving[0], torch.zeros_like(arriving[1])))[3]
    whole = [torch.cat(x, 2) for x in zip(*run_local(on_rank, ranks=3), strict=True)]
    for found, wanted in zip(whole, (exact[3], of_one, of_out), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("differing", "named"),
    [
        ({"ring": 2}, "ring .2, not 1."),
        ({"return_lse": True}, "return_lse .1, not 0."),
        ({"layout": "zigzag"}, "layout"),
    ],
)
def test_ranks_that_differ_are_named_on_all(differing, named):
    (q, k, v), _ = case(8)

    def on_rank(comm):
        with pytest.raises(MismatchError, match=f"ulysses_attention: ranks .1. differ from rank 0.*{named}"):
            ulysses_attention(q, k, v, comm, **(differing if comm.rank == 1 else {}))

    run_local(on_rank, ranks=4)


def test_what_does_not_fit_is_said():
    (q, k, v), _ = case(8)

    def on_rank(comm):
        for ring in (0, 4, True, "no"):
            with pytest.raises(
                OperatorError, match='ring must divide the 6 ranks, so one of 1, 2, 3, 6, or be "auto"; got'
            ):
                ulysses_attention(q, k, v, comm, ring=ring)
        with pytest.raises(OperatorError, match="must be of the same tokens, got 7 queries and 8 keys"):
            ulysses_attention(q[:, :, 1:], k, v, comm)
        with pytest.raises(OperatorError, match="layout must be one of"):
            ulysses_attention(q, k, v, comm, layout="striped")

    run_local(on_rank, ranks=6)
