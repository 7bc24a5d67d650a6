"""A plan beside the same reduction as one SUM."""

import re

import pytest

from attention import LOGSUMEXP
from tests.execute.sum_cases import MEAN
from topocomm import LOGADDEXP, MAX, catalog, plan
from topocomm.operators.sum_lowering import DIGEST_ITEMS
from topocomm.planning.cost.nccl_model import times_us
from topocomm.planning.native import communicator_of
from topocomm.planning.report.sum_comparison import sum_notes

H100 = catalog("dgx-h100")


def notes(operator, rows=32, topology=H100, collective="allreduce", **wanted):
    made = plan(
        topology, collective, payload_bytes=rows * operator.default_layout(1).row_bytes, operator=operator, **wanted
    )
    return made, sum_notes(made, topology, operator)


def test_every_way_has_its_time():
    made, (ways, known) = notes(LOGSUMEXP)
    size = 4 * (32 * (128 + 4) + DIGEST_ITEMS)
    where = communicator_of(made, H100, "float32")
    assert ways.startswith(f"relative to a reference that all ranks know, one SUM of {size} B: a schedule ")
    times = times_us("allreduce", where, size)
    least = min(us for name, us in times.items() if not name.startswith("NVLS"))
    assert f"ncclAllReduce (ring LL) {least:.2f} us" in ways
    assert ways.endswith(f"the merge by this plan at {made.figures.predicted_us + 6.6:.2f} us with one launch is least")
    half = min(times_us("reduce_scatter", where, size).values())
    assert known.startswith(f"ncclReduceScatter {half:.2f} us leaves")


def test_switches_win_where_values_are_large():
    _, (ways, _) = notes(LOGADDEXP, rows=1 << 26)
    own, switches = (float(re.search(rf"{name} ([0-9.]+) us", ways)[1]) for name in ("plan at", r"\(NVLS\)"))
    assert ("comm.prepare_sum takes in the switches (NVLS)" in ways) == (switches < own)


@pytest.mark.parametrize("operator", [LOGADDEXP, MEAN])
def test_of_libraries_without_a_model_the_time_is_not_known(operator):
    made, (ways, known) = notes(operator, topology=catalog("cpu-2-socket"))
    assert f"{made.figures.predicted_us:.2f} us" in ways and "nccl" not in ways
    assert known.startswith("what the SUM of MPI or gloo takes is not known")
    assert ways.startswith("relative to") == (operator is LOGADDEXP)


def test_canonical_order_is_never_a_sum():
    _, told = notes(LOGSUMEXP, order="canonical")
    assert told == ["canonical order is never taken as one SUM: a library adds up in an order of its own"]


def test_nothing_is_said_of_what_has_no_such_form():
    assert notes(MAX)[1] == notes(LOGSUMEXP, collective="scan")[1] == notes(LOGSUMEXP, rows=0)[1] == []
