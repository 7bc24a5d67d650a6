"""combine_heads: numbers, sizes, and what is refused; ranks are threads. Over gloo: test_on_gloo.py."""

import math

import numpy as np
import pytest
import torch

from attention import Partial
from attention.decode.communicators import calls_of
from attention.engines import combine
from attention.engines.combine import combine_heads, head_combine, size_of
from tests.attention.cases import covered, pairwise
from tests.attention.engines.partials import EMPTY, assert_merged, formula, partials
from topocomm import MismatchError, OperatorError, run_local

FACTORS = {
    "ranks": (1, 2, 3, 4, 8),
    "shape": ((1, 8, 5), (5, 7, 3), (7, 3, 16), (12, 24, 1), (3, 1, 8)),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
    "base": ("e", 2),
    "empty": EMPTY,
    "mask": (False, True),
    "lse": (torch.float32, torch.float64),
}
CASES = list(pairwise(FACTORS))
EVERY = 3


def marked(number, case):
    name = "-".join(str(value) for value in case.values())
    return pytest.param(case, id=name, marks=[pytest.mark.long] if number % EVERY else [])


def merged(made, *, base="e", empties=None, **options):
    """What each rank gets, and that of all heads together."""

    def on_rank(comm):
        out, lse = made[comm.rank]
        empty = None if empties is None else torch.from_numpy(empties[comm.rank])
        before = out.clone(), lse.clone()
        found = combine_heads(out, lse, comm, base=base, empty=empty, return_lse=True, **options)
        assert all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in zip((out, lse), before, strict=True))
        again = combine_heads(out, lse, comm, base=base, empty=empty, **options)
        assert torch.equal(again.nan_to_num(7), found.out.nan_to_num(7))
        return found

    found = run_local(on_rank, ranks=len(made))
    return found, Partial(torch.cat([x.out for x in found], 1), torch.cat([x.lse for x in found], 1))


def test_pairs_are_covered():
    assert covered(CASES, FACTORS) and len(CASES) < 40


@pytest.mark.parametrize("case", [marked(*one) for one in enumerate(CASES)])
def test_the_formula(case):
    made = partials(case["ranks"], case["shape"], case["dtype"], empty=case["empty"])
    made = [(out, lse.to(case["lse"])) for out, lse in made]
    rows = case["shape"][0]
    rng = np.random.default_rng(1)
    empties = [rng.random(rows) < 0.5 for _ in made] if case["mask"] else None
    found, whole = merged(made, base=case["base"], empties=empties)
    assert_merged(*whole, formula(made, case["base"], empties), case["dtype"])
    heads = case["shape"][1]
    for rank, part in enumerate(found):
        assert part.out.shape[1] == (rank + 1) * heads // len(made) - rank * heads // len(made)
    if case["empty"] == "all":
        assert not whole.out.any() and (whole.lse == -math.inf).all()


def test_a_wrong_base_is_found(monkeypatch):
    made = partials(3, (5, 6, 4), torch.float32)
    monkeypatch.setattr(combine, "LN2", 1.0)
    with pytest.raises(AssertionError):
        assert_merged(*merged(made, base=2)[1], formula(made, 2), torch.float32)


def test_nan_stays_where_there_are_keys():
    made = partials(3, (4, 6, 5), torch.float32, empty="none")
    made[1][0][2, 4, 1] = math.nan
    whole = merged(made)[1]
    assert whole.out.isnan().nonzero().tolist() == [[2, 4, 1]] and whole.lse.isfinite().all()


def test_no_rows_take_no_call():
    found, whole = merged(partials(2, (0, 4, 8), torch.bfloat16))
    assert whole.out.shape == (0, 4, 8) and found[0].lse.shape == (0, 2)


@pytest.mark.parametrize("rows", [3, 17])
def test_pieces_are_merged_as_the_whole(monkeypatch, rows):
    made = partials(2, (rows, 4, 8), torch.bfloat16)
    empties = [np.arange(rows) % 3 == rank for rank in range(2)]
    whole = merged(made, base=2, empties=empties)[1]
    monkeypatch.setattr(combine, "MOST_HOST_BYTES", 4 * 4 * 9 * 4)
    assert len(list(combine.pieces(made[0][0]))) == -(-rows // 4)
    pieced = merged(made, base=2, empties=empties)[1]
    assert all(torch.equal(x, y) for x, y in zip(pieced, whole, strict=True))


def test_near_sizes_are_planned_once():
    assert [size_of(rows) for rows in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert all(rows <= size_of(rows) < rows * 1.5 + 0.5 for rows in range(1, 5000))

    def on_rank(comm):
        for rows in (5, 6, 6, 5):
            for dtype in (torch.float32, torch.bfloat16):
                made = partials(2, (rows, 4, 8), dtype)
                found = combine_heads(*made[comm.rank], comm)
                mine = formula(made, "e")[0][:, 2 * comm.rank : 2 * comm.rank + 2]
                np.testing.assert_allclose(found.double().numpy(), mine, atol=torch.finfo(dtype).eps * 4)
        return len(calls_of(comm))

    assert run_local(on_rank, ranks=2) == [1, 1]


def test_calls_that_were_freed_are_planned_again(monkeypatch):
    monkeypatch.setattr("attention.decode.communicators.PREPARED_LIMIT", 2)
    monkeypatch.setattr(combine, "PREPARED_LIMIT", 2)

    def on_rank(comm):
        first = {}
        for rows in (1, 2, 3, 8, 1, 2, 3, 8):
            made = partials(2, (rows, 4, 8), torch.float32)
            found = combine_heads(*made[comm.rank], comm)
            assert torch.equal(first.setdefault(rows, found), found)
        return len(calls_of(comm))

    assert run_local(on_rank, ranks=2) == [2, 2]


def test_memory_made_in_inference_mode_serves_outside_of_it():
    def on_rank(comm):
        made = partials(2, (3, 4, 8), torch.bfloat16)[comm.rank]
        with torch.inference_mode():
            inside = combine_heads(*made, comm).clone()
        return torch.equal(combine_heads(*made, comm), inside)

    assert run_local(on_rank, ranks=2) == [True, True]


def test_a_group_is_wrapped_once():
    class Coordinator:
        def __init__(self, comm):
            self.cpu_group = comm

    run_local(lambda comm: head_combine(comm) is head_combine(Coordinator(comm)) or pytest.fail("twice"), ranks=2)


OUT, LSE = torch.zeros(3, 4, 8), torch.zeros(3, 4)
MISFITS = {
    "a lse [heads, rows] goes in as": (OUT, LSE.t(), {}),
    "expected out [rows, heads, dim]": (OUT[None], LSE, {}),
    "out must be float32, float16 or bfloat16 and lse floating point, got torch.float64": (OUT.double(), LSE, {}),
    "got torch.float32 and torch.int64": (OUT, LSE.long(), {}),
    "both be in host memory or on one GPU, got cpu and meta": (OUT, LSE.to("meta"), {}),
    "pass detached tensors": (OUT, LSE.clone().requires_grad_(), {}),
    "base must be 'e' or 2, got 10": (OUT, LSE, {"base": 10}),
    "empty must be bool [3], one a row": (OUT, LSE, {"empty": torch.zeros(4, dtype=torch.bool)}),
}


@pytest.mark.parametrize("text", MISFITS)
def test_arguments_that_do_not_fit(text):
    out, lse, options = MISFITS[text]

    def on_rank(comm):
        with pytest.raises(OperatorError) as error:
            combine_heads(out, lse, comm, **options)
        return str(error.value)

    (told,) = run_local(on_rank, ranks=1)
    assert text in told and told.startswith("combine_heads: ")


def test_no_group_is_refused():
    with pytest.raises(OperatorError, match="comm must be"):
        combine_heads(OUT, LSE, "dcp")


def test_ranks_that_differ_are_told():
    def on_rank(comm):
        with pytest.raises(MismatchError, match="disagree"):
            combine_heads(torch.zeros(2, 4, 8 + comm.rank), torch.zeros(2, 4), comm)

    run_local(on_rank, ranks=2)
