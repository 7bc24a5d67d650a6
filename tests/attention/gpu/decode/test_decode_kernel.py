"""The decode kernel on latents: keys of 576 items whose first 512 are the values, one key head, many query heads."""

import math

import numpy as np
import pytest
import torch

from attention import Spec
from attention.gpu.decode import decode
from attention.gpu.decode.decode import decode_partial
from attention.gpu.decode.decode_table import Cut, problem_of
from attention.partial import Partial
from tests.attention.gpu.inputs import DEVICE, assert_close, formula, made, paged, poisoned
from topocomm import OperatorError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NumPy
D, D_V = 576, 512


def latents(seed, batch, heads, q_len, n, dtype=torch.bfloat16, d=D, d_v=D_V):
    """(q, k, v) with v in the memory of k."""
    q, k, _ = made(seed, batch, heads, 1, q_len, n, d, 1, dtype)
    return q / 4, k, k[..., :d_v]


def check(q, k, v, spec=None, *, kv=None, **where):
    spec = Spec() if spec is None else spec
    found = Partial(*poisoned(q, v))
    tables = where.pop("block_tables", None)
    decode_partial(q, *(kv or (k, v)), spec=spec, out=found, block_tables=tables, **where)
    assert_close(found, formula(q, k, v, spec, **where))
    return found


@pytest.fixture
def two_splits(monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda n, programs, slots: 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "q_len", "n"), [(16, 1, 67), (40, 1, 33), (128, 1, 40), (16, 3, 50), (16, 1, 0)])
def test_values_in_the_memory_of_the_keys(two_splits, dtype, heads, q_len, n):
    q, k, v = latents(1, 1 if heads > 16 else 2, heads, q_len, n, dtype)
    check(q, k, v)
    if n < 50:
        check(q, k, v.clone())


def test_values_are_not_read_on_their_own(monkeypatch):
    """With no memory behind v the kernel still finds the values, in k."""
    launched = []
    kernel = decode._kernel()

    class Spy:
        def __getitem__(self, grid):
            def launch(q, k, v, *rest, **options):
                launched.append(options["SHARED"])
                kernel[grid](q, k, torch.empty(0, dtype=k.dtype) if options["SHARED"] else v, *rest, **options)

            return launch

    decode.interpreted()  # kept before its kernel is another
    monkeypatch.setattr(decode, "_kernel", Spy)
    q, k, v = latents(2, 1, 16, 1, 40)
    check(q, k, v)
    check(q, k, v.clone())
    check(q, k, k[..., 64:])  # columns, but not the first
    assert launched == [True, False, False]


@pytest.mark.parametrize(("d", "d_v"), [(32, 32), (40, 8), (80, 80), (80, 65), (96, 64), (576, 576), (320, 256)])
def test_other_widths_in_one_memory(d, d_v):
    check(*latents(3, 1, 4, 2, 37, d=d, d_v=d_v), Spec(causal=True))


@pytest.mark.parametrize(("d", "d_v"), [(64, 576), (576, 100), (512, 512)])
def test_wide_heads_apart(d, d_v):
    check(*made(4, 1, 4, 2, 1, 41, d, d_v, torch.float16))


def test_positions_lengths_and_pages(two_splits):
    random = np.random.default_rng(5)
    q, k, v = latents(5, 2, 16, 2, 60)
    lengths = torch.tensor([60, 21], device=DEVICE)
    check(q, k, v, Spec(causal=True, softcap=4.0), kv_lengths=lengths)
    pages, _, tables = paged(random, k, v, 16)
    check(q, k, v, Spec(causal=True), kv=(pages, pages[..., :D_V]), kv_lengths=lengths, block_tables=tables)


@pytest.mark.parametrize("spec", [Spec(causal=True), Spec(causal=True, window=9), Spec(window=9)], ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_keys_between_windows_may_hold_nan(spec, shared):
    """Two queries far apart: what neither sees, between them too, does not matter."""
    q, k, v = latents(6, 1, 16, 2, 80, d=80, d_v=64)
    where = {"q_positions": torch.tensor([5, 60], device=DEVICE), "kv_positions": torch.arange(80, device=DEVICE)}
    wanted = formula(q, k, v, spec, **where)
    apart = where["q_positions"][:, None] - where["kv_positions"]
    seen = apart >= 0 if spec.causal else torch.ones_like(apart, dtype=torch.bool)
    if spec.window is not None:
        seen &= apart.abs() < spec.window
    hidden = ~seen.any(0)
    assert hidden[20:50].any() or spec.window is None
    k = k.clone()
    k[:, :, hidden] = math.nan
    v = k[..., :64] if shared else k[..., :64].clone()
    assert_close(decode_partial(q, k, v, spec=spec, **where), wanted)


def test_eight_bits_with_scales():
    q, k, _ = latents(7, 1, 16, 1, 50)
    small = (k.float() * 2).to(torch.float8_e4m3fn)
    scales = torch.tensor([0.5], device=DEVICE)
    found = decode_partial(q, small, small[..., :D_V], k_scales=scales, v_scales=scales)
    wide = small.double() / 2
    assert_close(found, formula(q, wide, wide[..., :D_V], Spec()))


def test_float32_is_not_so_wide():
    with pytest.raises(OperatorError, match=r"head dims of torch.float32 must be 1 to 256, got .* 576"):
        decode_partial(*latents(8, 1, 16, 1, 20, torch.float32))
    with pytest.raises(OperatorError, match=r"head dims of torch.bfloat16 must be 1 to 576, got .* 577"):
        decode_partial(*latents(8, 1, 16, 1, 20, d=577))


def test_the_cut_of_latents_is_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(decode, "cut_for", lambda problem: asked.append(problem) or Cut(16, 4, 1))
    check(*latents(9, 1, 128, 1, 20))
    assert asked == [problem_of("interpreter", 2, 576, 128, shared=True)]
    assert asked[0].rows == 32
