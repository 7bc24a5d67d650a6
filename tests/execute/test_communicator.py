"""Collectives on threads: values, structures, reuse."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import topocomm
from tests.concatenation import CAPACITY, CONCAT, in_order, spelled, word
from tests.execute.collective_cases import MOMENTS
from tests.machines import line
from topocomm import (
    AFFINE,
    MAX,
    MIN,
    SUM,
    OperatorError,
    PlanError,
    run_local,
)
from topocomm.topology.merge.degradation import without


class Moments(NamedTuple):
    total: Any
    count: Any


@dataclasses.dataclass
class Bundle:
    total: Any
    count: Any


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_allreduce_reduce_and_broadcast(ranks):
    def body(comm):
        x = np.arange(12.0).reshape(3, 4) + comm.rank
        return (
            comm.allreduce(x, SUM),
            comm.allreduce(x, MAX),
            comm.allreduce(x, MIN),
            comm.reduce(x, SUM, root=ranks - 1),
            comm.broadcast(x, root=ranks // 2),
        )

    base = np.arange(12.0).reshape(3, 4)
    for rank, (total, high, low, reduced, shared) in enumerate(run_local(body, ranks=ranks)):
        np.testing.assert_array_equal(total, base * ranks + ranks * (ranks - 1) / 2)
        np.testing.assert_array_equal(high, base + ranks - 1)
        np.testing.assert_array_equal(low, base)
        np.testing.assert_array_equal(shared, base + ranks // 2)
        if rank == ranks - 1:
            np.testing.assert_array_equal(reduced, total)
        else:
            assert reduced is None


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 1, 5), (0, 4)])
def test_any_shape(shape):
    for result in run_local(lambda comm: comm.allreduce(np.full(shape, comm.rank + 1.0), SUM), ranks=3):
        assert result.shape == shape
        np.testing.assert_array_equal(result, np.full(shape, 6.0))


@pytest.mark.parametrize("container", [dict, Moments, Bundle])
def test_structures_come_back_in_kind(container):
    def body(comm):
        x = container(total=np.full((4, 2), comm.rank, np.float64), count=np.ones(4, np.int64))
        return comm.allreduce(x, MOMENTS)

    for result in run_local(body, ranks=3):
        assert type(result) is container
        parts = result if container is dict else {"total": result.total, "count": result.count}
        np.testing.assert_array_equal(parts["total"], np.full((4, 2), 3.0))
        np.testing.assert_array_equal(parts["count"], np.full(4, 3))


def test_torch_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")

    def body(comm):
        x = torch.full((5, 3), float(comm.rank))
        y = comm.allreduce(x, SUM)
        into = torch.empty(5, 3)
        assert comm.allreduce(x, SUM, out=into) is into
        return y, into, comm.allreduce(x, SUM, out=x) is x, x

    for y, into, same, x in run_local(body, ranks=4):
        assert same
        for got in (y, into, x):
            assert torch.equal(got, torch.full((5, 3), 6.0))


def test_results_are_the_callers_own():
    def body(comm):
        x = np.ones(4)
        first = comm.allreduce(x, SUM)
        first[...] = -1
        second = comm.allreduce(x, SUM)
        return first, second, x

    for first, second, x in run_local(body, ranks=2):
        assert np.all(first == -1) and np.all(second == 2) and np.all(x == 1)


def test_non_contiguous_values_are_taken_as_they_are():
    def body(comm):
        wide = np.arange(24.0).reshape(4, 6) + comm.rank
        out = np.zeros((6, 8))[:, ::2]
        comm.allreduce(wide.T, SUM, out=out)
        return comm.allreduce(wide[:, ::2], SUM), out

    base = np.arange(24.0).reshape(4, 6)
    for strided, out in run_local(body, ranks=2):
        np.testing.assert_array_equal(strided, 2 * base[:, ::2] + 1)
        np.testing.assert_array_equal(out, 2 * base.T + 1)


def test_order_is_kept_for_operators_that_do_not_commute():
    for result in run_local(lambda comm: comm.allreduce(word(comm.rank, 3), CONCAT), ranks=7):
        assert spelled(result) == [in_order(7)] * 3


def test_nan_and_infinity_pass_as_ieee_says():
    def body(comm):
        x = np.array([np.nan if comm.rank == 1 else 1.0, np.inf, -np.inf if comm.rank else np.inf])
        with np.errstate(invalid="ignore"):
            return comm.allreduce(x, SUM)

    for result in run_local(body, ranks=2):
        assert np.isnan(result[0]) and result[1] == np.inf and np.isnan(result[2])


def test_a_communicator_discovers_the_job_anew():
    def body(comm):
        found = topocomm.discover(comm)
        return [place.rank for place in found.ranks], found.digest, comm.allreduce(np.ones(1), SUM)[0]

    results = run_local(body, ranks=3)
    assert results == [([0, 1, 2], results[0][1], 3.0)] * 3
    assert topocomm.discover().ranks == ()


def test_explain_is_the_plan_that_runs():
    def body(comm):
        x = np.zeros(100)
        call = comm.prepare("allreduce", like=x, operator=SUM)
        return comm.explain("allreduce", like=x, operator=SUM).digest == call.plan.digest

    assert all(run_local(body, ranks=4))


def test_records_are_gathered_in_rank_order():
    def body(comm):
        return [note.tolist() for note in comm.allgather_bytes(np.array([comm.rank, 7], np.uint8))]

    for ranks in (1, 2, 3, 6):
        assert run_local(body, ranks=ranks) == [[[rank, 7] for rank in range(ranks)]] * ranks


def test_ranks_relay_where_others_have_no_route():
    found = run_local(lambda comm: comm.allreduce(np.ones(1), SUM).tolist(), ranks=4, topology=line(4))
    assert found == [[4.0]] * 4


def test_ranks_without_routes_relay_in_canonical_order_too():
    def body(comm):
        return comm.allreduce(word(comm.rank, 1), CONCAT, order="canonical")

    assert all(spelled(result) == [in_order(4)] for result in run_local(body, ranks=4, topology=line(4)))


def test_a_machine_in_pieces_is_refused():
    broken = without(line(4), ["GPU1-GPU2"])
    with pytest.raises(PlanError, match="falls into 2 pieces: GPU0-1; GPU2-3"):
        run_local(lambda comm: comm.allreduce(np.ones(1), SUM), ranks=4, topology=broken)


def test_capacity_is_enough_for_the_tests():
    assert len(in_order(64)) <= CAPACITY


@pytest.mark.parametrize("items", [6, 300_000], ids=["short", "in slices"])
@pytest.mark.parametrize("name", ["allreduce", "scan"])
def test_results_that_overlap_their_values(name, items):
    def body(comm):
        room = np.zeros(3 * items)
        x = room[items : 2 * items]
        x[:] = np.arange(items) + comm.rank
        wanted = getattr(comm, name)(x.copy(), SUM)
        for start in (1, items // 2, items - 1, items + 1):
            x[:] = np.arange(items) + comm.rank
            out = room[start : start + items]
            assert getattr(comm, name)(x, SUM, out=out) is out
            np.testing.assert_array_equal(out, wanted)
        same = np.zeros(items)
        with pytest.raises(OperatorError, match="share memory; give arrays of their own"):
            comm.allreduce({"a": x, "b": x}, AFFINE, out={"a": same, "b": same})

    run_local(body, ranks=2)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (1, 4), (4, 1)])
def test_results_of_any_shape_are_written_in_place(shape):
    def body(comm):
        x, out = np.full(shape, comm.rank + 1.0), np.full(shape, np.nan)
        assert comm.allreduce(x, SUM, out=out) is out
        np.testing.assert_array_equal(out, np.full(shape, 3.0))
        assert comm.scan(x, SUM, out=x) is x
        np.testing.assert_array_equal(x, np.full(shape, 1.0 + 2 * comm.rank))

    run_local(body, ranks=2)


def test_objects_do_not_travel():
    def body(comm):
        for refused in (np.array([{}]), {"a": np.array([None])}):
            with pytest.raises(OperatorError, match="holds Python objects"):
                comm.broadcast(refused)
        for empty in ({}, {"a": [1.0]}):
            with pytest.raises(OperatorError):
                comm.allgather(empty)
        assert comm.broadcast(np.ones(1)).tolist() == [1.0]

    run_local(body, ranks=2)
