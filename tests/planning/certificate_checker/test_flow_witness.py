"""Flow witnesses that do not hold are found; right ones give the bound again."""

import pytest

from tests.planning.bounds.time.test_weighted_groups import mesh
from tests.planning.certificate_checker.test_time_witness import KIB, made, refused
from topocomm import PlanError
from topocomm.planning.certificate_checker.flow_witness import least_flow_us
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph

LINE = mesh({(0, 1): 100.0, (1, 2): 50.0})
ENDS = ("GPU0", "GPU2")


def flow_us(links, ports, value_us=1000.0, at_once=1):
    return least_flow_us(WitnessGraph(LINE, LINE.endpoints), ENDS, links, ports, at_once, value_us)


def test_by_hand_along_a_line():
    """2 us of latency, and the value over the one link or port that has a weight; of two it is their mean."""
    assert flow_us([("GPU1", "GPU2", 1.0)], []) == pytest.approx(2 + 1000 / 50)
    assert flow_us([("GPU0", "GPU1", 7.0)], []) == pytest.approx(2 + 1000 / 100)
    assert flow_us([], [("GPU2", "in", 0.1)]) == pytest.approx(2 + 1000 / 50)
    assert flow_us([], [("GPU2", "in", 0.1)], at_once=2) == pytest.approx(2 + 1000 / 50 / 2)
    both = flow_us([("GPU0", "GPU1", 1.0), ("GPU1", "GPU2", 1.0)], [])
    assert both == pytest.approx(2 + (1000 / 50 + 1000 / 100) / 2)


def test_what_no_way_needs_bounds_nothing():
    for links, ports in (([], []), ([("GPU1", "GPU0", 1.0)], []), ([], [("GPU0", "in", 1.0)])):
        with pytest.raises(PlanError, match="some way holds nothing of what has a weight"):
            flow_us(links, ports)


def test_only_links_and_ports_that_are_there():
    for links, ports, message in (
        ([("GPU0", "GPU2", 1.0)], [], "links of the topology"),
        ([("GPU0", "GPU1", -1.0)], [], "weights of at least 0"),
        ([("GPU0", "GPU1", 1.0)], [("GPU0", "out", -0.1)], "weights of at least 0"),
        ([], [("GPU9", "out", 1.0)], "ports of endpoints"),
        ([], [("GPU0", "up", 1.0)], "ports of endpoints"),
    ):
        with pytest.raises(PlanError, match=message):
            flow_us(links, ports)


def test_a_plan_with_another_witness_is_refused():
    machine, one = made("flow")
    witness = one.certificate.witness
    assert one.payload_bytes == 64 * KIB
    to_end, rest = [], []
    for src, dst, each in witness["links"]:
        (to_end if dst == one.ranks[witness["to"]] else rest).append([src, dst, each])
    refused(machine, one, "time bound is|some way holds nothing", links=rest, ports=[])
    heavier = [[src, dst, 2 * each] for src, dst, each in to_end]
    refused(machine, one, "time bound is", links=[*heavier, *rest])
    refused(machine, one, "needs nothing of rank", **{"to": witness["from"]})
    refused(machine, one, "outside 0..7", **{"to": -1})
    refused(machine, one, "malformed witness", links=[["GPU0"]])
