"""Trees by the edges that complete first: proved, as soon as they said, and sooner than what was there."""

import pytest

from tests.machines import switch
from topocomm import Field, Operator, catalog, check_certificate, plan
from topocomm.planning.collectives import collective_of
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.forests.edge_forest import CHUNKS, edge_forest
from topocomm.planning.planner import chosen_from
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.earliest_edges import earliest_edges
from topocomm.planning.routing.paths import PathFinder

KIB = 1 << 10
ROWS = (Field("x", ("*rows",)),)


def made(machine, name, rows, root=0):
    collective = collective_of(name, len(machine.endpoints), rows, root=root)
    return collective, edge_forest(collective, PathFinder(machine), machine.endpoints, rows, 4)


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 5000])
@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "mi100-8", "rtx4090-pcie-4-2-socket"])
def test_it_is_proved(system, name, rows):
    machine = catalog(system)
    collective, schedule = made(machine, name, rows, root=2)
    assert verify(schedule, collective).each_contribution_once
    assert len(schedule.chunks) <= min(rows, CHUNKS)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize("system", ["dgx-1-v100", "mi100-8"])
def test_events_take_as_long_as_the_edges_said(system, name):
    machine, rows = catalog(system), 16 * KIB
    collective, schedule = made(machine, name, rows)
    paths, ends = PathFinder(machine), machine.endpoints
    cost = Cost(schedule, ends, paths, row_bytes=4, port_model="loggp", collective=collective)
    order = earliest_edges(ends, paths, [0] * CHUNKS, rows * 4 / CHUNKS)
    assert cost.predicted_us == pytest.approx(order.us, rel=0.02)


@pytest.mark.parametrize(("name", "most"), [("reduce", 5.1), ("broadcast", 5.1)])
def test_64_kib_on_a_dgx_1(name, most):
    """By halves over two rails it was 6.73 and 6.03 us."""
    machine = catalog("dgx-1-v100")
    best = plan(machine, name, payload_bytes=64 * KIB)
    times = {each.algorithm: each.predicted_us for each in best.candidates}
    assert best.figures.predicted_us <= times["edge-forest"] < most
    check_certificate(machine, best)


def test_where_it_is_offered():
    """On one host whose pairs are unlike, for values that may be cut and folded in any order, one message at a time."""

    def offered(machine, name="broadcast", payload_bytes=64 * KIB, **options):
        best = plan(machine, name, payload_bytes=payload_bytes, **options)
        return "edge-forest" in {each for each, _ in chosen_from(machine, best.request)}

    machine, first = catalog("dgx-1-v100"), Operator("first", ROWS, lambda a, b: a, {"x": 0}, commutative=False)
    assert offered(machine) and offered(machine, "reduce") and offered(machine, operator=first)
    assert not offered(switch(8)) and not offered(catalog("dgx-1-v100", hosts=2))
    assert not offered(machine, "reduce", operator=first)
    assert not offered(machine, ports=2) and not offered(machine, objective="latency")
    assert not offered(machine, payload_bytes=4 * KIB) and not offered(machine, payload_bytes=1024 * KIB)
    assert not offered(machine, ranks=[machine.endpoints[0]] * 3)
