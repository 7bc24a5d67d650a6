"""Bounds against published optima, and no plan better than its bound."""

from dataclasses import replace

import pytest

import topocomm
from tests.machines import hosts, switch
from tests.planning.replay import part_count
from tests.planning.schedules import MACHINES
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm.planning.bounds import bounds_of
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.schedule.transforms import split_rounds
from topocomm.topology.catalog.systems import SYSTEMS


def bounds(topology, name="allreduce", port_model="alpha", **fields):
    ends = topology.endpoints
    return bounds_of(Collective(name, len(ends), **fields), ends, PathFinder(topology), ports=1, port_model=port_model)


def test_eight_gpus_on_nvswitch():
    found = bounds(switch(8))
    assert found.throughput_gb_per_s == pytest.approx(1800 / 7)
    assert (found.rounds, found.alpha_us) == (3, pytest.approx(1.8))
    assert "3 messages in a row" in found.latency_bound.argument


def test_hosts_bind_where_the_network_is_narrow():
    """2 x 8 GPUs at 450 GB/s with 50 GB/s NICs: single GPUs bind (800/3), as published."""
    assert bounds(topocomm.catalog("dgx-h100", hosts=2)).throughput_gb_per_s == pytest.approx(800 / 3)
    assert bounds(hosts(2, 2)).throughput_gb_per_s == pytest.approx(min(4 * 500 / 6, 4 * 50 / 2))


def test_the_farthest_pair_binds_latency():
    found = bounds(hosts(2, 1))
    assert found.alpha_us == pytest.approx(5.0)
    assert "5 us apart" in found.latency_bound.argument


def test_dgx1_matches_the_published_optimum():
    found = bounds(topocomm.catalog("dgx-1-v100"))
    nvlink_only = 600 / 7
    assert found.throughput_gb_per_s >= nvlink_only  # PCIe adds egress to NVLink's 150 GB/s a GPU


def test_published_optima_of_gather_and_scatter():
    """Twice those of an allreduce, on one host and on four."""
    for name in ("allgather", "gather", "reduce_scatter", "scatter"):
        assert bounds(switch(8), name, parts=(1,) * 8).throughput_gb_per_s == pytest.approx(3600 / 7)
        four = bounds(topocomm.catalog("dgx-h100", hosts=4), name, parts=(1,) * 32).throughput_gb_per_s
        assert four == pytest.approx(16000 / 31)
    assert bounds(switch(8), "alltoall", parts=(1,) * 64).throughput_gb_per_s == pytest.approx(3600 / 7)
    four = bounds(topocomm.catalog("dgx-h100", hosts=4), "alltoall", parts=(1,) * 32**2)
    assert four.throughput_gb_per_s == pytest.approx(400 / (8 * 24 / 32))  # eight NICs of 50 GB/s, and 8 ranks to 24


@pytest.mark.parametrize(("parts", "share"), [((1, 1, 1, 1), 3 / 4), ((0, 0, 0, 0), 3 / 4), ((6, 1, 1, 0), 1)])
def test_a_rank_takes_in_what_others_give_and_gives_what_others_take(parts, share):
    for name, word in (("allgather", "enter"), ("gather", "enter"), ("reduce_scatter", "leave"), ("scatter", "leave")):
        found = bounds(switch(4), name, parts=parts, root=3)
        assert found.throughput_gb_per_s == pytest.approx(450 / share)
        assert (
            f"{'the whole payload' if share == 1 else f'{share} of the payload'} must {word} GPU"
            in found.throughput_bound.argument
        )


def test_prefixes_enter_the_last_rank_whole():
    for name in ("scan", "exscan"):
        found = bounds(switch(8), name)
        assert (found.rounds, found.throughput_gb_per_s) == (3, 450)
        assert found.throughput_bound.argument == "the whole payload must enter GPU1, at 450 GB/s"


def test_a_slow_link_binds_in_its_own_direction():
    """GPU0 receives at 5 GB/s and sends at 450: what must enter it binds, what leaves it does not."""
    known = switch(4)
    slow = [link._replace(gb_per_s=5.0) if link.dst == "GPU0" else link for link in known.links]
    machine = replace(known, links=tuple(slow))
    even = {"parts": (1, 1, 1, 1)}
    assert bounds(machine).throughput_gb_per_s == 5
    assert bounds(machine, "broadcast").throughput_gb_per_s == 450
    assert bounds(machine, "reduce").throughput_gb_per_s == 5
    assert bounds(machine, "scan").throughput_gb_per_s == 450
    assert bounds(machine, "allgather", **even).throughput_gb_per_s == pytest.approx(5 / (3 / 4))
    assert bounds(machine, "reduce_scatter", **even).throughput_gb_per_s == pytest.approx(5 / (1 / 4))


def test_only_those_who_give_and_get_are_far_apart():
    """0 and 1 on one host, 2 on another 5 us away: what 2 neither gives nor gets does not cross."""
    machine = topocomm.Topology(
        "two hosts",
        "test",
        tuple(topocomm.Device(name, "gpu", host=host) for name, host in (("a", "x"), ("b", "x"), ("c", "y"))),
        tuple(
            topocomm.Link(src, dst, "nvlink", 1, 10.0, far)
            for a, b, far in (("a", "b", 1.0), ("b", "c", 4.0))
            for src, dst in ((a, b), (b, a))
        ),
    )
    assert bounds(machine, port_model="loggp").alpha_us == 5.0
    assert bounds(machine, "allgather", "loggp", parts=(1, 1, 0)).alpha_us == 5.0
    assert bounds(machine, "reduce_scatter", "loggp", parts=(0, 1, 0)).alpha_us == 4.0
    assert bounds(machine, "reduce", "loggp", root=1).alpha_us == 4.0
    assert bounds(machine, "allreduce", "loggp", shards=(0, 0, 1, 1)).alpha_us == 4.0
    assert "a and c are 5 us apart" in bounds(machine, port_model="loggp").latency_bound.argument
    assert "a and c are" in bounds(machine, "scan").latency_bound.argument
    assert bounds(machine, "reduce", root=1).alpha_us == 5.0  # alpha: b's port takes in a's message and c's, 1 + 4 us


MANY = 12
"""Endpoints from which on all plans of a machine take long."""


def machines():
    """Every system of the catalogue alone and twice, and switches of odd sizes, the small ones first."""
    found = [switch(ranks) for ranks in (1, 2, 3, 5, 12)]
    found += [topocomm.catalog(name, hosts=count) for name in SYSTEMS for count in (1, 2)]
    return sorted(found, key=lambda machine: len(machine.endpoints) > MANY)


def soaking(collective, machine, marks):
    """One case; what takes long is for the soak."""
    name = f"{collective}-{machine.name}"
    return pytest.param(
        collective, machine, id=name, marks=pytest.mark.soak if len(machine.endpoints) > MANY else marks
    )


@pytest.mark.parametrize(
    ("collective", "machine"), [soaking(*case.values, case.marks) for case in alternating(COLLECTIVES, machines())]
)
def test_no_plan_beats_its_bound(collective, machine):
    ranks = len(machine.endpoints)
    wanted = [{"layout": topocomm.SUM.default_layout(rows)} for rows in (0, 1000)]
    if collective in IN_PARTS:
        uneven = [3 * rank % 7 for rank in range(part_count(collective, ranks) - 1)] + [0]
        wanted.append({"layout": topocomm.SUM.default_layout(sum(uneven)), "parts": uneven})
    if collective == "allreduce":
        shards = [0, *sorted(5 * rank % 11 for rank in range(1, ranks)), 13]
        wanted.append({"layout": topocomm.SUM.default_layout(1000), "shards": shards})
    for one in wanted:
        for plan in every_plan(machine, collective, topocomm.SUM, root=ranks // 2, **one):
            holds(plan)


def holds(plan):
    figures, certificate = plan.figures, plan.certificate
    if plan.port_model == "alpha":  # else a round has as many messages of a port as overlap
        assert figures.rounds >= certificate.rounds_lower_bound, plan.algorithm
    assert figures.alpha_us >= certificate.alpha_lower_bound_us - 1e-9, plan.algorithm
    if figures.throughput_gb_per_s is not None:
        assert figures.throughput_gb_per_s <= certificate.throughput_upper_bound_gb_per_s * (1 + 1e-9), plan.algorithm
    assert certificate.gap >= 1 - 1e-9, plan.algorithm


@pytest.mark.parametrize(("collective", "machine"), alternating(COLLECTIVES, MACHINES), ids=str)
def test_no_algorithm_beats_a_bound_on_any_number_of_ports(collective, machine):
    count, gpus = machine
    topology = switch(gpus) if count == 1 else hosts(count, gpus)
    ends, paths = topology.endpoints, PathFinder(topology)
    rows = 2 * len(ends) + 1
    parts = (
        tuple(size for _, size in split_rows(rows, part_count(collective, len(ends)))) if collective in IN_PARTS else ()
    )
    made = Collective(collective, len(ends), root=len(ends) // 3, parts=parts)
    ports = min(1 + (len(ends) + COLLECTIVES.index(collective)) % 3, max(len(ends) - 1, 1))
    layout = topocomm.SUM.default_layout(rows)
    models = [(model, bounds_of(made, ends, paths, ports=ports, port_model=model)) for model in ("alpha", "loggp")]
    request = Request(made, topocomm.SUM, layout, ends, "latency", ports, "alpha")
    for name, build in candidate_builds(request, paths):
        schedule = build()
        for port_model, found in models:
            try:
                cost = Cost(schedule, ends, paths, row_bytes=4, ports=ports, port_model=port_model, collective=made)
            except NoRouteError:
                continue
            assert cost.alpha_us >= found.alpha_us - 1e-9, name
            assert cost.predicted_us >= found.alpha_us - 1e-9, name
            assert cost.predicted_us >= found.time_bound(made.counted(rows) * 4).value - 1e-9, name
            assert (cost.throughput_gb_per_s or 0.0) <= (found.throughput_gb_per_s or 0.0) * (1 + 1e-9), name
            assert len(set(split_rounds(schedule, ends, ports).transfers[:, 0].tolist())) >= found.rounds, name


@pytest.mark.parametrize("objective", ["latency", "rounds", "throughput", "auto"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_plan_of_shared_endpoints_or_several_ports_beats_its_bound(collective, objective):
    ends = ["GPU0", "GPU0", "GPU1", "GPU2", "GPU1", "GPU3", "GPU3"]
    for ports in (1, 2, 3):
        for port_model in ("alpha", "loggp"):
            made = topocomm.plan(
                switch(4),
                collective,
                payload_bytes=4000,
                objective=objective,
                ports=ports,
                port_model=port_model,
                ranks=ends,
            )
            holds(made)
