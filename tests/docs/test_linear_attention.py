"""Linear attention over sharded sequences: every rank count, every kind of gate, and what does not fit."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.attention.cases import cuts
from tests.docs.recurrences import BATCH, D_V, HEADS, D, arrays, check, first_state, recurrence, shard
from topocomm import MismatchError, OperatorError, check_laws, run_local

sys.path.append(str(Path(__file__).parents[2] / "docs/examples"))
from gated.attention import linear_attention
from gated.state import GATED_STATE

pytestmark = pytest.mark.long
FORMS = ["gla", "mamba"]

each_form = pytest.mark.parametrize("form", FORMS)


def run(x, parts, *, state=None, everywhere=False, **options):
    """(out, state) of every rank; unless `everywhere`, only rank 0 is given the state before the sequence."""

    def on_rank(comm):
        first = state if comm.rank == 0 or everywhere else None
        return linear_attention(*shard(x, parts[comm.rank]), comm, initial_state=first, return_state=True, **options)

    return run_local(on_rank, ranks=len(parts))


def check_ranks(results, exact, x, state=None):
    """The parts of the output are right together, and all ranks hold the same bits of the state."""
    assert len({result[1].tobytes() for result in results}) == 1
    check((np.concatenate([out for out, _ in results], 2), results[0][1]), exact, x, state)


@each_form
@pytest.mark.parametrize("ranks", range(1, 18))
def test_uneven_and_empty_parts(ranks, form):
    x, state = arrays(301, form=form, seed=ranks), first_state()
    exact = recurrence(*x, state)
    parts = cuts(301, ranks, seed=ranks)
    results = run(x, parts, state=state)
    check_ranks(results, exact, x, state)
    for first, second in zip(results, run(x, parts, state=state, everywhere=True), strict=True):
        assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


@each_form
def test_one_process_and_every_length(form):
    for n in (0, 1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 127, 128, 130, 200):
        x, state = arrays(n, form=form, seed=n), first_state(n)
        check(linear_attention(*x, initial_state=state, return_state=True), recurrence(*x, state), x, state)
        np.testing.assert_array_equal(
            linear_attention(*x), run(x, [slice(None)])[0][0], err_msg="a communicator of one rank changes nothing"
        )


@pytest.mark.parametrize("numbers", [1, 4000])
def test_work_in_small_blocks(monkeypatch, numbers):
    monkeypatch.setattr("gated.chunks.BLOCK_NUMBERS", numbers)
    x = arrays(333)
    check(linear_attention(*x, return_state=True), recurrence(*x), x)


@pytest.mark.parametrize(
    "shape", [(1, 1, 70, 1, 1), (3, 1, 70, 1, 9), (1, 4, 70, 33, 2), (0, 2, 5, 4, 4), (2, 0, 5, 4, 4)]
)
def test_odd_shapes(shape):
    batch, heads, n, d, d_v = shape
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batch, heads, n, width), dtype=np.float32) for width in (d, d, d_v))
    for log_gates in (-rng.random(k.shape, np.float32), -rng.random(k.shape[:3], np.float32)):
        x = (q, k, v, log_gates)
        check_ranks(run(x, cuts(n, 3)), recurrence(*x), x)


@each_form
@pytest.mark.parametrize("log_gate", [-50.0, -200.0, -1e4, -3e38, -np.inf])
def test_strong_decay(form, log_gate):
    """Chunks whose gates add up to -1e4 and less: everywhere, here and there, or nearly nowhere."""
    for share in (1.0, 0.5, 0.02):
        x = arrays(200, form=form)
        strong = np.random.default_rng(1).random(x[3].shape) < share
        x[3][...] = np.where(strong, np.float32(log_gate), np.float32(-1e-3))
        exact = recurrence(*x)
        assert np.isfinite(exact[0]).all()
        check_ranks(run(x, cuts(200, 3)), exact, x)


@each_form
def test_a_gate_of_0_forgets_everything(form):
    for reset in (0, 1, 40, 63, 64, 99, 100, 149):
        x = arrays(150, form=form, seed=reset)
        x[2][:, :, :reset] = 1e30
        x[3][:, :, reset] = -np.inf
        rest = shard(x, slice(reset, None))
        huge = np.full((BATCH, HEADS, D, D_V), 1e30, np.float32)
        results = run(x, [slice(0, 40), slice(40, 100), slice(100, 150)], state=huge)
        out = np.concatenate([out for out, _ in results], 2)
        check((out[:, :, reset:], results[0][1]), recurrence(*rest), rest)


@each_form
def test_gates_of_1_lose_nothing(form):
    """Sums of small whole numbers are exact in float32, in any order."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-4, 5, (BATCH, HEADS, 500, width)).astype(np.float32) for width in (D, D, D_V))
    x = (q, k, v, np.zeros(k.shape if form == "gla" else k.shape[:3], np.float32))
    state = rng.integers(-9, 10, (BATCH, HEADS, D, D_V)).astype(np.float32)
    out, end = recurrence(*x, state, scale=1)
    results = run(x, cuts(500, 5), state=state, scale=1)
    np.testing.assert_array_equal(np.concatenate([part for part, _ in results], 2), out)
    for _, got in results:
        np.testing.assert_array_equal(got, end)


@each_form
@pytest.mark.parametrize("log_gate", [-1e-4, -1e-2, None])
def test_a_long_sequence(form, log_gate):
    x = arrays(4096, form=form)
    if log_gate is not None:  # all the same: rounding of gates near 1 would add up
        x[3][...] = log_gate
    check_ranks(run(x, cuts(4096, 4)), recurrence(*x), x)


def test_order_matters():
    x = arrays(90)
    x[3][...] = -0.05
    parts = [slice(0, 30), slice(30, 60), slice(60, 90)]
    out, state = recurrence(*x)
    check_ranks(run(x, parts), (out, state), x)
    reversed_parts = run(x, parts[::-1])
    assert np.abs(np.concatenate([part for part, _ in reversed_parts[::-1]], 2) - out).max() > 0.1
    assert np.abs(reversed_parts[0][1] - state).max() > 0.1


def test_a_planted_fault_shows(monkeypatch):
    """With left and right exchanged the scan is wrong from the third rank on."""
    wrong = replace(GATED_STATE, combine=lambda a, b: GATED_STATE.combine(b, a), kernel=None)
    monkeypatch.setattr("gated.attention.GATED_STATE", wrong)
    x = arrays(90)
    x[3][...] = -0.05
    results = run(x, [slice(0, 30), slice(30, 60), slice(60, 90)])
    exact = recurrence(*x)[0]
    assert np.abs(results[1][0] - exact[:, :, 30:60]).max() < 1e-4
    assert np.abs(results[2][0] - exact[:, :, 60:]).max() > 0.1


def test_the_operator_keeps_the_laws_and_does_not_commute():
    report = check_laws(GATED_STATE)
    assert report.ok, report
    assert check_laws(replace(GATED_STATE, commutative=True)).broken == ("commutativity",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_has_the_kind_and_dtype_of_q(dtype):
    x = [torch.from_numpy(array).to(dtype) for array in arrays(150)]
    wide = [array.double().numpy() for array in x]
    exact, state = recurrence(*wide)
    results = run(x, cuts(150, 3))
    unit = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    out = torch.cat([part for part, _ in results], 2)
    assert out.dtype == dtype
    assert np.abs(out.double().numpy() - exact).max() < (2e-6 + unit) * np.abs(exact).max()
    for _, got in results:
        assert got.dtype == torch.float32
        assert np.abs(got.double().numpy() - state).max() < 2e-6 * np.abs(state).max()
    if dtype == torch.float16:
        given = linear_attention(*(array.numpy() for array in x))
        assert isinstance(given, np.ndarray) and given.dtype == np.float16


def test_any_strides_and_nothing_is_written_to():
    x = arrays(130)
    strided = [np.ascontiguousarray(np.swapaxes(array, 1, 2)).swapaxes(1, 2) for array in x[:3]]
    strided.append(np.repeat(x[3], 2, 3)[..., ::2])
    before = [array.copy() for array in strided]
    state = first_state()
    got = linear_attention(*strided, initial_state=state, return_state=True)
    check(got, recurrence(*x, state), x, state)
    for array, old in zip([*strided, state], [*before, first_state()], strict=True):
        np.testing.assert_array_equal(array, old)


@each_form
def test_decoding_goes_on_from_the_state(form):
    x = arrays(120, form=form)
    exact = recurrence(*x)
    results = run(shard(x, slice(0, 100)), cuts(100, 3))
    outs, state = [out for out, _ in results], results[0][1]
    for part in (*(slice(t, t + 1) for t in range(100, 110)), slice(110, 120)):
        out, state = linear_attention(*shard(x, part), initial_state=state, return_state=True)
        outs.append(out)
    check((np.concatenate(outs, 2), state), exact, x)


def test_what_a_token_holds_reaches_no_earlier_one():
    clean = arrays(150)
    clean[3][...] = -0.1
    exact = recurrence(*clean)[0]
    for token in (0, 5, 62, 63, 64, 100, 149):
        for index, poison in ((1, np.nan), (2, np.inf)):
            x = [array.copy() for array in clean]
            x[index][:, :, token] = poison
            out = np.concatenate([part for part, _ in run(x, [slice(0, 64), slice(64, 100), slice(100, 150)])], 2)
            np.testing.assert_allclose(out[:, :, :token], exact[:, :, :token], atol=1e-4)
            assert not np.isfinite(out[:, :, token:]).any()


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_no_rank_has_a_token(ranks):
    x, state = arrays(0), first_state()
    for out, end in run(x, [slice(0, 0)] * ranks, state=state):
        assert out.shape == (BATCH, HEADS, 0, D_V)
        np.testing.assert_array_equal(end, state)


GOOD = {"q": (2, 3, 4, 5), "k": (2, 3, 4, 5), "v": (2, 3, 4, 7), "log_gates": (2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"q": [[1.0]]}, ["q must be a NumPy array or torch tensor, got list"]),
        ({"q": np.zeros((3, 4, 5), np.float32)}, ["q must be [batch, heads, n, d], got shape [3, 4, 5]"]),
        ({"v": np.zeros((2, 3, 4, 7))}, ["v must be float32, float16 or bfloat16, got torch.float64"]),
        ({"k": np.zeros((2, 3, 4, 6), np.float32)}, ["q and k must have one shape", "k [2, 3, 4, 6]"]),
        ({"v": np.zeros((2, 3, 5, 7), np.float32)}, ["v agree in [batch, heads, n]", "v [2, 3, 5, 7]"]),
        ({"log_gates": np.zeros((2, 3, 4, 1), np.float32)}, ["log_gates must have the shape of k", "[2, 3, 4, 1]"]),
        ({"log_gates": np.zeros((2, 3), np.float32)}, ["log_gates must be [batch, heads, n, d] or [batch, heads, n]"]),
        ({"log_gates": np.full((2, 3, 4), 0.5, np.float32)}, ["so at most 0, got 0.5", "pass logsigmoid(x)"]),
        ({"log_gates": np.full((2, 3, 4), np.nan, np.float32)}, ["so at most 0, got nan"]),
        ({"k": torch.zeros(2, 3, 4, 5, requires_grad=True)}, ["k requires gradients; pass k.detach()"]),
        ({"k": torch.zeros(2, 3, 4, 5, device="meta")}, ["k is on meta", "pass k.cpu()"]),
        (
            {"initial_state": np.zeros((2, 3, 5, 5), np.float32)},
            ["float32 [2, 3, 5, 7]", "got torch.float32 [2, 3, 5, 5]"],
        ),
        ({"initial_state": np.zeros((2, 3, 5, 7), np.float16)}, ["initial_state must be float32", "torch.float16"]),
    ],
)
def test_what_does_not_fit_is_named(change, parts):
    given = {name: np.zeros(shape, np.float32) for name, shape in GOOD.items()} | change
    with pytest.raises(OperatorError) as raised:
        linear_attention(**given)
    for part in ["linear_attention: ", *parts]:
        assert part in str(raised.value)


def test_no_head_dim():
    x = np.zeros((1, 1, 3, 0), np.float32)
    with pytest.raises(OperatorError, match="the head dim d must be at least 1"):
        linear_attention(x, x, x, x)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_ranks_that_disagree(axis):
    """In batch, heads or d."""

    def on_rank(comm):
        shape = [2, 3, 4, 5]
        shape[axis] += comm.rank == 1
        x = np.zeros(shape, np.float32)
        linear_attention(x, x, np.zeros((*shape[:3], 6), np.float32), x, comm)

    with pytest.raises(MismatchError, match="ranks disagree"):
        run_local(on_rank, ranks=3)


def test_ranks_that_disagree_in_d_v_after_calls_that_fitted():
    def on_rank(comm):
        q = np.zeros((1, 2, 3, 4), np.float32)
        for width in (5, 5 + comm.rank):
            linear_attention(q, q, np.zeros((1, 2, 3, width), np.float32), q, comm)

    with pytest.raises(MismatchError, match="gated_state"):
        run_local(on_rank, ranks=2)
