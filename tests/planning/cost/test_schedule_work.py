"""Work of schedules: the times of the fluid cost model of plans, and what launches and folds add."""

import numpy as np
import pytest

from tests.machines import hosts, joined, switch
from topocomm import PlanError, catalog, plan
from topocomm.operators.builtin import SUM
from topocomm.planning.algorithms.flat import flat_allreduce, flat_broadcast
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.collectives import COLLECTIVES, collective_of
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.planning.cost.simulated_work import COMPUTE, JOIN, SEND
from topocomm.planning.planner import every_plan
from topocomm.planning.request import Request, layout_of, port_model_of, whole_layout
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import joined_rounds
from topocomm.simulation import of_plan

MACHINES = {
    "switch": switch(8),
    "rails": catalog("dgx-h100", hosts=2),
    "shared uplinks": joined([3, 4, 1]),
    "mesh": catalog("mi300x-8"),
}


def plans(machine, collective, payload_bytes, **changes):
    layout = layout_of(SUM, payload_bytes)
    asked = collective_of(collective, len(machine.endpoints), layout.rows)
    settings = {"objective": "auto", "ports": 1, "port_model": port_model_of("auto")} | changes
    return every_plan(machine, Request(asked, SUM, whole_layout(layout, asked), machine.endpoints, **settings))


@pytest.mark.parametrize("port_model", ["alpha", "loggp"])
@pytest.mark.parametrize("ports", [1, 3])
@pytest.mark.parametrize("name", MACHINES)
def test_times_are_those_of_the_fluid_cost_model(name, ports, port_model):
    """All algorithms that fit, of several collectives; those beyond the limits of the fluid model left out."""
    machine, compared = MACHINES[name], 0
    paths = PathFinder(machine)
    for collective in COLLECTIVES:
        for made in plans(machine, collective, 96_000, ports=ports, port_model=port_model):
            cost = Cost(made.schedule, made.ranks, paths, row_bytes=made.row_bytes, ports=ports, port_model=port_model)
            if cost.messages > 1000 or len(made.schedule.transfers) > 4000:
                continue
            timeline = simulate(of_plan(made), paths, ports=ports, port_model=port_model)
            assert timeline.total_us == pytest.approx(cost.predicted_us, rel=1e-9), (collective, made.algorithm)
            assert timeline.work.sent_bytes == cost.wire_bytes
            compared += 1
    assert compared >= 20


def test_a_saved_figure_of_a_plan_is_the_simulated_time():
    made = plan(catalog("dgx-h100", hosts=2), payload_bytes=1 << 20)
    timeline = simulate(of_plan(made), catalog("dgx-h100", hosts=2), ports=1)
    assert timeline.total_us == pytest.approx(made.figures.predicted_us, rel=1e-9)


@pytest.mark.parametrize("build", [recursive_doubling_allreduce, ring_allreduce])
def test_each_round_of_a_chain_is_launched(build):
    """Every round waits for the one before, so launches add up as the cost model has it."""
    machine, rows = switch(8), 8 * 4500
    schedule = build(8, rows)
    plain = simulate(of_schedule(schedule, machine.endpoints, rows * 4), machine, ports=1).total_us
    launched = simulate(of_schedule(schedule, machine.endpoints, rows * 4, launch_us=6.6), machine, ports=1).total_us
    assert launched == pytest.approx(plain + 6.6 * schedule.rounds)


def test_a_round_of_many_messages_is_launched_once():
    machine = switch(5)
    schedule = joined_rounds(flat_broadcast(5, 100, 0), machine.endpoints, 4)
    work = of_schedule(schedule, machine.endpoints, 400, launch_us=6.6)
    timeline = simulate(work, machine)
    assert timeline.start_us[work.kind == SEND].tolist() == pytest.approx([6.6] * 4)
    assert (work.kind == JOIN).sum() == 5


def test_folds_take_their_bytes_at_a_rate():
    """Flat on 4 ranks: each rank folds 4 values of 4 kB: 5 of them are read or written, at 2 GB/s 10 us."""
    machine = switch(4)
    schedule = flat_allreduce(4, 1000)
    plain = simulate(of_schedule(schedule, machine.endpoints, 4000), machine).total_us
    work = of_schedule(schedule, machine.endpoints, 4000, fold_gb_per_s=2.0)
    assert (work.kind == COMPUTE).sum() == 4
    assert simulate(work, machine).total_us == pytest.approx(plain + 10.0)


def test_chunks_have_their_share_of_any_payload():
    machine = switch(3)
    work = of_schedule(ring_allreduce(3, 7), machine.endpoints, 1000)
    assert sorted(set(work.payload_bytes[work.kind == SEND].tolist())) == [285, 286, 429]
    huge = of_schedule(ring_allreduce(3, 7), machine.endpoints, 1 << 60)
    assert huge.payload_bytes[:3].sum() == 1 << 60


def test_a_pipeline_runs_in_slices():
    machine = catalog("dgx-h100")
    made = next(each for each in plans(machine, "allreduce", 1 << 20) if each.schedule.repeat)
    work = of_plan(made)
    assert work.messages == made.figures.transfers
    assert np.unique(work.round).size == made.figures.rounds


def test_what_is_refused():
    schedule = ring_allreduce(3, 7)
    with pytest.raises(PlanError, match="schedule of 3 ranks: expected as many endpoints, got 2"):
        of_schedule(schedule, ("GPU0", "GPU1"), 8)
    with pytest.raises(PlanError, match="at least 0 bytes, got -8"):
        of_schedule(schedule, ("GPU0", "GPU1", "GPU2"), -8)


def test_ranks_of_two_hosts_on_rails_without_a_spine():
    """Recursive doubling within and across: routes of unequal latency."""
    machine = hosts(2, 4)
    schedule = recursive_doubling_allreduce(8, 100)
    paths = PathFinder(machine)
    cost = Cost(schedule, machine.endpoints, paths, row_bytes=4, port_model="loggp")
    timeline = simulate(of_schedule(schedule, machine.endpoints, 400), paths, ports=1)
    assert timeline.total_us == pytest.approx(cost.predicted_us, rel=1e-9)
