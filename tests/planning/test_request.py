"""Requests that are no requests: one line that names the argument."""

from dataclasses import replace

import pytest

from tests.machines import switch
from topocomm import SUM, PlanError, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.planner import make_plan
from topocomm.planning.request import on_every_endpoint, port_model_of


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"ports": 1.5}, "ports 1.5: expected a whole number"),
        ({"ports": 4}, "ports 4: expected 1 to 3 with 4 ranks"),
        ({"root": 0.5}, "root 0.5: expected a whole number"),
        ({"payload_bytes": 8.0}, "payload_bytes 8.0: expected a whole number"),
        ({"payload_bytes": None}, "payload_bytes None: expected a whole number"),
        ({"ranks": "GPU0"}, "ranks 'GPU0': expected a list of endpoint ids, one for each rank"),
        ({"ranks": ["GPU0", "GPU9"]}, "rank on 'GPU9': not an endpoint of topology 'switch"),
        ({"topology": "dgx-h100"}, "topology: expected a topocomm.Topology, got str; topocomm.load(path) reads one"),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(wanted, message):
    request = {"topology": switch(4), "collective": "reduce", "payload_bytes": 64} | wanted
    with pytest.raises(PlanError) as error:
        plan(**request)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


LAYOUT = SUM.default_layout(16)


def asked(**fields):
    return replace(on_every_endpoint(switch(4), Collective("allreduce", 4), SUM, LAYOUT), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective": "speed"}, "objective 'speed': expected one of latency, rounds, throughput, auto"),
        ({"port_model": "beta"}, "port model 'beta': expected one of alpha, loggp"),
        ({"ports": 0}, "ports 0: expected 1 to 3 with 4 ranks"),
        ({"endpoints": ("GPU0",)}, "allreduce over 4 ranks: expected an endpoint for each rank, got 1 endpoints"),
    ],
)
def test_a_request_checks_its_fields(fields, message):
    with pytest.raises(PlanError) as error:
        asked(**fields)
    assert str(error.value) == message


def test_a_request_for_another_machine_is_refused():
    with pytest.raises(PlanError, match="rank on 'GPU3': not an endpoint of topology 'switch of 3'"):
        make_plan(switch(3), asked())


@pytest.mark.parametrize("objective", ["auto", "latency", "rounds", "throughput"])
def test_a_plan_is_that_of_its_request(objective):
    request = asked(objective=objective, port_model=port_model_of(objective), native=True)
    wanted = plan(switch(4), payload_bytes=64, objective=objective)
    assert make_plan(switch(4), request).digest == wanted.digest


def test_what_a_library_takes_does_not_tell_requests_apart():
    """One search serves both; only the plan says more."""
    assert asked(native=True) == asked() and hash(asked(native=True)) == hash(asked())
    assert asked(cores=2) != asked()
