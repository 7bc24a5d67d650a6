"""The merge of partials by Triton, in its interpreter: bit for bit that of the CPU."""

import tests.interpreted  # isort: skip first, since it imports triton

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP, merge_states
from attention.gpu import gpu_merge
from attention.gpu.gpu_merge import MOST_STATES, merge_on_device
from attention.merge import merge_states as merging
from tests.attention.merge.test_logsumexp import exact
from tests.attention.merge.test_logsumexp import fold as cpu_fold
from tests.operators.kernels.device import device_fold
from tests.operators.packed import assert_same_bits

assert tests.interpreted
EMPTY = -np.inf
SPECIAL = [EMPTY, np.nan, np.inf, 1e30, -1e30, 0, 5, -200.5]


def partials(rng, rows, dim, count, special=0.3):
    """Partials with ordinary and special lse; what empty rows hold is NaN, except in the first one."""
    made = []
    for number in range(count):
        lse, out = rng.normal(0, 30, rows).astype(np.float32), rng.normal(size=(rows, dim)).astype(np.float32)
        odd = rng.random(rows) < special
        lse[odd] = rng.choice(SPECIAL, odd.sum())
        wild = rng.random(out.shape) < special / 10
        out[wild] = rng.choice([np.inf, -np.inf, np.nan, 3e38, 1e-42], wild.sum())
        out[lse == EMPTY] = np.nan if number else 0
        made.append({"out": out, "lse": lse})
    return made


def layout_of(parts):
    return LOGSUMEXP.layout({name: (array.shape, array.dtype) for name, array in parts[0].items()})


def by_states(parts):
    with np.errstate(all="ignore"):
        out, lse = merge_on_device(*([torch.from_numpy(p[name]) for p in parts] for name in ("out", "lse")))
    return {"out": out.numpy(), "lse": lse.numpy()}


def by_fold(parts):
    return device_fold(LOGSUMEXP, layout_of(parts), parts)


both = pytest.mark.parametrize("merged", [by_states, by_fold])


@both
@pytest.mark.parametrize("count", [*range(1, 10), 16])
def test_the_bits_of_the_cpu(merged, count):
    parts = partials(np.random.default_rng(count), 9, 5, count)
    assert_same_bits(merged(parts), cpu_fold(parts))


@both
def test_every_pair_of_edges(merged):
    edges = np.array([*SPECIAL, -0.0, 1e-40, -150, -103.9, 88.8, 16.5], np.float32)
    left, right = (side.ravel() for side in np.meshgrid(edges, edges))
    out = np.random.default_rng(0).normal(size=(2, len(left), 3)).astype(np.float32)
    parts = [{"out": out[0], "lse": left}, {"out": out[1], "lse": right}]
    assert_same_bits(merged(parts), cpu_fold(parts))


@both
@pytest.mark.parametrize("dim", [1, 3, 128, 129])
@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_shapes(merged, rows, dim):
    parts = partials(np.random.default_rng(dim), rows, dim, 3)
    assert_same_bits(merged(parts), cpu_fold(parts))


@both
def test_the_n_way_fold_is_the_merge_of_two_repeated(merged):
    parts = partials(np.random.default_rng(0), 40, 8, 7)
    acc = parts[0]
    for part in parts[1:]:
        acc = merged([acc, part])
    assert_same_bits(merged(parts), acc)


@both
def test_the_formula_in_float64(merged):
    parts = partials(np.random.default_rng(1), 64, 16, 6, special=0)
    got, expected = merged(parts), exact(parts)
    np.testing.assert_allclose(got["out"], expected["out"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(got["lse"], expected["lse"], rtol=3e-7, atol=1e-6)


@both
def test_what_is_empty_is_exact_and_hides_nan(merged):
    value = {"out": np.array([[0.1, -0.0, 3e38], [1e-40, 2, 3]], np.float32), "lse": np.array([7.25, -1e30], "f4")}
    empty = {"out": np.full((2, 3), np.nan, np.float32), "lse": np.full(2, EMPTY, np.float32)}
    for parts in ([value, empty], [empty, value], [empty, value, empty]):
        assert_same_bits(merged(parts), value)
    nothing = {"out": np.zeros((2, 3), np.float32), "lse": empty["lse"]}
    assert_same_bits(merged([empty, empty]), nothing)
    assert_same_bits(merged([empty] * 9), nothing)


def test_a_single_empty_state_is_zero_whatever_it_holds():
    got = by_states([{"out": np.array([[np.nan], [2]], np.float32), "lse": np.array([EMPTY, 1], np.float32)}])
    assert got["out"].tolist() == [[0], [2]]


@pytest.mark.parametrize("count", [MOST_STATES + 1, 2 * MOST_STATES])
def test_more_states_than_one_launch_takes(count, monkeypatch):
    launches = []
    launch = gpu_merge._launch
    monkeypatch.setattr(gpu_merge, "_launch", lambda *args: (launches.append(len(args[0])), launch(*args)))
    parts = partials(np.random.default_rng(count), 5, 4, count)
    assert_same_bits(by_states(parts), cpu_fold(parts))
    assert len(launches) == 1 + -(-(count - MOST_STATES) // (MOST_STATES - 1))


def test_up_to_16_states_are_one_launch_and_leave_their_arguments_alone(monkeypatch):
    launches = []
    launch = gpu_merge._launch
    monkeypatch.setattr(gpu_merge, "_launch", lambda *args: (launches.append(1), launch(*args)))
    parts = partials(np.random.default_rng(3), 300, 16, MOST_STATES, special=0)
    before = [{name: array.copy() for name, array in part.items()} for part in parts]
    assert_same_bits(by_states(parts), cpu_fold(before))
    assert len(launches) == 1
    for part, copy in zip(parts, before, strict=True):
        assert_same_bits(part, copy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_and_strided_states(dtype):
    generator = torch.Generator().manual_seed(0)
    outs = torch.randn(3, 7, 2, 5, generator=generator).to(dtype).transpose(1, 2)
    lses = torch.randn(3, 7, 2, generator=generator).transpose(1, 2)
    out, lse = merge_on_device(list(outs), list(lses))
    assert out.shape == (2, 7, 5) and out.dtype == lse.dtype == torch.float32
    parts = [{"out": o.float().numpy(), "lse": x.numpy()} for o, x in zip(outs, lses, strict=True)]
    expected = cpu_fold([{name: np.ascontiguousarray(array) for name, array in part.items()} for part in parts])
    assert_same_bits({"out": out.numpy(), "lse": lse.numpy()}, expected)


def test_rows_without_dims():
    out, lse = merge_on_device([torch.zeros(3, 0)] * 2, [torch.zeros(3)] * 2)
    assert out.shape == (3, 0)
    np.testing.assert_allclose(lse, np.log(2), rtol=1e-6)


@pytest.mark.parametrize("into", [0, 1])
def test_the_result_may_replace_an_operand(into):
    parts = partials(np.random.default_rng(5), 12, 33, 2)
    assert_same_bits(device_fold(LOGSUMEXP, layout_of(parts), parts, into=into), cpu_fold(parts))


def test_merge_states_takes_it_on_gpus():
    assert merging._gpu_fold("cuda", 128) is merge_on_device
    assert merging._gpu_fold("cuda", gpu_merge.MOST_DIM + 1) is None
    assert merging._gpu_fold("cpu", 128) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", ["e", 2])
def test_merge_states_by_the_kernel(monkeypatch, dtype, base):
    generator = torch.Generator().manual_seed(0)
    outs = torch.randn(3, 2, 7, 5, generator=generator).to(dtype)
    lses = torch.randn(3, 2, 7, generator=generator)
    lses[1, 0] = EMPTY
    pull = torch.randn(2, 7, 5, generator=generator), torch.randn(2, 7, generator=generator)

    def merged():
        given = outs.clone().requires_grad_(), lses.clone().requires_grad_()
        got = merge_states(*given, base=base)
        ((got.out * pull[0]).sum() + (got.lse * pull[1]).sum()).backward()
        return got.out.detach(), got.lse.detach(), given[0].grad, given[1].grad

    expected = merged()
    calls = []
    monkeypatch.setattr(
        merging, "_gpu_fold", lambda device, dim: lambda *states: (calls.append(1), merge_on_device(*states))[1]
    )
    for made, wanted in zip(merged(), expected, strict=True):
        assert made.dtype == wanted.dtype
        assert torch.equal(made, wanted)
    assert calls == [1]
