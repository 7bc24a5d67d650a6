"""A plan beside the same reduction as one SUM."""

from dataclasses import replace

import pytest

from attention import LOGSUMEXP
from tests.execute.sum_cases import MEAN
from topocomm import LOGADDEXP, MAX, Plan, catalog, plan
from topocomm.operators.sum_lowering import DIGEST_ITEMS
from topocomm.planning.formats.plan_json import dumps
from topocomm.planning.native import as_executed, call_of, shape_of
from topocomm.planning.report.sum_comparison import compare_sum, sum_notes

H100 = catalog("dgx-h100")


def compared(operator, rows=32, topology=H100, collective="allreduce", **wanted):
    made = plan(
        topology, collective, payload_bytes=rows * operator.default_layout(1).row_bytes, operator=operator, **wanted
    )
    return made, compare_sum(made, topology, operator)


def us(found, *ways):
    """Predicted times of ways."""
    known = {way["way"]: way["predicted_us"] for way in found.ways}
    return [known[way] for way in ways] if ways else known


def test_every_way_has_its_time():
    made, found = compared(LOGSUMEXP)
    assert found.payload_bytes == 4 * (32 * (128 + 4) + DIGEST_ITEMS) and found.takes_reference
    shape = shape_of(made, H100, "float32")
    least = call_of(replace(shape, reduces=False), H100, "allreduce", found.payload_bytes)[1]
    half = call_of(shape, H100, "reduce_scatter", found.payload_bytes)[1]
    merge = as_executed(made, shape, H100)[0]  # with a launch, as NCCL's figures have
    assert us(found, "merge") == [pytest.approx(merge)] and merge > made.figures.predicted_us + 6.6
    assert us(found, "library", "reduce_scatter") == [pytest.approx(least), pytest.approx(half)]
    assert us(found, "in_network")[0] < 1e3 and found.least == "merge"
    (note,) = sum_notes(found)
    for text in (
        f"relative to a reference that all ranks know, one SUM of {found.payload_bytes} B: a schedule ",
        f"ncclAllReduce (ring LL) {least:.2f} us",
        f"each rank's rows alone by ncclReduceScatter {half:.2f} us",
    ):
        assert text in note
    assert note.endswith(f"the merge by this plan at {merge:.2f} us is least, each counted as executed")


def test_a_reduce_scatter_has_a_digest_and_a_count_in_every_block():
    made, found = compared(LOGSUMEXP, rows=33, collective="reduce_scatter")
    assert found.payload_bytes == 4 * (33 * (128 + 4) + 8 * (DIGEST_ITEMS + 1))
    call = call_of(shape_of(made, H100, "float32"), H100, "reduce_scatter", found.payload_bytes)
    assert [*us(found)] == ["merge", "schedule", "library"]
    assert us(found, "library") == [pytest.approx(call[1])]


def test_switches_win_where_values_are_large():
    _, found = compared(LOGSUMEXP, rows=1 << 17)
    assert us(found, "in_network") < us(found, "merge") and found.least == "in_network"
    assert "is not least: comm.prepare_sum takes in the switches (NVLS)" in found.why


@pytest.mark.parametrize("operator", [LOGADDEXP, MEAN])
def test_of_libraries_without_a_model_the_time_is_not_known(operator):
    made, found = compared(operator, topology=catalog("cpu-2-socket"))
    assert us(found, "merge", "library") == [made.figures.predicted_us, None]
    ways, unknown = sum_notes(found)
    assert f"{made.figures.predicted_us:.2f} us" in ways and "nccl" not in ways
    assert unknown.startswith("what the SUM of MPI or gloo takes is not known")
    assert ways.startswith("relative to") == found.takes_reference == (operator is LOGADDEXP)


def test_switches_between_hosts_are_named():
    cluster = catalog("cpu-2-socket", hosts=2)
    switches = [device for device in cluster.devices if device.kind == "switch" and device.host not in ("host0", "h0")]
    devices = tuple(d._replace(in_network="sharp") if d in switches else d for d in cluster.devices)
    _, found = compared(LOGADDEXP, topology=replace(cluster, devices=devices))
    assert us(found, "in_network") == [None] and "in the switches (SHARP) takes is not known" in sum_notes(found)[-1]
    assert "in_network" not in us(compared(LOGADDEXP, topology=cluster)[1])


def test_canonical_order_is_never_a_sum():
    made, found = compared(LOGSUMEXP, order="canonical")
    assert sum_notes(found) == ["canonical order is never taken as one SUM: a library adds up in an order of its own"]
    assert us(found) == {"merge": made.figures.predicted_us} and found.least == "merge"


def test_nothing_is_said_of_what_has_no_such_form():
    for found in (compared(MAX), compared(LOGSUMEXP, collective="scan"), compared(LOGSUMEXP, rows=0)):
        assert found[1] is None and sum_notes(found[1]) == []


def test_the_plan_json_has_it():
    made, found = compared(LOGSUMEXP)
    made = replace(made, as_sum=found)
    read = Plan.loads(dumps(made))
    assert read.as_sum == found and read.digest == made.digest
