import math

import numpy as np
import pytest
import torch

from attention.local.conventions import CONVENTIONS, Convention
from attention.local.normalise import as_partial
from attention.merge.merge_states import merge_states
from attention.reference import reference_attention
from tests.attention.cases import arrays, assert_close
from topocomm import OperatorError

INF, NAN = math.inf, math.nan
SHAPE = (2, 3, 2, 5, 7, 16, 24)  # batch, kv_heads, group, q_len, n, d, d_v: all differ
TELLING = [name for name, convention in CONVENTIONS.items() if convention.empty_lse]
SILENT = [name for name, convention in CONVENTIONS.items() if not convention.empty_lse]


@pytest.fixture(params=CONVENTIONS)
def convention(request):
    return CONVENTIONS[request.param]


def exact(convention, seed=0, empty=None):
    """(out, lse, empty) [batch, heads, q_len, ...] in float64; of batch 1 where the family knows no batch."""
    got = reference_attention(*arrays(SHAPE, seed=seed))
    batch = 2 if "b" in convention.out_layout else 1
    out, lse = torch.from_numpy(got.out[:batch]), torch.from_numpy(got.lse[:batch])
    if empty is None:
        empty = torch.from_numpy(np.random.default_rng(seed).random(lse.shape) < 0.3)
    return out.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -INF), empty


def in_layout(x, axes, layout):
    """[batch, heads, q_len, ...] with the axes of the layout."""
    if "1" in layout:
        x, axes = x[..., None], axes + "1"
    if "b" not in layout:
        x, axes = x[0], axes[1:]
    return x.permute([axes.index(axis) for axis in layout]).contiguous()


def as_kernel(partial, convention, *, empty_lse=0.0, empty_out=0.0):
    """The partial as a kernel of this family returns it, with these values in empty rows."""
    out, lse, empty = partial
    lse = lse / math.log(2) if convention.base == 2 else lse
    lse = in_layout(lse.masked_fill(empty, empty_lse), "bhq", convention.lse_layout).float()
    out = in_layout(out.masked_fill(empty[..., None], empty_out), "bhqd", convention.out_layout).float()
    padding = -lse.shape[-1] % convention.lse_rows_multiple
    return out, torch.nn.functional.pad(lse, (0, padding), value=INF)


def check(got, partial):
    out, lse, _ = partial
    assert got.out.dtype == got.lse.dtype == torch.float32
    assert_close(got.out, out.numpy(), atol=1e-6)
    assert_close(got.lse, lse.numpy(), atol=2e-6)
    assert (got.out[lse == -INF] == 0).all()


@pytest.mark.parametrize("name", TELLING)
def test_a_family_that_marks_its_empty_rows(name):
    convention = CONVENTIONS[name]
    partial = exact(convention)
    for empty_lse in convention.empty_lse:
        check(as_partial(*as_kernel(partial, convention, empty_lse=empty_lse), convention), partial)


def test_the_caller_says_which_rows_are_empty(convention):
    partial = exact(convention)
    for empty_lse in (0.0, -49993.98, -3.4e38, INF, -INF, NAN):
        for empty_out in (0.0, 7.0, NAN, INF):
            kernel = as_kernel(partial, convention, empty_lse=empty_lse, empty_out=empty_out)
            check(as_partial(*kernel, convention, empty=partial[2]), partial)


def test_empty_rows_may_be_told_once_for_all_heads(convention):
    rows = torch.tensor([True, False, False, True, False])
    partial = exact(convention, empty=rows)
    check(as_partial(*as_kernel(partial, convention), convention, empty=rows), partial)
    none = exact(convention, empty=torch.tensor(False))
    check(as_partial(*as_kernel(none, convention), convention, empty=torch.tensor(False)), none)


@pytest.mark.parametrize("name", SILENT)
def test_where_lse_does_not_tell_nothing_is_guessed(name):
    convention = CONVENTIONS[name]
    with pytest.raises(OperatorError, match=r"does not tell which rows saw no key; give empty="):
        as_partial(*as_kernel(exact(convention), convention), convention)


@pytest.mark.parametrize("name", TELLING)
def test_what_out_holds_beside_the_mark(name):
    # Where a family documents zeros, NaN there is data that was lost: its kernels mark NaN sums like empty rows.
    convention = CONVENTIONS[name]
    partial = exact(convention)
    empty = partial[2]
    kernel = as_kernel(partial, convention, empty_lse=convention.empty_lse[0], empty_out=NAN)
    got = as_partial(*kernel, convention)
    if convention.empty_out == "any":
        check(got, partial)
    else:
        assert got.lse[empty].isnan().all() and got.out[empty].isnan().all()
        assert got.lse[~empty].isfinite().all()


@pytest.mark.parametrize("lost", [NAN, INF, -INF])
def test_a_row_with_keys_whose_lse_is_no_number_becomes_nan(convention, lost):
    out, lse, empty = exact(convention)
    row = tuple((~empty).nonzero()[3].tolist())
    lse[row] = lost
    got = as_partial(*as_kernel((out, lse, empty), convention), convention, empty=empty)
    assert got.lse[row].isnan() and got.out[row].isnan().all()
    assert got.lse.isnan().sum() == 1
    merged = merge_states([got.out, got.out], [got.lse, got.lse])
    assert merged.lse[row].isnan() and merged.out[row].isnan().all()


def test_a_slip_of_layout_is_refused(convention):
    partial = exact(convention)
    out, lse = as_kernel(partial, convention)
    swapped = lse.transpose(convention.lse_layout.index("h"), convention.lse_layout.index("q"))
    with pytest.raises(OperatorError, match=r"^as_partial: out and lse must agree in \[batch, heads, q_len\], got \["):
        as_partial(out, swapped, convention, empty=partial[2])
    swapped = out.transpose(convention.out_layout.index("h"), convention.out_layout.index("q"))
    with pytest.raises(OperatorError, match=r"^as_partial: out and lse must agree"):
        as_partial(swapped, lse, convention, empty=partial[2])
    with pytest.raises(OperatorError, match=r"^as_partial: this convention has out as \[.*d\], got \[1, "):
        as_partial(out[None], lse, convention, empty=partial[2])


def test_what_else_does_not_fit_is_named(convention):
    partial = exact(convention)
    out, lse = as_kernel(partial, convention)
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(OperatorError, match=rf"has lse in float32, got {dtype}"):
            as_partial(out, lse.to(dtype), convention, empty=partial[2])
    with pytest.raises(OperatorError, match=r"empty must be bool, .*, got torch\.float32"):
        as_partial(out, lse, convention, empty=partial[2].float())
    with pytest.raises(
        OperatorError, match=r"empty must broadcast to \[batch, heads, q_len\] = \[., 6, 5\], got \[7\]"
    ):
        as_partial(out, lse, convention, empty=torch.zeros(7, dtype=torch.bool))
    with pytest.raises(OperatorError, match=r"out must be a torch tensor, got ndarray"):
        as_partial(out.numpy(), lse, convention, empty=partial[2])


def test_16_bit_out_becomes_float32():
    convention = CONVENTIONS["flash_attn 2"]
    out, lse = as_kernel(exact(convention), convention, empty_lse=INF)
    got = as_partial(out.bfloat16(), lse, convention)
    assert got.out.dtype == torch.float32
    assert torch.equal(got.out, out.bfloat16().float().permute(0, 2, 1, 3))


def test_the_default_dtype_does_not_matter():
    convention = CONVENTIONS["flash_attn 2"]
    partial = exact(convention)
    kernel = as_kernel(partial, convention, empty_lse=INF)
    torch.set_default_dtype(torch.float64)
    try:
        check(as_partial(*kernel, convention), partial)
    finally:
        torch.set_default_dtype(torch.float32)


def test_padding_of_lse_is_cut_off_or_absent():
    convention = CONVENTIONS["torch efficient"]  # absent with ROCm
    partial = exact(convention)
    out, lse = as_kernel(partial, convention)
    assert lse.shape == (2, 6, 32)
    for given in (lse, lse[:, :, :5]):
        check(as_partial(out, given, convention, empty=partial[2]), partial)
    with pytest.raises(OperatorError, match="must agree"):
        as_partial(out, lse[:, :, :16], convention, empty=partial[2])


def test_bases_are_told_apart():
    convention = CONVENTIONS["FlashInfer"]
    kernel = torch.ones(1, 1, 4), torch.tensor([[3.0]])
    assert as_partial(*kernel, convention).lse.item() == np.float32(3 * math.log(2))
    natural = Convention("e", "qhd", "qh", (-INF,), "any", "here")
    assert as_partial(*kernel, natural).lse.item() == 3.0


def test_partials_of_all_families_merge():
    partials, exacts = [], []
    for seed, convention in enumerate(CONVENTIONS.values()):
        partial = exact(convention, seed)
        mark = {"empty_lse": convention.empty_lse[0]} if convention.empty_lse else {}
        empty = None if mark else partial[2]
        partials.append(as_partial(*as_kernel(partial, convention, **mark), convention, empty=empty))
        exacts.append(partial)
    entry = [(out[0], lse[0]) for out, lse in partials]
    merged = merge_states(*zip(*entry, strict=True))
    lses = torch.stack([lse[0] for _, lse, _ in exacts])
    weights = (lses - lses.logsumexp(0)).exp()
    assert_close(merged.lse, lses.logsumexp(0).numpy(), atol=5e-6)
    outs = torch.stack([out[0] for out, _, _ in exacts])
    assert_close(merged.out, (weights[..., None] * outs).sum(0).numpy(), atol=5e-6)


def test_it_compiles_whole():
    torch._dynamo.reset()
    compiled = torch.compile(as_partial, fullgraph=True, backend="eager")
    for name in ("flash_attn 3", "FlashInfer", "torch cuDNN"):
        convention = CONVENTIONS[name]
        partial = exact(convention)
        kernel = as_kernel(partial, convention, empty_lse=-INF)
        options = {} if convention.empty_lse else {"empty": partial[2]}
        check(compiled(*kernel, convention, **options), partial)
    torch._dynamo.reset()
