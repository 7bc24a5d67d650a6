"""Prepared calls: buffers, memory, plans, what they check."""

import threading
import tracemalloc

import numpy as np
import pytest

import topocomm
from tests.execute.collective_cases import MOMENTS
from tests.machines import switch
from tests.plans import every_plan
from topocomm import (
    SUM,
    Field,
    Operator,
    OperatorError,
    PlanError,
    TopocommError,
    run_local,
)
from topocomm.execute.calls import prepared_call


def test_prepared_calls_take_their_input_in_place():
    def body(comm):
        like = {"total": np.zeros((4, 2)), "count": np.zeros(4, np.int64)}
        call = comm.prepare("allreduce", like=like, operator=MOMENTS)
        results = []
        for step in range(5):
            buffers = call.input
            inputs, count = call.turns
            assert buffers is inputs[0 if count is None else (count[0] + 1) % 2]
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


def test_prepared_calls_check_what_they_are_given():
    def body(comm):
        call = comm.prepare("allreduce", like=np.zeros((2, 3)), operator=SUM)
        locked = np.zeros((2, 3))
        locked.flags.writeable = False
        for x, out, message in (
            (np.zeros((3, 2)), None, r"x must be float64 \[2, 3\] as prepared, got float64 \[3, 2\]"),
            (np.zeros((2, 3), np.float32), None, r"must be float64 .* got float32"),
            (None, None, "x is missing"),
            (np.zeros((2, 3)), locked, "out is read-only"),
            (np.zeros((2, 3)), np.zeros(6), "out must be"),
        ):
            with pytest.raises(OperatorError, match=message):
                call(x, out=out)
        return call(np.ones((2, 3)))

    for result in run_local(body, ranks=2):
        np.testing.assert_array_equal(result, np.full((2, 3), 2.0))


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


def test_a_kept_call_by_messages_inspects_a_value_once(monkeypatch):
    """Its shapes are those of its signature, by which the call was found."""
    checked = []
    monkeypatch.setattr(prepared_call, "check_shapes", lambda what, fields, shapes: checked.append(what))

    def body(comm):
        for x in (np.ones(3), np.ones((2, 2)), np.ones(3)):
            np.testing.assert_array_equal(comm.scan(x, SUM), (1 + comm.rank) * x)
            y = np.empty_like(x)
            assert comm.scan({"value": x}, SUM, out={"value": y})["value"] is y
        return True

    assert run_local(body, ranks=2) == [True, True]
    assert set(checked) == {"out"}


@pytest.mark.parametrize("torch_given", [False, True])
def test_other_fields_than_prepared_are_refused_in_words(torch_given):
    torch = pytest.importorskip("torch") if torch_given else None

    def body(comm):
        like = {"total": np.zeros((4, 2)), "count": np.zeros(4, np.int64)}
        if torch is not None:
            like = {name: torch.from_numpy(array) for name, array in like.items()}
        call = comm.prepare("allreduce", like=like, operator=MOMENTS)
        call(like)
        total = like["total"]
        for value, apart in (
            ({"total": total}, "missing 'count'"),
            ({**like, "m": total}, "unknown 'm'"),
            (total, "m"),
        ):
            expected = rf"x: expected the fields \['total', 'count'\] as prepared; {apart}"
            with pytest.raises(OperatorError, match=expected):
                call(value)
        return call(like)["count"].tolist()

    assert run_local(body, ranks=2) == [[0] * 4] * 2
