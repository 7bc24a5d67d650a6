"""When a plan says that a library's own collective takes less, and that it says so in its file."""

import json
from dataclasses import replace

import numpy as np
import pytest

import topocomm
from attention import LOGSUMEXP
from tests.machines import hosts, switch
from tests.planning.formats.plan_documents import signed
from tests.plans import request_on
from topocomm import ARGMAX, BOR, MAX, PROD, SUM, Field, Operator, PlanError, catalog
from topocomm.planning.formats.plan_json import dumps, plan_document
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.planning.libraries.nccl_times import nvls_us
from topocomm.planning.native import shape_of
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.report.plan_text import plan_text
from topocomm.simulation import simulate_collective

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
    assert told.predicted_us == pytest.approx(nvls_us(job_shape(H100), DEFAULTS, LONG))
    figures = topocomm.plan(H100, payload_bytes=LONG).figures
    bytes_us = figures.predicted_us - figures.alpha_us
    assert told.planned_us == pytest.approx(figures.alpha_us + bytes_us / DEFAULTS["efficiency.nvlink"] + 6.6)


@pytest.mark.parametrize(
    ("system", "hosts"),
    [("dgx-h100", 1), ("dgx-h100", 4), ("dgx-h100", 16), ("dgx-a100", 2), ("gb200-nvl72", 1), ("dgx-1-v100", 1)],
)
@pytest.mark.parametrize("payload_bytes", [1 << 10, 1 << 20, 16 << 20, 64 << 20])
def test_plans_say_what_the_simulator_says(system, hosts, payload_bytes):
    topology = catalog(system, hosts=hosts)
    told = native(topology, payload_bytes)
    simulated = simulate_collective(topology, "nccl", payload_bytes=payload_bytes)
    assert told.predicted_us == pytest.approx(simulated.total_us, rel=0.04)
    figures = {"figures": {"nccl.start_us.LL": 100.0, "nccl.start_us.LL128": 110.0, "nvls.start_us": 120.0}}
    slower = native(replace(topology, facts={"calibration": figures}), payload_bytes)
    assert slower.algorithm == told.algorithm
    assert "Simple" in told.algorithm or slower.predicted_us > told.predicted_us + 80, "what was fitted counts"


def test_short_sums_keep_the_schedule():
    told = native(payload_bytes=1024)
    assert (told.algorithm, told.chosen) == ("ring LL", False)
    assert told.predicted_us > told.planned_us


def test_the_machine_counts():
    assert not native(catalog("dgx-a100")).chosen, "its switches forward, and rings are no better than the schedule"
    assert native(catalog("dgx-a100"), 1 << 30).algorithm == "ring Simple"
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
    bytes_us = plan.predicted_us - plan.figures.alpha_us - 3 * 16.6
    assert dear.planned_us == pytest.approx(plan.predicted_us + bytes_us * (1 / DEFAULTS["efficiency.nvlink"] - 1))


def test_the_predicted_time_of_a_plan_is_its_schedules():
    plan = topocomm.plan(H100, payload_bytes=LONG)
    assert plan.predicted_us == plan.figures.predicted_us == plan_document(plan)["predicted_us"]
    assert plan.call_us == plan.native.predicted_us != plan.predicted_us
    short = topocomm.plan(H100, payload_bytes=1024)
    assert short.native is not None and short.call_us == short.predicted_us


def seen(topology, ranks=None, operator=SUM):
    """The shape that NCCL's model is told of."""
    return shape_of(topocomm.plan(topology, payload_bytes=4096, ranks=ranks, operator=operator), topology, "float32")


def test_what_the_model_is_told():
    two = catalog("dgx-h100", hosts=2)
    assert seen(two).reduces and not seen(two, operator=MAX).reduces, "switches know no maxima of floats"
    uneven = seen(two, ["h1/GPU0", "h0/GPU0", "h0/GPU1", "h1/GPU1", "h0/GPU2"])
    assert (uneven.hosts, uneven.per_host, uneven.network_gb_per_s) == (2, 3, 100.0), "ports of the host with fewest"
    assert not seen(two, ["h0/GPU0", "h0/GPU1", "h1/GPU0"]).reduces, "a node with one rank"
    assert seen(hosts(2, 4)).inner == "nvlink", "NVLink as far as GPUs and switches go, not their cards"
    assert seen(catalog("rtx4090-pcie-8")).inner == "pcie"
    rack = catalog("gb200-nvl72")
    assert len(rack.hosts) == 18
    assert (seen(rack, rack.endpoints[:8]).hosts, seen(rack, rack.endpoints[:8]).per_host) == (1, 8)


def test_plan_files_say_it_where_it_is_in_question():
    plan = topocomm.plan(H100, payload_bytes=LONG)
    again = Plan.loads(dumps(plan))
    assert again.native == plan.native and again.digest == plan.digest
    assert plan_document(plan)["native"]["chosen"] is True
    assert replace(plan, native=None).digest != plan.digest
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
    document = json.loads(dumps(topocomm.plan(H100, payload_bytes=LONG)))
    document["native"] = {**document["native"], **changed}
    with pytest.raises(PlanError, match=text):
        Plan.loads(signed(document))


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
    assert "native ncclAllReduce is chosen: NVLS takes 283.15 us" in text
    assert "its order and bits are the library's, not proved" in text
    text = " ".join(plan_text(topocomm.plan(H100, payload_bytes=1024), H100).split())
    assert "native ncclAllReduce is not chosen: ring LL takes 15.52 us" in text
    assert "with one launch of 6.6 us and 82% of the links' rates" in text
    assert " native " not in plan_text(topocomm.plan(H100, payload_bytes=1024, order="canonical"), H100)
