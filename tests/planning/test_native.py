"""When a plan says that a library's own collective takes less, and that it says so in its file."""

import json
from dataclasses import replace

import numpy as np
import pytest

import topocomm
from attention import LOGSUMEXP
from tests.machines import hosts, switch
from tests.plans import request_on
from topocomm import ARGMAX, BOR, MAX, PROD, SUM, Field, Operator, PlanError, catalog
from topocomm.planning.cost.nccl_model import Nvls, Ranks
from topocomm.planning.formats.plan_json import dumps, plan_digest, plan_document
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.report.plan_text import plan_text

H100 = catalog("dgx-h100")
LONG = 64 << 20
OWN_SUM = Operator("sum", (Field("value"),), lambda a, b: {"value": a["value"] + b["value"]}, {"value": 0}, True)


def native(topology=H100, payload_bytes=LONG, **wanted):
    return topocomm.plan(topology, wanted.pop("collective", "allreduce"), payload_bytes=payload_bytes, **wanted).native


def with_dtype(dtype, operator=SUM, topology=H100, collective="allreduce", **wanted):
    layout = operator.layout({"value": ((1 << 22,), np.dtype(dtype))})
    asked = request_on(topology, collective, operator, layout)
    return make_plan(topology, replace(asked, native=True, **wanted)).native


def test_long_sums_on_switches_that_reduce_go_by_the_library():
    told = native()
    assert (told.library, told.call, told.algorithm, told.chosen) == ("nccl", "ncclAllReduce", "NVLS", True)
    assert told.predicted_us == pytest.approx(25 + LONG / (2 * 450 * 0.85 * 15 / 16 * 8 / 14) / 1e3)
    assert told.planned_us == pytest.approx(topocomm.plan(H100, payload_bytes=LONG).figures.predicted_us + 6.6)


def test_short_sums_keep_the_schedule():
    told = native(payload_bytes=1024)
    assert (told.algorithm, told.chosen) == ("ring LL", False)
    assert told.predicted_us > told.planned_us


def test_the_machine_counts():
    assert not native(catalog("dgx-a100")).chosen, "its switches forward, and rings are no better than the schedule"
    assert native(catalog("dgx-a100")).algorithm == "ring Simple"
    assert native(catalog("dgx-h100", hosts=2)).algorithm == "NVLS tree"
    assert native(catalog("mi300x-8")) is None, "RCCL has another model"
    assert native(catalog("cpu-2-socket")) is None
    assert native(H100, ranks=["GPU0"]) is None
    assert native(H100, ranks=["GPU0", "GPU1", "GPU1"]) is None, "NCCL takes one rank on a GPU"


@pytest.mark.parametrize(
    "wanted",
    [
        {"order": "canonical"},
        {"objective": "throughput"},
        {"objective": "latency"},
        {"operator": OWN_SUM},
        {"operator": LOGSUMEXP, "payload_bytes": 516 << 10},
        {"operator": ARGMAX, "payload_bytes": 12 << 10},
        {"collective": "scan"},
        {"payload_bytes": 0},
        {"collective": "reduce_scatter", "parts": (8, *[0] * 7), "payload_bytes": 32},
        {"collective": "allgather", "parts": (1, 3, *[2] * 6), "payload_bytes": 64},
    ],
)
def test_what_the_library_does_not_have_is_not_in_question(wanted):
    assert native(**wanted) is None


def test_parts_of_one_length_are_in_question():
    assert native(collective="reduce_scatter").call == "ncclReduceScatter"
    assert native(collective="allgather").call == "ncclAllGather"


def test_dtypes():
    assert with_dtype("float16").algorithm == with_dtype("int32", MAX).algorithm == "NVLS"
    assert with_dtype("int32", PROD).algorithm != "NVLS", "switches know no products"
    assert with_dtype("int8").dtype == "int8"
    assert with_dtype("complex64") is None
    assert with_dtype("int16") is None
    assert with_dtype("int32", BOR) is None
    assert with_dtype("int16", collective="allgather").dtype == "int16", "bytes are gathered"


def test_maxima_of_floats_keep_the_schedule():
    told = with_dtype("float32", MAX, replace(H100, launch_us=5000.0))
    assert told.predicted_us < told.planned_us
    assert not told.chosen
    assert "drop NaN" in told.why
    assert with_dtype("int64", MAX, replace(H100, launch_us=5000.0)).chosen


def test_what_a_launch_was_measured_to_take_counts_for_both():
    dear = native(replace(H100, launch_us=16.6), payload_bytes=1024)
    plan = topocomm.plan(replace(H100, launch_us=16.6), payload_bytes=1024)
    assert dear.predicted_us == pytest.approx(native(payload_bytes=1024).predicted_us + 10.0)
    assert dear.planned_us == plan.figures.predicted_us


def seen(monkeypatch, topology, ranks=None):
    """What the model is told of a communicator."""
    told = []

    def model(collective, where, payload_bytes):
        told.append(where)
        return {"ring LL": 1.0}

    monkeypatch.setattr("topocomm.planning.native.times_us", model)
    topocomm.plan(topology, payload_bytes=4096, ranks=ranks)
    return told[0]


def test_what_the_model_is_told(monkeypatch):
    assert seen(monkeypatch, H100) == Ranks(8, 1, True, pytest.approx(450 * 8 / 14), Nvls(450.0, 0.0))
    two = seen(monkeypatch, catalog("dgx-h100", hosts=2))
    assert two == Ranks(16, 2, True, pytest.approx(16 * (450 + 50) / 30), Nvls(450.0, 400.0))
    mixed = ["h0/GPU0", "h0/GPU1", "h1/GPU0"]
    assert seen(monkeypatch, catalog("dgx-h100", hosts=2), mixed)[:3] == (3, 2, True)
    assert seen(monkeypatch, catalog("dgx-h100", hosts=2), mixed).nvls is None, "a node with one rank"
    assert seen(monkeypatch, hosts(2, 4))[:3] == (8, 2, True), "NVLink as far as GPUs and switches go, not their cards"
    assert seen(monkeypatch, catalog("dgx-1-v100"))[:3] == (8, 1, True), "through a GPU between"
    assert seen(monkeypatch, catalog("rtx4090-pcie-8"))[:3] == (8, 1, False)
    rack = catalog("gb200-nvl72")
    assert len(rack.hosts) == 18
    assert seen(monkeypatch, rack, rack.endpoints[:8])[:2] == (8, 1), "NVLink joins the trays of a rack"
    assert seen(monkeypatch, rack, rack.endpoints[:8]).nvls == Nvls(900.0, 0.0)


def test_plan_files_say_it_where_it_is_in_question():
    plan = topocomm.plan(H100, payload_bytes=LONG)
    again = Plan.loads(dumps(plan))
    assert again.native == plan.native and again.digest == plan.digest
    assert plan_document(plan)["native"]["chosen"] is True
    assert plan_digest(plan_document(replace(plan, native=None))) != plan.digest
    assert "native" not in plan_document(topocomm.plan(H100, payload_bytes=LONG, order="canonical"))
    assert "native" not in plan_document(topocomm.plan(switch(1), payload_bytes=LONG))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"predicted_us": 999.0}, "native.chosen is true with 999.0 us against"),
        ({"chosen": 1}, "native.chosen: expected true or false"),
        ({"much": 1}, "native.much: unknown"),
    ],
)
def test_plan_files_with_another_choice_are_refused(changed, text):
    document = plan_document(topocomm.plan(H100, payload_bytes=LONG))
    document["native"] = {**document["native"], **changed}
    with pytest.raises(PlanError, match=text):
        Plan.loads(json.dumps({**document, "digest": plan_digest(document)}))


def test_figures_that_are_not_the_models_are_found():
    plan = topocomm.plan(H100, payload_bytes=LONG)
    topocomm.check_certificate(H100, plan)
    for part, value in (("predicted_us", 100.0), ("planned_us", 200.0), ("call", "ncclReduce"), ("algorithm", "ring")):
        with pytest.raises(PlanError, match=f"native: {part} is"):
            topocomm.check_certificate(H100, replace(plan, native=replace(plan.native, **{part: value})))
    mended = replace(plan, native=replace(plan.native, chosen=False))
    topocomm.check_certificate(H100, mended)


def test_the_text_says_what_is_chosen_and_why():
    text = " ".join(plan_text(topocomm.plan(H100, payload_bytes=LONG), H100).split())
    assert "native ncclAllReduce is chosen: NVLS takes 188.75 us" in text
    assert "its order and bits are the library's, not proved" in text
    text = " ".join(plan_text(topocomm.plan(H100, payload_bytes=1024), H100).split())
    assert "native ncclAllReduce is not chosen: ring LL takes 15.01 us" in text
    assert "with one launch of 6.6 us" in text
    assert " native " not in plan_text(topocomm.plan(H100, payload_bytes=1024, order="canonical"), H100)
