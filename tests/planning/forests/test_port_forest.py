"""Trees packed into ports: as much as ports allow, in turns that no port has twice, and plans that are proved."""

import pytest

import topocomm
from tests.machines import switch
from tests.planning.bounds.time.test_weighted_groups import TRIANGLE, mesh
from topocomm import check_certificate, plan
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.time.weighted_groups import weighted_groups
from topocomm.planning.collectives import collective_of
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.packing import pack
from topocomm.planning.forests.linear_program.pricers import OutTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.port_forest import port_forest
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20
NAMES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter")


def made(machine, name, ranks=None, rows=4096):
    ends = machine.endpoints[:ranks]
    return port_forest(collective_of(name, len(ends), rows), PathFinder(machine), ends, rows)


@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "mi100-8"])
def test_the_packing_reaches_the_bound_by_weighted_groups(system):
    """Trees from one root can be packed into whatever every group lets in (Edmonds 1973)."""
    machine = topocomm.catalog(system)
    paths, ends = PathFinder(machine), machine.endpoints
    demand = demand_of(collective_of("broadcast", len(ends), 4096))
    least = min(each.gb_per_s for each in weighted_groups(demand, Machine(ends, paths)))
    packing = pack(OutTrees(no_symmetry(network_of(paths, ends)), 0, 1), 1e-3, 300)
    carried = sum(weight for weight, _ in packing.parts)
    bound = topocomm.plan(machine, "broadcast", payload_bytes=64 * MIB, objective="throughput").certificate
    assert carried <= least * (1 + 1e-9)
    assert carried >= min(least, bound.throughput_upper_bound_gb_per_s) * 0.998


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", [mesh(TRIANGLE), topocomm.catalog("mi250x")], ids=["triangle", "mi250x"])
def test_no_port_has_two_messages_in_a_turn(machine, name):
    forest = made(machine, name)
    schedule = forest.schedule(1, 4)
    of_message = {(src, dst, chunk, up): round_ for round_, src, up, dst, _, chunk, _ in schedule.transfers.tolist()}
    for end in (0, 1):
        turns = [(message[end], round_ % forest.period) for message, round_ in of_message.items()]
        assert len(turns) == len(set(turns))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_on_has_arrived_half_a_period_before(name):
    forest = made(topocomm.catalog("dgx-1-v100"), name)
    schedule = forest.schedule(1, 4)
    arrived = {(dst, slot, chunk): round_ for round_, _, _, dst, slot, chunk, _ in schedule.transfers.tolist()}
    inner = 0
    for round_, src, slot, _, _, chunk, _ in schedule.transfers.tolist():
        if (src, slot, chunk) in arrived:
            inner += 1
            assert round_ - arrived[src, slot, chunk] > forest.period // 2
    assert inner or name in ("reduce", "reduce_scatter")  # whose messages carry folds


@pytest.mark.parametrize(
    ("system", "name", "most"),
    [
        ("mi250x", "reduce", 1.15),
        ("mi250x", "broadcast", 1.15),
        ("mi250x", "allgather", 1.2),
        ("mi250x", "reduce_scatter", 1.2),
    ],
)
def test_plans_on_meshes_stand_close_to_their_bounds(system, name, most):
    """16 MiB, where rings over the links of a mesh, halving and trees took 1.6 to 2 times the bound."""
    machine = topocomm.catalog(system)
    one = plan(machine, name, payload_bytes=16 * MIB)
    assert one.algorithm.startswith("port-forest-")
    assert one.certificate.gap <= most
    check_certificate(machine, one)


@pytest.mark.parametrize("slices", [1, 64, 4096])
def test_short_slices_wait_for_the_latency_of_what_they_send_on(slices):
    """1 us: as many turns as pass in it, of a period that is as much shorter as the slices are."""
    forest = made(mesh(TRIANGLE), "broadcast", rows=1 << 18)
    arrived, waits = {}, []
    for round_, src, slot, dst, to, chunk, _ in forest.schedule(slices, 4).transfers.tolist():
        arrived[dst, to, chunk] = round_
        waits += [round_ - arrived[src, slot, chunk]] if (src, slot, chunk) in arrived else []
    turn_us = forest.period_us * 4 / slices / forest.period
    assert waits and min(waits) > 1.0 / turn_us


def test_machines_that_have_none():
    assert made(switch(8), "broadcast") is None
    assert made(topocomm.catalog("mi300x-8"), "broadcast") is None
    assert made(topocomm.catalog("mi250x", hosts=3), "broadcast") is None
    assert made(topocomm.catalog("mi250x"), "broadcast", ranks=2) is None
    assert made(topocomm.catalog("mi250x", hosts=2), "allreduce") is None  # too many messages


@pytest.mark.parametrize("name", ["scan", "exscan", "gather", "scatter", "alltoall"])
def test_other_collectives_have_none(name):
    one = plan(topocomm.catalog("mi250x"), name, payload_bytes=MIB)
    assert not any(each.algorithm.startswith("port-forest") for each in one.candidates)


def test_folds_in_rank_order_have_none():
    rows = (topocomm.operators.operator.Field("x", ("*rows",)),)
    right = topocomm.Operator("right", rows, lambda a, b: b, {"x": 0}, commutative=False)
    machine = topocomm.catalog("mi250x")
    names = {each.algorithm for each in plan(machine, payload_bytes=12 * MIB, operator=right).candidates}
    assert names and not any(name.startswith("port-forest") for name in names)
