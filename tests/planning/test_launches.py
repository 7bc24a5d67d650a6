"""What starting a round costs: in the topology, the choice, the prediction, the plan file and the certificate."""

import json
from dataclasses import replace

import numpy as np
import pytest

import topocomm
from tests.machines import hosts, switch
from tests.planning.formats.plan_documents import signed
from tests.plans import every_plan
from topocomm import Plan, PlanError, TopologyError
from topocomm.planning.formats.plan_json import dumps, plan_document
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.readers.plain.topology_json import from_document, to_document

H100 = catalog("dgx-h100")
LAUNCHED = replace(H100, launch_us=7.0)


@pytest.mark.parametrize("payload_bytes", [0, 64 << 10])
def test_every_round_takes_one(payload_bytes):
    layout = topocomm.SUM.default_layout(payload_bytes // 4)
    before = {one.algorithm: one.figures for one in every_plan(H100, "allreduce", topocomm.SUM, layout)}
    for one in every_plan(LAUNCHED, "allreduce", topocomm.SUM, layout):
        figures, other = one.figures, before[one.algorithm]
        assert figures.predicted_us == pytest.approx(other.predicted_us + 7.0 * figures.rounds, abs=1e-9)
        assert (figures.rounds, figures.alpha_us) == (other.rounds, other.alpha_us)


def test_dear_rounds_make_plans_of_few():
    cheap, dear = (topocomm.plan(machine, payload_bytes=64 << 10) for machine in (H100, LAUNCHED))
    assert cheap.rounds > dear.rounds == 2
    assert (cheap.launch_us, dear.launch_us) == (0.0, 7.0)


@pytest.mark.parametrize("payload_bytes", [0, 64 << 10, 64 << 20])
@pytest.mark.parametrize("objective", ["auto", "latency", "throughput", "rounds"])
def test_certificates_hold(objective, payload_bytes):
    plan = topocomm.plan(LAUNCHED, payload_bytes=payload_bytes, objective=objective)
    topocomm.check_certificate(LAUNCHED, plan)
    topocomm.check_certificate(H100, plan)  # what a launch costs is the plan's
    with pytest.raises(PlanError, match="predicted_us"):
        topocomm.check_certificate(LAUNCHED, replace(plan, launch_us=6.0))
    assert plan.certificate.gap >= 1


def test_one_rank_launches_nothing():
    plan = topocomm.plan(replace(switch(1), launch_us=7.0), payload_bytes=1024)
    assert (plan.figures.predicted_us, plan.certificate.gap) == (0.0, 1.0)


def test_plan_files_say_it_where_there_is_one():
    plan = topocomm.plan(LAUNCHED, payload_bytes=1024)
    again: Plan = Plan.loads(dumps(plan))
    assert again.launch_us == 7.0 and again.digest == plan.digest
    assert "launch_us" not in plan_document(topocomm.plan(H100, payload_bytes=1024))


@pytest.mark.parametrize("value", [-1, None, "7", True, float("inf")])
def test_plan_files_with_another_value_are_refused(value):
    document = json.loads(dumps(topocomm.plan(LAUNCHED, payload_bytes=1024)))
    with pytest.raises(PlanError, match=r"launch_us: expected a number|not JSON"):
        Plan.loads(signed({**document, "launch_us": value}))


def test_topology_files_say_it_where_there_is_one():
    assert "launch_us" not in to_document(H100)
    assert from_document(to_document(LAUNCHED)) == LAUNCHED
    assert LAUNCHED.digest == H100.digest
    with pytest.raises(TopologyError, match=r"launch_us: expected a finite number of at least 0 or null, got -1"):
        from_document({**to_document(H100), "launch_us": -1})


def test_the_dearest_of_several_hosts_counts():
    one, other = switch(2), switch(2)
    assert merge_hosts([one, other]).launch_us is None
    assert merge_hosts([replace(one, launch_us=3.0), replace(other, launch_us=5.0)]).launch_us == 5.0
    assert merge_hosts([one, replace(other, launch_us=5.0)]).launch_us == 5.0


def test_equal_figures_give_equal_plans():
    plans = [topocomm.plan(replace(H100, launch_us=us), payload_bytes=1024) for us in (7, 7.0, np.float32(7))]
    assert {plan.digest for plan in plans} == {Plan.loads(dumps(plans[0])).digest}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "7", [7]])
def test_less_than_no_time_is_refused(value):
    with pytest.raises(TopologyError, match="launch_us"):
        replace(hosts(2, 2), launch_us=value)
