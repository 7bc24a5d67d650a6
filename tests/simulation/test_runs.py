"""Collectives by any algorithm: the planned one beside libraries' and switches'."""

import pytest

from tests.machines import switch
from topocomm import PlanError, catalog, plan
from topocomm.simulation.protocols import transport
from topocomm.simulation.runs import Rules, algorithms, simulate_collective, simulate_plan

H100 = catalog("dgx-h100")


@pytest.mark.parametrize("algorithm", ["planned", "ring", "switch-sum"])
def test_every_algorithm_is_a_run(algorithm):
    assert algorithm in algorithms()
    run = simulate_collective(H100, algorithm, payload_bytes=1 << 20)
    assert (run.algorithm, run.collective, run.payload_bytes) == (algorithm, "allreduce", 1 << 20)
    assert run.ranks == H100.endpoints
    assert run.gb_per_s == pytest.approx((1 << 20) / run.total_us / 1e3)
    assert 0 < run.total_us < 100


def test_the_planned_run_takes_what_the_plan_predicts():
    made = plan(H100, payload_bytes=1 << 20)
    run = simulate_plan(made, H100, Rules(ports=1))
    assert run.detail == made.algorithm
    assert run.total_us == pytest.approx(made.figures.predicted_us)
    assert run.predicted_us == made.figures.predicted_us
    again = simulate_collective(H100, "planned", payload_bytes=1 << 20, rules=Rules(ports=1))
    assert again.total_us == run.total_us


def test_messages_of_a_round_overlap_unless_ports_hold_them_back():
    """A forest over 4 hosts: as the planner counts it with ports for both tiers; few in strict order hold it up."""
    machine = catalog("dgx-h100", hosts=4)
    made = plan(machine, payload_bytes=64 << 20, ports=16)
    assert made.algorithm.startswith("forest")
    free, held = (simulate_plan(made, machine, Rules(ports=ports)).total_us for ports in (None, 1))
    assert free == pytest.approx(made.figures.predicted_us, rel=0.1)
    assert held > free


def test_plans_as_calls_run_them():
    machine = catalog("dgx-h100", hosts=4)
    called = simulate_collective(machine, "planned", payload_bytes=64 << 20, rules=Rules(as_called=True))
    plain = simulate_collective(machine, "planned", payload_bytes=64 << 20)
    assert called.counted == "6.6 us a round to launch and 86% of the links' rates, as NCCL's calls are counted"
    assert called.timeline.work.sent_bytes > plain.timeline.work.sent_bytes
    assert called.total_us < plain.total_us, "with ports for both tiers another schedule is better, launches and all"
    hosts = catalog("cpu-2-socket", hosts=2)
    assert simulate_collective(hosts, "planned", payload_bytes=4096, rules=Rules(as_called=True)).counted == ""


def test_rules_reach_the_planner_and_the_work():
    launched = simulate_collective(H100, "planned", payload_bytes=1024, rules=Rules(ports=7, launch_us=6.6))
    made = plan(H100, payload_bytes=1024)
    assert launched.detail == "circulant" != made.algorithm
    assert launched.total_us == pytest.approx(7.22, abs=0.01)
    plain = simulate_plan(made, H100)
    sent = simulate_plan(made, H100, Rules(transport=transport("nccl-ll")))
    assert sent.timeline.work.sent_bytes == 2 * plain.timeline.work.sent_bytes
    assert simulate_plan(made, H100, Rules(fold_gb_per_s=1.0)).total_us > plain.total_us


def test_ranks_and_other_collectives():
    run = simulate_collective(switch(4), "planned", "broadcast", payload_bytes=4000, ranks=("GPU3", "GPU1"), root=1)
    assert (run.ranks, run.collective) == (("GPU3", "GPU1"), "broadcast")
    assert simulate_collective(switch(1), "ring", payload_bytes=8).gb_per_s == 0.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("plannd", "allreduce"), "algorithm 'plannd': expected one of planned, switch-sum, "),
        (("switch-sum", "allgather"), "algorithm switch-sum: expected allreduce, got allgather"),
        (("ring", "scan"), "algorithm ring: expected one of allreduce"),
    ],
)
def test_what_is_refused(arguments, why):
    with pytest.raises(PlanError, match=why):
        simulate_collective(H100, *arguments, payload_bytes=8)
