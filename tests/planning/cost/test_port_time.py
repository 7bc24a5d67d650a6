"""Alpha and loggp time, and loads, against an interpreter that follows the cost models message by message."""

import random
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, switch
from tests.planning.schedules import any_schedules
from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.algorithms.flat import flat_allreduce
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost import port_time
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.port_turns import follow, follow_plainly
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Repeat, Transfer, make_schedule
from topocomm.planning.schedule.transforms import unrolled


def grouped(schedule):
    """Per round, (src, dst, path) -> its transfers, in order of first appearance."""
    rounds = [{} for _ in range(schedule.rounds)]
    for move in schedule.transfer_list():
        rounds[move.round].setdefault((move.src, move.dst, move.path), []).append(move)
    return rounds


def way(schedule, ends, paths, src, dst, path):
    """The route of a message."""
    if path < 0:
        return paths.cheapest(ends[src], ends[dst])
    return paths.explicit(schedule.paths[path], ends[src], ends[dst])


def expected_us(schedule, ends, paths, ports, model, row_bytes=0):
    """Time of the last output; with bytes as if no link were shared."""
    kind = {device.id: device.kind for device in paths.topology.devices}
    ready, free = {}, {}
    folds = schedule.combine_list()
    for round_, messages in enumerate(grouped(schedule)):
        arrived = {}
        for (src, dst, path), moves in messages.items():
            route = way(schedule, ends, paths, src, dst, path)
            queues = [("send", ends[src], ports), ("receive", ends[dst], ports)]
            if model == "loggp":
                queues += [("nic", device, 1) for device in route.devices if kind[device] == "nic"]
            bytes_us = sum(schedule.chunks[m.chunk][1] for m in moves) * row_bytes / (route.gb_per_s * 1e3)
            start_us = max(ready.get((src, m.src_slot, m.chunk), 0.0) for m in moves)
            for key in queues:
                start_us = max(start_us, min(free.setdefault(key, [0.0] * key[2])))
            for key in queues:
                free[key].remove(min(free[key]))
                held_us = 0.0 if key[0] == "nic" else bytes_us
                free[key].append(start_us + held_us + (route.gap_us if model == "loggp" else route.latency_us))
            arrived.update({(dst, m.dst_slot, m.chunk): start_us + bytes_us + route.latency_us for m in moves})
        ready.update(arrived)
        for fold in (fold for fold in folds if fold.round == round_):
            operands = [ready.get((fold.rank, slot, fold.chunk), 0.0) for slot in fold.operands]
            ready[fold.rank, fold.out_slot, fold.chunk] = max(operands)
    return max([ready.get(tuple(place), 0.0) for place in schedule.outputs.tolist()] + [0.0])


def expected_throughput(schedule, ends, paths):
    """Rows over the busiest link's time, in GB/s; None where no link is crossed."""
    load = {}
    for messages in grouped(schedule):
        for (src, dst, path), moves in messages.items():
            for edge in way(schedule, ends, paths, src, dst, path).edges:
                load[edge] = load.get(edge, 0) + sum(schedule.chunks[m.chunk][1] for m in moves)
    busiest = max((rows / paths.links[edge].gb_per_s for edge, rows in load.items()), default=0.0)
    return schedule.rows / busiest if busiest else None


@st.composite
def machines(draw):
    """CPUs of two hosts behind shared NICs, with gaps; every pair has a route."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    devices = [Device("net", "switch", "network")]
    links = []
    for host in "ab":
        devices += [Device(f"{host}/m", "numa", host), *(Device(f"{host}/n{i}", "nic", host) for i in range(2))]
        wires = [(f"{host}/n{i}", other) for i in range(2) for other in (f"{host}/m", "net")]
        cpus = [f"{host}/c{i}" for i in range(chance.randint(1, 3))]
        devices += [Device(name, "cpu", host) for name in cpus]
        wires += [(name, f"{host}/{chance.choice(['m', 'm', 'n0', 'n1'])}") for name in cpus]
        for a, b in wires:
            figures = chance.choice([1.0, 5.0]), chance.choice([0.3, 0.5, 1.0]), chance.choice([None, 0.2, 0.7])
            links += [Link(x, y, "k", 1, *figures) for x, y in ((a, b), (b, a))]
    return Topology("drawn", "test", tuple(devices), tuple(links))


@examples(150)
@given(any_schedules(), machines(), st.randoms(use_true_random=False), st.sampled_from([1, 2, 3]), st.booleans())
def test_any_schedule(drawn, machine, chance, ports, compiled):
    schedule, _ = drawn
    paths = PathFinder(machine)
    ends = [chance.choice(machine.endpoints) for _ in range(schedule.ranks)]
    for model in ("alpha", "loggp"):
        found = Cost(schedule, ends, paths, row_bytes=4, ports=ports, port_model=model)
        with mock.patch.object(port_time, "follow", follow if compiled else follow_plainly):
            assert found.alpha_us == pytest.approx(expected_us(schedule, ends, paths, ports, model), abs=1e-9)
        assert found.messages == sum(map(len, grouped(schedule)))
        throughput = expected_throughput(schedule, ends, paths)
        assert found.throughput_gb_per_s == (throughput and pytest.approx(throughput))


@examples(150)
@given(any_schedules(), machines(), st.randoms(use_true_random=False), st.sampled_from([1, 2, 3]), st.booleans())
def test_bytes_that_share_no_link_take_the_least(drawn, machine, chance, ports, compiled):
    """The floor is that of messages alone on their links; events take no less, and what is predicted is theirs."""
    schedule, _ = drawn
    paths, row_bytes = PathFinder(machine), chance.choice([4, 1000, 100_000])
    ends = [chance.choice(machine.endpoints) for _ in range(schedule.ranks)]
    for model in ("alpha", "loggp"):
        found = Cost(schedule, ends, paths, row_bytes=row_bytes, ports=ports, port_model=model)
        with mock.patch.object(port_time, "follow", follow if compiled else follow_plainly):
            floor_us = found.floor_us
        followed = simulate(
            of_schedule(schedule, ends, schedule.rows * row_bytes), paths, ports=ports, port_model=model
        )
        assert floor_us <= followed.total_us
        if found.wire_bytes:
            assert floor_us == pytest.approx(expected_us(schedule, ends, paths, ports, model, row_bytes))
            assert found.predicted_us == pytest.approx(followed.total_us)


@pytest.mark.parametrize("build", [recursive_doubling_allreduce, ring_allreduce, flat_allreduce])
@pytest.mark.parametrize("ranks", [*range(1, 18), pytest.param(64, marks=pytest.mark.soak)])
def test_algorithms(build, ranks):
    machine = switch(ranks, gap_us=0.1)
    schedule, paths = build(ranks, 0), PathFinder(machine)
    for model in ("alpha", "loggp"):
        for ports in {1, 2, max(1, ranks - 1)}:
            found = Cost(schedule, machine.endpoints, paths, row_bytes=4, ports=ports, port_model=model)
            wanted = expected_us(schedule, machine.endpoints, paths, ports, model)
            assert found.alpha_us == pytest.approx(wanted, abs=1e-9)


def test_paths_that_a_schedule_names():
    """GPU0 sends to GPU1 over its NIC and to GPU2 by the cheapest route."""
    machine = hosts(1, 3)
    ends, paths = machine.endpoints, PathFinder(machine)
    ways = [("h0/GPU0", "h0/NIC0", "rail0", "h0/NIC0", "h0/GPU0"), ("h0/GPU0", "h0/switch", "h0/GPU1")]
    moves = [Transfer(0, 0, 0, 1, 1, 0, 0), Transfer(0, 0, 0, 2, 1, 0)]
    schedule = make_schedule(
        3, [(0, 8)], inputs=[(0, 0, 0)], outputs=[(1, 1, 0), (2, 1, 0)], transfers=moves, combines=[], paths=ways[1:]
    )
    found = Cost(schedule, ends, paths, row_bytes=4)
    assert found.alpha_us == pytest.approx(1.2)
    assert found.throughput_gb_per_s == pytest.approx(450 / 2)
    with pytest.raises(PlanError, match="does not lead from h0/GPU0 to h0/GPU1"):
        Cost(replace(schedule, paths=tuple(ways[:1])), ends, paths, row_bytes=4)


def test_a_pipelined_schedule_costs_what_its_slices_cost():
    machine = switch(4)
    paths = PathFinder(machine)
    once = ring_allreduce(4, 64)
    repeated = replace(once, repeat=Repeat(4, 2))
    for rows in (0, 4):
        found = Cost(repeated, machine.endpoints, paths, row_bytes=rows)
        same = Cost(unrolled(repeated), machine.endpoints, paths, row_bytes=rows)
        for figure in ("rounds", "messages", "wire_bytes", "alpha_us", "predicted_us", "throughput_gb_per_s"):
            assert getattr(found, figure) == getattr(same, figure)
        alone = Cost(once, machine.endpoints, paths, row_bytes=rows)
        assert found.throughput_gb_per_s == pytest.approx(alone.throughput_gb_per_s)
        assert found.wire_bytes == alone.wire_bytes
        assert found.alpha_us > alone.alpha_us


def test_columns_of_routes_follow_messages():
    machine = hosts(2, 2)
    paths = PathFinder(machine)
    routes = paths.routes(machine.endpoints, np.array([0, 0, 3]), np.array([1, 2, 1]))
    picked = routes.take(np.array([2, 0]))
    assert picked.latency_us.tolist() == pytest.approx([5.0, 0.6])
    assert [paths.edges[link] for link in picked.links[picked.starts[1] :].tolist()] == [
        ("h0/GPU0", "h0/switch"),
        ("h0/switch", "h0/GPU1"),
    ]
