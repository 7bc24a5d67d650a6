"""Certificates are derived again from their witnesses, and every planted fault is found."""

import copy
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import topocomm
from tests.machines import hosts, joined, switch
from topocomm import Device, Link, PlanError, Topology, catalog, check_certificate, plan
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS
from topocomm.planning.schedule.schedule import make_schedule

OBJECTIVES = ("rounds", "latency", "throughput", "auto")


def made(machine, collective="allreduce", objective="latency", **options):
    return plan(machine, collective, **({"payload_bytes": 4000, "objective": objective} | options))


SEARCHED = {
    "allgather": pytest.mark.long,
    "alltoall": pytest.mark.long,
    "exscan": pytest.mark.long,
    "reduce_scatter": pytest.mark.soak,
    "scan": pytest.mark.soak,
}
EVERY = [
    pytest.param(name, objective, marks=SEARCHED.get(name, ()) if objective == "latency" else ())
    for objective, name in product(OBJECTIVES, COLLECTIVES)
]
"""Searches for little latency take seconds each, and those of two collectives are the others' backwards or part."""


@pytest.mark.parametrize("every_number_of_ports", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("collective", "objective"), EVERY)
def test_plans_pass(collective, objective, every_number_of_ports):
    """On each machine one or two ports in turn, so that each meets every machine, collective and objective."""
    turn = COLLECTIVES.index(collective) + OBJECTIVES.index(objective)
    machines = (switch(1), switch(7), joined((3, 2, 4)), catalog("dgx-1-v100"), catalog("mi250x"))
    for number, machine in enumerate(machines):
        for ports in (1, 2) if every_number_of_ports else (1 + (turn + number) % 2,):
            if ports < max(2, len(machine.endpoints)):
                check_certificate(machine, made(machine, collective, objective, ports=ports))


@pytest.mark.parametrize("port_model", ["alpha", "loggp"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_plans_of_shared_endpoints_parts_and_shards_pass(collective, port_model):
    ends = ["GPU0", "GPU0", "GPU1", "GPU2", "GPU1", "GPU3", "GPU3"]
    options = {"ranks": ends, "port_model": port_model}
    if collective in IN_PARTS:
        options["parts"] = [0, 500, 0, 300, 100, 100, 0] * (7 if collective == "alltoall" else 1)
    if collective == "allreduce":
        options |= {"order": "canonical", "shards": [0, 0, 2, 2, 5, 6, 6, 8]}
    for objective in OBJECTIVES:
        check_certificate(switch(4, gap_us=0.2), made(switch(4, gap_us=0.2), collective, objective, **options))


def mesh(seed):
    """Five endpoints, all linked, with any rates and latencies."""
    chance = random.Random(seed)
    devices = tuple(Device(f"GPU{i}", "gpu", host=f"h{chance.randint(0, 1)}") for i in range(5))
    links = [
        Link(
            a.id,
            b.id,
            "nvlink",
            1,
            chance.choice([1.0, 5.0, 20.0]),
            chance.choice([0.5, 2.0]),
            chance.choice([None, 0.3]),
        )
        for a in devices
        for b in devices
        if a != b
    ]
    return Topology("mesh", "test", devices, tuple(links))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 12))])
def test_plans_of_random_machines_pass(seed):
    machine = mesh(seed)
    for collective in COLLECTIVES:
        check_certificate(machine, made(machine, collective, OBJECTIVES[seed % 4], ports=1 + seed % 3))


def test_unknown_figures_are_assumed_alike():
    known = switch(4)
    bare = replace(known, links=tuple(link._replace(gb_per_s=None, latency_us=None, lanes=2) for link in known.links))
    for objective in OBJECTIVES:
        check_certificate(bare, made(bare, objective=objective))


def test_a_plan_of_another_topology_is_refused():
    with pytest.raises(PlanError, match=r"the plan is for another topology \(digest .* 'switch of 5' has"):
        check_certificate(switch(5), made(switch(4)))


def changed(one, **parts):
    """The plan with parts of its certificate replaced."""
    return replace(one, certificate=replace(one.certificate, **parts))


def every_witness(one):
    return {each["bounds"]: each for each in (one.certificate.witness, *one.certificate.other_witnesses)}


def with_witness(one, bound, **entries):
    """The plan with entries of the witness of one bound replaced."""
    cut = copy.deepcopy([one.certificate.witness, *one.certificate.other_witnesses])
    for each in cut:
        if each["bounds"] == bound:
            each |= entries
    return changed(one, witness=cut[0], other_witnesses=tuple(cut[1:]))


def refused(machine, one, message):
    with pytest.raises(PlanError, match=message):
        check_certificate(machine, one)


CLUSTER = catalog("dgx-h100", hosts=2)


@pytest.mark.every_case
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("part", "bound"),
    [
        ("rounds_lower_bound", "rounds"),
        ("alpha_lower_bound_us", "latency"),
        ("throughput_upper_bound_gb_per_s", "throughput"),
    ],
)
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_bound_one_percent_off_is_found(objective, part, bound, factor):
    one = made(CLUSTER, objective=objective)
    other = getattr(one.certificate, part) * factor
    refused(CLUSTER, changed(one, **{part: other}), f"the {bound} bound is {other!r}, its")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_gap_that_does_not_follow_is_found(objective):
    one = made(CLUSTER, objective=objective)
    refused(CLUSTER, changed(one, gap=one.certificate.gap * 1.001), "the gap is .*, figure and bound give")


@pytest.mark.parametrize(
    ("figure", "factor"),
    [("alpha_us", 0.99), ("predicted_us", 0.99), ("throughput_gb_per_s", 1.01), ("rounds", 2), ("wire_bytes", 2)],
)
def test_a_figure_that_the_schedule_does_not_have_is_found(figure, factor):
    one = made(CLUSTER)
    figures = replace(one.figures, **{figure: getattr(one.figures, figure) * factor})
    refused(CLUSTER, replace(one, figures=figures), f"certificate: {figure} is .*, the schedule has")


def test_a_plan_better_than_its_bound_is_found():
    """A schedule that does nothing, with figures to fit: what a wrong bound, or a wrong proof, would look like."""
    machine = switch(4)
    one = made(machine, payload_bytes=0)
    idle = make_schedule(
        4,
        [(0, 0)],
        inputs=[[r, 0, r] for r in range(4)],
        outputs=[[r, 0, 0] for r in range(4)],
        transfers=[],
        combines=[],
    )
    figures = replace(one.figures, rounds=0, transfers=0, alpha_us=0.0, predicted_us=0.0, throughput_gb_per_s=None)
    refused(machine, replace(one, schedule=idle, figures=figures), "alpha_us 0.0 is better than its bound")


@pytest.mark.parametrize("objective", ["latency", "auto"])
@pytest.mark.parametrize("payload_bytes", [0, 4, 4000])
def test_a_plan_that_meets_its_bound_is_not_better_for_rounding(payload_bytes, objective):
    for latency_us, rate in (
        (0.1505639974842007, 95.30348535277786),
        (0.06565782046278004, 36.7780322620328),
        (0.0, 7.3),
    ):
        links = tuple(Link(a, b, "nvlink", 1, rate, latency_us) for a, b in (("GPU0", "GPU1"), ("GPU1", "GPU0")))
        machine = Topology("two", "test", (Device("GPU0", "gpu"), Device("GPU1", "gpu")), links)
        made = plan(machine, "broadcast", payload_bytes=payload_bytes, objective=objective)
        assert made.certificate.gap >= 1.0
        check_certificate(machine, made)


def test_every_bound_has_one_witness_and_the_own_one_comes_first():
    one = made(CLUSTER)
    own, others = one.certificate.witness, one.certificate.other_witnesses
    assert {each["bounds"] for each in (own, *others)} == {"rounds", "latency", "throughput"}
    refused(
        CLUSTER, changed(one, other_witnesses=others[:1]), "certificate: witnesses of latency, rounds; expected one of"
    )
    refused(CLUSTER, changed(one, other_witnesses=(*others, others[0])), "expected one of rounds, latency, throughput")
    refused(
        CLUSTER, changed(one, witness=others[0], other_witnesses=(own, others[1])), "the witness is of rounds, the gap"
    )
    refused(CLUSTER, changed(one, witness={"bounds": "latency"}), "malformed witness: KeyError: 'kind'")
    refused(CLUSTER, changed(one, witness={}), "malformed witness: KeyError: 'bounds'")


@pytest.mark.long
def test_auto_has_the_witness_of_the_bound_that_takes_longer():
    small, large = made(CLUSTER, objective="auto"), made(CLUSTER, objective="auto", payload_bytes=1 << 26)
    assert [one.certificate.witness["kind"] for one in (small, large)] == ["flow", "ports"]
    check_certificate(CLUSTER, large)


def test_nothing_is_shared_with_what_finds_the_bounds():
    files = list((Path(topocomm.planning.__file__).parent / "certificate_checker").glob("*.py"))
    assert len(files) > 4
    for file in files:
        assert "import" not in [line.split()[0] for line in file.read_text().splitlines() if "planning.bounds" in line]
        assert "from topocomm.planning.bounds" not in file.read_text()


def test_hosts_with_rails_pass():
    machine = hosts(4, 4)
    for objective in OBJECTIVES:
        check_certificate(machine, made(machine, objective=objective))
