"""Collectives on threads: values, structures, reuse, and how calls that do not fit are refused."""

import dataclasses
import threading
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest

import topocomm
from tests.concatenation import CAPACITY, CONCAT, in_order, spelled, word
from tests.machines import line, switch
from topocomm import (
    AFFINE,
    MAX,
    MIN,
    SUM,
    Field,
    MismatchError,
    Operator,
    OperatorError,
    PlanError,
    TopocommError,
    run_local,
)
from topocomm.planning.planner import every_plan


class Moments(NamedTuple):
    total: Any
    count: Any


@dataclasses.dataclass
class Bundle:
    total: Any
    count: Any


MOMENTS = Operator(
    "moments",
    (Field("total", ("*rows", "dim"), np.float64), Field("count", ("*rows",), np.int64)),
    lambda a, b: {name: a[name] + b[name] for name in a},
    {"total": 0, "count": 0},
    True,
)


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


def test_prepared_calls_take_their_input_in_place():
    def body(comm):
        like = {"total": np.zeros((4, 2)), "count": np.zeros(4, np.int64)}
        call = comm.prepare("allreduce", like=like, operator=MOMENTS)
        results = []
        for step in range(5):
            buffers = call.input
            buffers["total"][...] = comm.rank + step
            buffers["count"][...] = 1
            results.append(call(buffers))
        return results

    for results in run_local(body, ranks=3):
        for step, result in enumerate(results):
            np.testing.assert_array_equal(result["total"], np.full((4, 2), 3.0 + 3 * step))
            np.testing.assert_array_equal(result["count"], np.full(4, 3))


def test_prepared_calls_allocate_nothing_that_stays():
    def body(comm):
        x, out = np.ones((32, 8), np.float32), np.empty((32, 8), np.float32)
        call = comm.prepare("allreduce", like=x, operator=SUM)
        kept = []
        for _ in range(6):
            comm.barrier()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(1000):
                call(x, out=out)
            comm.barrier()
            kept.append(tracemalloc.get_traced_memory()[0] - before)
        return kept

    tracemalloc.start()
    kept = run_local(body, ranks=2)[0]
    tracemalloc.stop()
    assert min(kept) < 1000, kept  # what the other thread holds at that moment: less than a byte a call


def test_a_saved_plan_is_executed(tmp_path):
    machine = switch(4)
    like = np.zeros(64, np.float32)
    made = topocomm.plan(machine, payload_bytes=256, objective="throughput")
    made.save(tmp_path / "plan.json")

    def body(comm):
        call = comm.prepare("allreduce", like=like, operator=SUM, plan=topocomm.Plan.load(tmp_path / "plan.json"))
        return call.plan.algorithm, call(like + comm.rank)

    for algorithm, result in run_local(body, ranks=4, topology=machine):
        assert algorithm == made.algorithm
        np.testing.assert_array_equal(result, np.full(64, 6))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (topocomm.plan(switch(4, gb_per_s=1.0), payload_bytes=256), "the plan is for another topology"),
        (topocomm.plan(switch(4), payload_bytes=128), "the plan is for 128 bytes in 32 rows, the value has 256 bytes"),
        (
            topocomm.plan(switch(3), payload_bytes=256),
            r"for allreduce over 3 ranks, the call is allreduce over 4 ranks; plan for this one, with ranks=",
        ),
        (
            topocomm.plan(switch(4), "reduce", payload_bytes=256),
            "the plan is for reduce over 4 ranks, root 0, the call",
        ),
    ],
)
def test_plans_for_something_else_are_refused_on_every_rank(plan, message):
    def body(comm):
        with pytest.raises(PlanError, match=message):
            comm.prepare("allreduce", like=np.zeros(64, np.float32), operator=SUM, plan=plan)
        return comm.allreduce(np.ones(3), SUM)  # the communicator still works

    for result in run_local(body, ranks=4, topology=switch(4)):
        np.testing.assert_array_equal(result, np.full(3, 4.0))


def test_a_reordering_plan_is_refused_for_an_operator_that_does_not_commute():
    subtract = Operator("sum", (Field("value"),), lambda a, b: {"value": a["value"] - b["value"]}, {"value": 0})
    plans = every_plan(switch(4), "allreduce", SUM, SUM.default_layout(64))
    ring = next(plan for plan in plans if plan.algorithm == "ring")

    def body(comm):
        with pytest.raises(PlanError, match="operands do not stand in rank order"):
            comm.prepare("allreduce", like=np.zeros(64, np.float32), operator=subtract, plan=ring)

    run_local(body, ranks=4, topology=switch(4))


@pytest.mark.parametrize(
    ("value", "operator", "message"),
    [
        ([1, 2], SUM, "expected an array, or a dict, NamedTuple or dataclass of arrays, got list"),
        ({"value": [1, 2]}, SUM, "field 'value': expected a NumPy array or torch tensor, got list"),
        ({"other": np.ones(2)}, SUM, r"takes the fields \['value'\], got \['other'\]"),
        (np.ones(2), MOMENTS, "got one bare array"),
        (np.ones(2), [SUM], r"expected an Operator such as topocomm.SUM or TOPK\(5\), got list"),
        (np.ones(2), topocomm.TOPK, "got function"),
        (np.ones(2), "sum", r"expected an Operator such as topocomm.SUM or TOPK\(5\), got str"),
    ],
)
def test_values_that_do_not_fit_are_refused_alike_on_every_rank(value, operator, message):
    def body(comm):
        with pytest.raises(OperatorError, match=message):
            comm.allreduce(value, operator)
        return comm.allreduce(np.ones(1), SUM)[0]

    assert run_local(body, ranks=3) == [3.0] * 3


def test_roots_rows_and_plans_of_another_kind_are_refused_alike_on_every_rank():
    def body(comm):
        x = np.ones(3)
        with pytest.raises(PlanError, match="root '0': expected the number of a rank, 0 to 2"):
            comm.reduce(x, SUM, root="0")
        with pytest.raises(OperatorError, match=r"rows \[1.5, 1.5, 0\]: expected 3 counts, whole and none below 0"):
            comm.reduce_scatter(x, SUM, rows=[1.5, 1.5, 0])
        with pytest.raises(PlanError, match=r"plan: expected a topocomm.Plan, got str; topocomm.Plan.load\(path\)"):
            comm.prepare("allreduce", like=x, operator=SUM, plan="saved.json")
        with pytest.raises(topocomm.TopocommError, match=r"split: expected whole numbers as color and key, .* rank 1"):
            comm.split(0.5 if comm.rank == 1 else 0)
        return comm.reduce_scatter(x, SUM, rows=np.array([1, 1, 1]))[0]

    assert run_local(body, ranks=3) == [3.0] * 3


def test_shards_that_are_no_pair_are_told_to_every_rank():
    def body(comm):
        with pytest.raises(MismatchError, match="shards of rank 1: expected"):
            comm.allreduce(np.ones((1, 2)), SUM, order="canonical", shards=5 if comm.rank == 1 else (0, 1))

    run_local(body, ranks=2)


def test_a_value_that_one_rank_refuses_is_told_by_its_error_alone():
    def body(comm):
        with pytest.raises(MismatchError) as told:
            comm.broadcast(np.ones(3) if comm.rank == 0 else None)
        return str(told.value).partition(": ")[2]

    assert (
        run_local(body, ranks=3)
        == [
            "ranks disagree about the call they make: error: ranks 1, 2: expected an array, or a dict, NamedTuple or "
            "dataclass of arrays, got NoneType"
        ]
        * 3
    )


def test_a_communicator_discovers_the_job_anew():
    def body(comm):
        found = topocomm.discover(comm)
        return [place.rank for place in found.ranks], found.digest, comm.allreduce(np.ones(1), SUM)[0]

    results = run_local(body, ranks=3)
    assert results == [([0, 1, 2], results[0][1], 3.0)] * 3
    assert topocomm.discover().ranks == ()


def test_tensors_that_require_gradients_are_refused_with_the_remedy():
    torch = pytest.importorskip("torch")

    def body(comm):
        with pytest.raises(OperatorError, match=r"requires gradients; pass x.detach\(\)"):
            comm.allreduce(torch.ones(2, requires_grad=True), SUM)
        with pytest.raises(OperatorError, match=r"NumPy has no torch\.float8_e5m2"):
            comm.allreduce(torch.ones(2, dtype=torch.float8_e5m2), SUM)

    run_local(body, ranks=2)


def test_prepared_calls_check_what_they_are_given():
    def body(comm):
        call = comm.prepare("allreduce", like=np.zeros((2, 3)), operator=SUM)
        locked = np.zeros((2, 3))
        locked.flags.writeable = False
        for x, out, message in (
            (np.zeros((3, 2)), None, r"x: field 'value' must be float64 \[2, 3\] as prepared, got float64 \[3, 2\]"),
            (np.zeros((2, 3), np.float32), None, r"must be float64 .* got float32"),
            (None, None, "x is missing"),
            (np.zeros((2, 3)), locked, "out: field 'value' is read-only"),
            (np.zeros((2, 3)), np.zeros(6), "out: field 'value' must be"),
        ):
            with pytest.raises(OperatorError, match=message):
                call(x, out=out)
        return call(np.ones((2, 3)))

    for result in run_local(body, ranks=2):
        np.testing.assert_array_equal(result, np.full((2, 3), 2.0))


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_ranks_that_differ_are_named_on_every_rank(odd):
    seen = {}

    def body(comm):
        x = np.zeros(5 if comm.rank == odd else 4)
        try:
            comm.allreduce(x, SUM)
        except MismatchError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(MismatchError):
        run_local(body, ranks=4)
    assert sorted(seen) == [0, 1, 2, 3]
    for rank, text in seen.items():
        assert text.startswith(f"rank {rank}: ranks disagree")
        assert f"rank {odd}: value float64 [5]" in text
        assert "value float64 [4]" in text


@pytest.mark.parametrize("what", ["dtype", "operator", "collective", "root"])
def test_every_part_of_a_call_is_compared(what):
    def body(comm):
        odd = comm.rank == 2
        x = np.zeros(4, np.float32 if what == "dtype" and odd else np.float64)
        if what == "collective" and odd:
            return comm.broadcast(x)
        if what == "root":
            return comm.reduce(x, SUM, root=1 if odd else 0)
        return comm.allreduce(x, MAX if what == "operator" and odd else SUM)

    part = {"dtype": "arrays"}.get(what, what)
    with pytest.raises(MismatchError, match=rf"{part}: ranks 0, 1: .*rank 2: "):
        run_local(body, ranks=3)


def test_a_closed_communicator_says_why():
    def body(comm):
        with comm:
            comm.allreduce(np.ones(1), SUM)
        with pytest.raises(TopocommError, match="takes no call now: it was closed"):
            comm.allreduce(np.ones(1), SUM)

    run_local(body, ranks=2)


def test_one_call_at_a_time():
    mine = threading.local()
    told = []

    def combine(a, b):
        try:
            mine.comm.allreduce(np.ones(1), SUM)
        except TopocommError as error:
            told.append(str(error))
        return {"value": a["value"] + b["value"]}

    greedy = Operator("greedy", (Field("value"),), combine, {"value": 0})

    def body(comm):
        mine.comm = comm
        return comm.allreduce(np.ones(1), greedy)

    run_local(body, ranks=2)
    assert told
    assert all("one at a time" in text for text in told)


@pytest.mark.parametrize("ranks", [0, -1, 2000])
def test_rank_counts_are_checked(ranks):
    with pytest.raises(PlanError, match=f"ranks {ranks}: expected 1 to 1024"):
        run_local(lambda comm: None, ranks=ranks)


def test_shift_moves_buffers_around_the_ring():
    """The same arrays again, others, and others of other lengths from call to call."""

    def body(comm):
        held = np.full(9, comm.rank, np.uint8)
        other = np.empty_like(held)
        shift = comm.prepare_shift()
        for step in range(comm.size - 1):
            shift.start([held] if step % 2 == 0 else [other], [other] if step % 2 == 0 else [held])
            shift.wait()
        before = (comm.rank - 1) % comm.size
        for length in (3, 3, 5, 0, 4):
            mine, theirs = (np.full(length + rank, length * 7 + rank, np.uint8) for rank in (comm.rank, before))
            came = np.zeros_like(theirs)
            shift.start([mine], [came])
            shift.advance()
            shift.wait()
            np.testing.assert_array_equal(came, theirs)
        return (other if comm.size % 2 == 0 else held)[0]

    for ranks in (2, 3, 5):
        assert run_local(body, ranks=ranks) == [(rank + 1) % ranks for rank in range(ranks)]


def test_shift_makes_requests_for_other_arrays_only():
    def body(comm):
        made = []
        batch = comm.transport.batch
        comm.transport.batch = lambda *args: made.append(args) or batch(*args)
        shift = comm.prepare_shift(2)
        sends, receives = ([np.zeros(size, np.uint8) for size in (4, 8)] for _ in range(2))
        counts = []
        for pair in ((sends, receives), (sends, receives), (receives, sends), (receives, sends)):
            shift.start(*pair)
            shift.wait()
            counts.append(len(made))
        return counts

    assert run_local(body, ranks=2) == [[4, 4, 8, 8]] * 2


def test_shift_of_another_number_of_messages_is_refused():
    def body(comm):
        shift = comm.prepare_shift(2)
        one = [np.zeros(4, np.uint8)]
        with pytest.raises(TopocommError, match="2 messages each way, got 1 to send and 2 to receive"):
            shift.start(one, one * 2)
        return comm.allreduce(np.ones(1), SUM).tolist()

    assert run_local(body, ranks=2) == [[2.0]] * 2


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


def test_a_machine_without_routes_is_refused():
    """In canonical order nobody relays."""

    def body(comm):
        return comm.allreduce(np.ones(1), SUM, order="canonical", shards=(comm.rank, comm.rank + 1))

    with pytest.raises(PlanError, match="no path"):
        run_local(body, ranks=4, topology=line(4))


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
