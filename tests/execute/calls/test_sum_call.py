"""Reductions as one SUM on threads: results, when they are repeated, and arguments that do not fit."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from tests.execute import sum_cases
from tests.execute.sum_cases import CASES, check_all, check_partials
from topocomm import LOGADDEXP, MAX, MismatchError, OperatorError, run_local


@pytest.mark.parametrize("ranks", [1, 2, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, 6, 7, 8, 9))])
def test_within_the_bound_and_repeated_as_the_analysis_says(ranks):
    results = run_local(check_all, ranks=ranks)
    assert results == [("plan", results[0][1])] * ranks
    taken = results[0][1]
    expected = {"reference far below", "reference far above", "huge out overflows", "tiny out vanishes"}
    expected |= {"out is 0, reference far above"}
    expected |= {"NaN", "+inf", "NaN in out", "no reference"}
    assert {name for name in CASES if taken[name]} == expected


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("lost", "NaN"),  # nobody counts what is lost
        ("present", "out is 0, reference far above"),  # nor what is negligible
        ("product", "tiny out vanishes"),
    ],
)
def test_a_count_left_out_is_seen(monkeypatch, fault, case):
    lowering = LOGSUMEXP.sum_lowering(None)

    def forgetful(value, reference, ranks, sums):
        lowering.encode(value, reference, ranks, sums)
        sums[fault][...] = 0

    planted = lowering._replace(encode=forgetful, bind=None)
    monkeypatch.setitem(LOGSUMEXP.__dict__, "lower_to_sum", lambda layout: planted)
    with pytest.raises(AssertionError, match=case):
        run_local(lambda comm: check_partials(comm, [case]), ranks=2)


def test_a_reduce_scatter_is_repeated_where_a_share_alone_is_imprecise():
    results = run_local(sum_cases.check_scattered, ranks=3)
    whole = {name for name in CASES if sum_cases.repeats(*sum_cases.partials(name, 3))}
    taken = {name for name in CASES if results[0][name]}
    assert results == [results[0]] * 3
    assert whole < taken and "spread" in taken - whole  # never less often than an all-reduce
    assert {"alike", "empty", "huge out", "tiny out", "reference below", "reference above"}.isdisjoint(taken)


def test_a_reduce_scatter_without_its_count_is_seen(monkeypatch):
    lowering = LOGSUMEXP.sum_lowering(None)

    def blind(value, ranks, sums, result):
        shares = lowering.bind(value, ranks, sums, result)
        return shares._replace(send=lambda reference: shares.send(reference) or True)

    monkeypatch.setitem(LOGSUMEXP.__dict__, "lower_to_sum", lambda layout: lowering._replace(bind=blind))
    if lowering.bind(*sum_cases.bindable()) is None:
        pytest.skip("needs the compiled part")
    with pytest.raises((AssertionError, OperatorError), match=r"NaN|exact holds for every rank's share and not"):
        run_local(lambda comm: sum_cases.check_scattered(comm, ["NaN"]), ranks=2)


def test_the_bound_is_one_that_can_be_missed(monkeypatch):
    monkeypatch.setattr(sum_cases, "BOUND", 1e-9)
    with pytest.raises(AssertionError, match="alike"):
        run_local(lambda comm: check_partials(comm, ["alike"]), ranks=3)


def test_another_reference_on_one_rank_is_an_error_on_all():
    def job(comm):
        x = np.zeros(4, np.float32)
        call = comm.prepare_sum(like=x, operator=LOGADDEXP)
        with pytest.raises(MismatchError, match=r"reference of sum for logaddexp.* differs between ranks"):
            call(x, reference=[0, 0, 0, 1e-9 * (comm.rank == 2)])
        return comm.session.open

    assert run_local(job, ranks=4) == [False] * 4


def test_arguments_that_do_not_fit():
    def job(comm):
        x = np.zeros((2, 3), np.float32)
        with pytest.raises(OperatorError, match="operator 'max' has no form as one SUM for value float32 \\[2, 3\\]"):
            comm.prepare_sum(like=x, operator=MAX)
        with pytest.raises(OperatorError, match="expected an Operator"):
            comm.prepare_sum(like=x, operator="sum")
        call = comm.prepare_sum(like=x, operator=LOGADDEXP)
        with pytest.raises(OperatorError, match="reference is missing"):
            call(x)
        with pytest.raises(OperatorError, match=r"expected numbers of shape \[2, 3\], .* got ndarray \[2\]"):
            call(x, reference=np.zeros(2))
        with pytest.raises(OperatorError, match="must be float32"):
            call(x.astype(np.float64), reference=0.0)
        value = {"weight": np.ones(1), "mean": np.ones(1)}
        with pytest.raises(OperatorError, match="expected collective allreduce or reduce_scatter, got 'scan'"):
            comm.prepare_sum(like=x, operator=LOGADDEXP, collective="scan")
        with pytest.raises(OperatorError, match="rows are of reduce_scatter"):
            comm.prepare_sum(like=x, operator=LOGADDEXP, rows=[2])
        means = comm.prepare_sum(like=value, operator=sum_cases.MEAN)
        with pytest.raises(OperatorError, match="takes none"):
            means(value, reference=0.0)
        return True

    assert run_local(job, ranks=1) == [True]


def test_refused_arguments_are_news_for_the_other_ranks():
    def job(comm):
        x = np.zeros(3)
        call = comm.prepare_sum(like=x, operator=LOGADDEXP)
        try:
            call(x, reference=0.0 if comm.rank else None)
        except (OperatorError, MismatchError) as error:
            return str(error)

    first, second = run_local(job, ranks=2)
    assert first.startswith("reference is missing") and "rank 0 refused its arrays: reference is missing" in second


def test_tensors_and_the_send_buffer():
    torch = pytest.importorskip("torch")

    def job(comm):
        x = {"out": torch.ones(2, 3), "lse": torch.full((2,), float(comm.rank))}
        call = comm.prepare_sum(like=x, operator=LOGSUMEXP)
        got = call(x, reference=torch.zeros(2))
        held = call.planned.input
        if held is not None:
            held["out"][...], held["lse"][...] = x["out"], x["lse"]
            again = call(held, reference=0.0)
            assert torch.equal(again["lse"], got["lse"])
        return got["out"].tolist(), float(got["lse"][0])

    (out, lse), _ = run_local(job, ranks=2)
    assert out == [[1.0] * 3] * 2 and lse == pytest.approx(np.logaddexp(0, 1), rel=1e-6)


def test_a_tensor_with_other_storage_is_fitted_again():
    torch = pytest.importorskip("torch")

    def job(comm):
        x, out = torch.zeros(4), torch.zeros(4)
        call = comm.prepare_sum(like=x, operator=LOGADDEXP)
        call(x, reference=0.0, out=out)
        x.data = torch.ones(4)
        changed = call(x, reference=0.0, out=out).tolist()
        x.resize_(3)
        with pytest.raises(OperatorError, match=r"must be float32 \[4\]"):
            call(x, reference=0.0, out=out)
        return changed

    assert run_local(job, ranks=1)[0] == pytest.approx([1.0] * 4, rel=1e-6)
