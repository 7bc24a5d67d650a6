import math
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import given

from attention.merge import merge_states as merging
from attention.merge.merge_states import merge_states
from tests.attention.merge.test_logsumexp import EMPTY, exact, fold, partial, partials
from tests.thinning import alternating
from topocomm import OperatorError

INF, NAN = math.inf, math.nan


@pytest.fixture(params=["kernel", "operator", "formula"])
def path(request, monkeypatch):
    """Every way in which states are folded: compiled, NumPy where numba is missing, torch off the CPU."""
    if request.param == "operator":
        monkeypatch.setattr(merging, "_bind", lambda: None)
    if request.param == "formula":
        monkeypatch.setattr(merging, "_bind", lambda: None)
        monkeypatch.setattr(merging, "fold_on_host", merging._fold_by_formula)
    return request.param


def states(*parts):
    """(outs, lses) of lists."""
    outs, lses = zip(*parts, strict=True)
    return torch.tensor(outs), torch.tensor(lses)


def same_bits(got, out, lse):
    for mine, other in ((got.out, out), (got.lse, lse)):
        mine, other = mine.numpy(), np.asarray(other, np.float32)
        assert mine.dtype == np.float32 and mine.shape == other.shape
        assert mine.tobytes() == other.tobytes()


def test_vectors_of_vllm_in_base_e(path):
    got = merge_states(*states(([2.0, 4.0], 1.0), ([6.0, 8.0], 2.0)))
    np.testing.assert_allclose(got.out, [4.924234, 6.924234], atol=1e-6)
    np.testing.assert_allclose(got.lse, 2.313262, atol=1e-6)


def test_vectors_of_vllm_in_base_2_give_a_natural_logarithm(path):
    got = merge_states(*states(([1.0, 2.0], 1.0), ([3.0, 4.0], 2.0)), base=2)
    np.testing.assert_allclose(got.out, [2.333333, 3.333333], atol=1e-6)
    np.testing.assert_allclose(got.lse, math.log(6), atol=1e-6)  # log2 6 = 2.584963 times ln 2


@pytest.mark.parametrize(
    ("logarithm", "base", "weights"),
    [
        (math.log, "e", (0.2, 0.8)),
        (math.log2, 2, (0.2, 0.8)),
        (math.log, 2, (0.27670, 0.72330)),  # ln read as log2
        (math.log2, "e", (0.11920, 0.88080)),  # log2 read as ln
    ],
)
def test_bases_are_told_apart(path, logarithm, base, weights):
    got = merge_states(*states(([1.0, 0.0], logarithm(2)), ([0.0, 1.0], logarithm(8))), base=base)
    np.testing.assert_allclose(got.out, weights, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_equal_lse_gives_the_mean(path, count):
    outs = torch.arange(count * 3, dtype=torch.float32).view(count, 3)
    got = merge_states(outs, torch.full((count,), 5.0))
    np.testing.assert_allclose(got.out, outs.mean(0), atol=2e-6)
    np.testing.assert_allclose(got.lse, 5 + math.log(count), atol=1e-6)


def test_a_dominant_state_wins(path):
    got = merge_states(*states(([3.0, 5.0], -100.0), ([-1.0, 2.0], 0.0)))
    np.testing.assert_allclose(got.out, [-1, 2], atol=1e-5)
    same_bits(merge_states(*states(([NAN, INF], -200.0), ([-1.0, 2.0], 0.0))), [-1, 2], 0)


@pytest.mark.parametrize("junk", [0.0, NAN, INF, -INF])
def test_an_empty_state_changes_nothing_whatever_it_holds(path, junk):
    out, lse = [[0.1, -0.0, 3e38], [1e-40, 2.0, 3.0]], [7.25, -1e30]
    empty = [[junk] * 3] * 2, [-INF, -INF]
    value = out, lse
    for parts in ((value,), (value, empty), (empty, value), (empty, value, empty), (empty, empty, value)):
        same_bits(merge_states(*states(*parts)), out, lse)
    for count in (1, 2, 3):
        same_bits(merge_states(*states(*[empty] * count)), np.zeros((2, 3)), lse=[-INF, -INF])


def test_rows_are_empty_one_by_one(path):
    a = [[1.0, 2.0], [NAN, NAN], [3.0, 4.0], [NAN, 1.0]], [1.0, -INF, 2.0, -INF]
    b = [[NAN, NAN], [5.0, 6.0], [7.0, 8.0], [INF, NAN]], [-INF, 3.0, 2.0, -INF]
    got = merge_states(*states(a, b))
    assert got.out.tolist() == [[1, 2], [5, 6], [5, 6], [0, 0]]
    assert got.lse[[0, 1, 3]].tolist() == [1, 3, -INF]


@pytest.mark.parametrize("lse", [NAN, INF])
@pytest.mark.parametrize("count", [2, 3])
def test_a_lse_that_is_no_number_stays_visible(path, lse, count):
    got = merge_states(*states(*[([1.0], lse)] * count))
    assert got.out.isnan().all() and got.lse.isnan()
    for others in ([([2.0], 1.0)] * (count - 1), [([2.0], -INF), *[([2.0], 1.0)] * (count - 1)]):
        for parts in ([([1.0], lse), *others], [*others, ([1.0], lse)]):
            got = merge_states(*states(*parts))
            assert got.out.isnan().all() and got.lse.isnan()
    for parts in ([([1.0], lse)], [([1.0], lse), ([2.0], -INF)]):
        assert merge_states(*states(*parts)).lse.isnan()


def test_a_shift_of_all_lse_moves_nothing_else(path):
    generator = torch.Generator().manual_seed(3)
    outs, lses = torch.randn(4, 5, 7, generator=generator), torch.randint(-8, 8, (4, 5), generator=generator) / 4
    plain, moved = merge_states(outs, lses), merge_states(outs, lses + 16)
    np.testing.assert_allclose(moved.out, plain.out, atol=2e-6)
    np.testing.assert_allclose(moved.lse, plain.lse + 16, atol=4e-6)


@given(partials())
def test_the_bits_are_those_of_the_operator(parts):
    outs, lses = (torch.from_numpy(np.stack([part[name] for part in parts])) for name in ("out", "lse"))
    for kernel in (True, False):
        expected = fold(parts, kernel=kernel)
        with pytest.MonkeyPatch.context() as patch:
            if not kernel:
                patch.setattr(merging, "_bind", lambda: None)
            got = merging.Partial(*merging.fold_on_host(list(outs), list(lses)))
        same_bits(got, expected["out"], expected["lse"])
    assert merging._bind() is not None
    same_bits(merge_states(outs, lses), fold(parts)["out"], fold(parts)["lse"])


@given(partials())
def test_the_torch_formula_is_that_of_the_operator(parts):
    # exp and log of torch may round otherwise than NumPy's, by a unit in the last place of a weight.
    outs, lses = ([torch.from_numpy(part[name]) for part in parts] for name in ("out", "lse"))
    out, lse = merging._fold_by_formula(outs, lses)
    expected = exact(parts)
    largest = max(1e-6, *(float(np.abs(part["out"]).max()) for part in parts))
    np.testing.assert_allclose(out, expected["out"], rtol=0, atol=1e-6 * largest)
    np.testing.assert_allclose(lse, expected["lse"], rtol=3e-7, atol=1e-6)
    assert ((out == 0).all(-1) | (lse > EMPTY)).all()


@pytest.mark.parametrize("shape", [(3, 0, 5), (2, 4, 0), (3, 7), (2, 1, 1), (5, 2, 3, 4, 19), (3, 300, 17)], ids=str)
def test_shapes_and_strides(path, shape):
    rng = np.random.default_rng(0)
    outs, lses = rng.standard_normal(shape, np.float32), 3 * rng.standard_normal(shape[:-1], np.float32)
    expected = exact([{"out": out, "lse": lse} for out, lse in zip(outs, lses, strict=True)])
    packed = torch.from_numpy(outs), torch.from_numpy(lses)
    room = torch.full((*shape[:-1], 2 * shape[-1]), NAN)
    room[..., ::2] = packed[0]
    reverse = range(len(shape) - 1, -1, -1)
    backwards = torch.from_numpy(outs.transpose(*reverse).copy()).permute(*reverse)
    for given_outs, given_lses in (
        packed,
        (list(packed[0]), tuple(packed[1])),
        (room[..., ::2], packed[1].T.contiguous().T if len(shape) == 3 else packed[1]),
        (backwards, packed[1]),
    ):
        got = merge_states(given_outs, given_lses)
        assert got.out.shape == shape[1:] and got.lse.shape == shape[1:-1]
        assert got.out.is_contiguous() and got.lse.is_contiguous()
        np.testing.assert_allclose(got.out, expected["out"], atol=1e-5)
        np.testing.assert_allclose(got.lse, expected["lse"], atol=1e-5)


def test_one_key_head_expanded_over_rows(path):
    outs = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0)).expand(3, 5, 4)
    lses = torch.tensor([[1.0], [2.0], [0.5]]).expand(3, 5)
    got = merge_states(outs, lses)
    same_bits(got, *(x.numpy() for x in merge_states(outs.contiguous(), lses.contiguous())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_outs_are_merged_and_returned_in_float32(path, dtype):
    outs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    lses = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    same_bits(merge_states(outs, lses), *(x.numpy() for x in merge_states(outs.float(), lses)))


def test_arguments_stay_and_the_result_is_new_memory(path):
    for count in (1, 2):
        outs, lses = torch.ones(count, 3, 4), torch.zeros(count, 3)
        got = merge_states(outs, lses)
        got.out.fill_(9), got.lse.fill_(9)
        assert (outs == 1).all() and (lses == 0).all()


def reference(outs, lses):
    """The merge in float64, differentiable by torch, with empty states left out."""
    empty = lses == -INF
    lse = lses.logsumexp(0)
    weights = torch.where(empty, 0.0, (lses - torch.where(lse == -INF, 0.0, lse)).exp())
    return (weights[..., None] * torch.where(empty[..., None], 0.0, outs)).sum(0), lse


@pytest.mark.parametrize("base", ["e", 2])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_gradients(path, count, base):
    generator = torch.Generator().manual_seed(count)
    outs, lses = torch.randn(count, 4, 3, 7, generator=generator), 3 * torch.randn(count, 4, 3, generator=generator)
    up_out, up_lse = torch.randn(4, 3, 7, generator=generator), torch.randn(4, 3, generator=generator)
    if count > 1:
        lses[0, 1] = lses[1, 2, 0] = -INF  # states that are empty in some rows
        outs[0, 1] = NAN
    wide = [x.double().requires_grad_() for x in (outs, lses)]
    out, lse = reference(wide[0], wide[1] * (math.log(2) if base == 2 else 1))
    ((out * up_out).sum() + (lse * up_lse).sum()).backward()
    mine = [x.clone().requires_grad_() for x in (outs, lses)]
    got = merge_states(*mine, base=base)
    ((got.out * up_out).sum() + (got.lse * up_lse).sum()).backward()
    for ours, theirs in zip(mine, wide, strict=True):
        np.testing.assert_allclose(ours.grad, theirs.grad.nan_to_num(0.0), atol=3e-6)


def test_gradients_of_rows_that_are_empty_everywhere_are_0(path):
    outs = torch.full((3, 2, 4), NAN, requires_grad=True)
    lses = torch.full((3, 2), -INF, requires_grad=True)
    got = merge_states(outs, lses)
    (got.out.sum() + got.lse.nan_to_num(neginf=0.0).sum()).backward()
    assert (outs.grad == 0).all() and (lses.grad == 0).all()


def test_gradients_of_one_of_the_results_and_of_16_bit_outs(path):
    outs = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    lses = torch.tensor([[0.0, 1.0, 2.0]] * 2, requires_grad=True)
    merge_states(outs, lses).lse.sum().backward()
    assert (lses.grad == 0.5).all() and (outs.grad == 0).all()
    merge_states(outs, lses.detach()).out.sum().backward()
    assert outs.grad.dtype == torch.bfloat16 and (outs.grad == 0.5).all()


@pytest.mark.parametrize(
    ("shape", "requires_grad"), alternating([(3, 2, 5, 7), (1, 4), (2, 0, 3)], [True, False]), ids=str
)
def test_it_is_a_well_formed_operation_of_torch(shape, requires_grad):
    generator = torch.Generator().manual_seed(0)
    outs = [torch.randn(shape[1:], generator=generator).requires_grad_(requires_grad) for _ in range(shape[0])]
    lses = [torch.randn(shape[1:-1], generator=generator).requires_grad_(requires_grad) for _ in range(shape[0])]
    torch.library.opcheck(torch.ops.attention.merge_states.default, (outs, lses))


def compiled_like_eager(backend):
    torch._dynamo.reset()
    compiled = torch.compile(merge_states, fullgraph=True, backend=backend)
    for rows in (4, 6, 9):  # the second shape compiles anew, with a symbolic size
        generator = torch.Generator().manual_seed(rows)
        outs, lses = torch.randn(3, rows, 7, generator=generator), torch.randn(3, rows, generator=generator)
        lses[1, 0], outs[1, 0] = -INF, NAN
        for given_outs, options in ((outs, {}), (list(outs.bfloat16()), {"base": 2})):
            expected = merge_states(given_outs, lses, **options)
            same_bits(compiled(given_outs, lses, **options), *(x.numpy() for x in expected))
        grads = []
        for function in (merge_states, compiled):
            mine = [x.clone().requires_grad_() for x in (outs, lses)]
            got = function(*mine)
            (got.out.square().sum() + got.lse.sum()).backward()
            grads.append([x.grad for x in mine])
        for eager, other in zip(*grads, strict=True):
            np.testing.assert_allclose(other, eager, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def test_it_compiles_whole(backend):
    compiled_like_eager(backend)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # inductor imports what torch deprecates
def test_it_compiles_whole_with_inductor():
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    compiled_like_eager("inductor")


def test_meta_tensors_have_the_shapes():
    got = merge_states(
        torch.empty(3, 2, 5, 7, device="meta", dtype=torch.bfloat16), torch.empty(3, 2, 5, device="meta")
    )
    assert got.out.shape == (2, 5, 7) and got.lse.shape == (2, 5)
    assert got.out.dtype == got.lse.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda():
    rng = np.random.default_rng(0)
    parts = [partial(rng.standard_normal((40, 19)), 3 * rng.standard_normal(40)) for _ in range(5)]
    parts[2]["lse"][3], parts[2]["out"][3] = EMPTY, NAN
    outs, lses = (torch.from_numpy(np.stack([part[name] for part in parts])).cuda() for name in ("out", "lse"))
    got, expected = merge_states(outs, lses), fold(parts)
    np.testing.assert_allclose(got.out.cpu(), expected["out"], atol=1e-6)
    np.testing.assert_allclose(got.lse.cpu(), expected["lse"], atol=1e-6)


def test_without_the_compiled_part_the_operator_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "attention.kernels.cpu_merge", None)
    assert merging._bind.__wrapped__() is None


ONES, ZEROS = torch.ones(2, 3, 4), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((torch.ones(0, 3, 4), torch.zeros(0, 3)), ["equally many states, at least 1, got 0 and 0"]),
        (([], []), ["equally many states, at least 1, got 0 and 0"]),
        ((torch.tensor(1.0), torch.tensor(1.0)), ["outs must be [n_states, ...], got a scalar"]),
        ((torch.ones(2), torch.ones(2)), ["a state of outs must be [*rows, dim], got a scalar"]),
        ((ONES, torch.zeros(3, 3)), ["equally many states", "2 and 3"]),
        ((ONES, torch.zeros(2, 4)), ["state 0 must have out [3, 4] and lse [3], got [3, 4] and [4]"]),
        (([ONES[0], ONES[0, :2]], ZEROS), ["state 1 must have out [3, 4]", "[2, 4]"]),
        ((ONES.double(), ZEROS), ["outs must be float32, bfloat16 or float16, got torch.float64"]),
        ((ONES, ZEROS.bfloat16()), ["lses must be float32, got torch.bfloat16", "from the kernel"]),
        ((ONES, ZEROS.to("meta")), ["all states must be on cpu", "meta"]),
        ((ONES.numpy(), ZEROS), ["outs must be torch tensors, got ndarray"]),
        (([ONES[0], None], ZEROS), ["outs must be torch tensors, got NoneType"]),
    ],
)
def test_what_does_not_fit_is_named(arguments, parts):
    with pytest.raises(OperatorError) as raised:
        merge_states(*arguments)
    assert str(raised.value).startswith("merge_states: ") and "\n" not in str(raised.value)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize("base", [10, "2", math.e])
def test_bases_are_e_and_2(base):
    with pytest.raises(OperatorError, match=r"^merge_states: base must be 'e' or 2, got "):
        merge_states(ONES, ZEROS, base=base)
