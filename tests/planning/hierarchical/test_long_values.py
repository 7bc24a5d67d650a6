"""Long values over rails: what is offered where, in how many slices, and how near the bounds plans of auto come."""

from dataclasses import replace

import pytest

from tests.machines import hosts, line, switch
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.cost.cost_models import TIME_DIGITS, Cost
from topocomm.planning.phased_builds import PhasedBuild
from topocomm.planning.planner import chosen_from, every_plan
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20


def offered(machine, name, payload_bytes, family):
    """The slices in which a family is offered, after the radix where there is one."""
    request = request_on(machine, name, SUM, SUM.default_layout(payload_bytes // 4))
    names = [each for each, _ in candidate_builds(request, PathFinder(machine))]
    return [each.rsplit("-", 1)[1] for each in names if each.startswith(family)]


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_trees_over_rails_have_slices_of_eight_kib(name):
    """4 hosts of 4, two trees: messages between hosts of an eighth."""
    assert offered(hosts(4, 4), name, 8 * 8 * 8 * 1024, "rails-trees") == ["2.8"]
    assert offered(hosts(4, 4), name, 8 * 3 * 8 * 1024, "rails-trees") == []
    assert offered(hosts(4, 4), name, 512 * MIB, "rails-trees") == ["2.128"]  # half of the most
    assert offered(switch(8), name, 512 * MIB, "rails-t") == ["2.128"]


def test_slices_are_shorter_where_links_between_hosts_are_slow():
    """As long as 8 KiB on a port of 400 Gb/s; between processors as long as 64 KiB in shared memory."""
    on_gpus, on_processors = (catalog(name, hosts=3) for name in ("rtx4090-pcie-8-1-socket", "cpu-1-socket"))
    assert offered(on_gpus, "reduce", 16 * 2000, "rails-fork") == ["1.16"]
    assert offered(on_gpus, "reduce", 16 * 1990, "rails-fork") == ["1.8"]
    assert offered(on_processors, "reduce", 16 * 8192, "rails-fork") == ["1.16"]
    assert offered(on_processors, "reduce", 16 * 8188, "rails-fork") == ["1.8"]


@pytest.mark.parametrize(
    ("system", "count", "name", "payload_bytes", "most"),
    [
        ("cpu-1-socket", 33, "allreduce", 1024, 1.25),  # was 2.4
        ("cpu-1-socket", 33, "reduce", 2048, 1.1),  # 3.1
        ("rtx3090-pair", 40, "allreduce", 2048, 1.5),
    ],
)
def test_parts_of_short_values_go_over_slow_links(system, count, name, payload_bytes, most):
    """A host hears from all others at once: whole values would wait for each other in its NIC."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith(("rails-by", "rails-straight")) and made.certificate.gap <= most
    check_certificate(machine, made)
    assert offered(machine, name, 16, "rails-by") == []


@pytest.mark.parametrize(
    ("system", "count", "payload_bytes", "most"),
    [
        ("rtx4090-pcie-8", 8, 256 << 10, 1.6),
        ("rtx4090-pcie-8-1-socket", 8, 256 << 10, 1.75),
    ],
)
@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_values_fork_inside_hosts_behind_one_nic(system, count, payload_bytes, most, name):
    """Along a chain of all members it was 2.28 to 2.58 times the bound."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith(("rails-fork", "rails-straight")) and made.certificate.gap <= most
    check_certificate(machine, made)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize(("system", "count", "most"), [("dgx-2", 4, 1.4), ("v100-4", 8, 1.25)])
def test_members_that_share_a_nic_send_inside_while_it_serves_another(system, count, most, name):
    """In turns by colour and step both held their ports while it served them: 1.45 to 1.62 times the bound.

    Along trees packed into the hosts (`host-forest`) it is 1.21 and 1.1 times.
    """
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=64 * MIB)
    turned = [each for each in made.candidates if each.algorithm.startswith("rails-turns")]
    assert turned and turned[0].predicted_us / made.certificate.predicted_lower_bound_us <= most
    assert made.algorithm.startswith("host-forest-") and made.certificate.gap <= most - 0.12


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize(
    ("system", "count", "most"), [("dgx-1-v100", 2, 1.2), ("dgx-1-v100", 5, 1.3), ("p3dn", 5, 1.25)]
)
def test_on_a_mesh_values_come_both_ways_around_while_the_nic_serves_another(system, count, most, name):
    """Around and between hosts in phases it was 1.48 and 1.32 times the bound."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=64 * MIB)
    assert made.algorithm.startswith(("rails-around", "host-forest-")) and made.certificate.gap <= most
    check_certificate(machine, made)


def test_turns_straight_and_around():
    """Straight under a switch, around a mesh, where short values are tried both ways."""
    families = ("rails-turns", "rails-around")
    for system, payload_bytes, tried in [("dgx-2", 64 * MIB, (1, 0)), ("p3dn", MIB, (1, 1)), ("p3dn", 2 * MIB, (0, 1))]:
        made = [len(offered(catalog(system, hosts=2), "reduce", payload_bytes, family)) for family in families]
        assert tuple(made) == tried


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_hosts_of_unlike_members_have_no_turns(name):
    """Two GPUs of a DGX-1 are left out: what others sent inside was counted by the members of the first host."""
    machine = catalog("dgx-1-v100", hosts=3)
    ranks = [end for end in machine.endpoints if end not in ("h0/GPU6", "h0/GPU7")]
    made = plan(machine, name, payload_bytes=64 << 10, ranks=ranks)
    assert not made.algorithm.startswith(("rails-turns", "rails-around"))
    check_certificate(machine, made)


@pytest.mark.parametrize(("part_bytes", "phased"), [(MIB - 4, True), (MIB, False)])
def test_slices_of_long_parts_follow_a_round_apart(part_bytes, phased):
    """Some send inside then while others have the NICs: 64 hosts of 8 RTX 4090 take 1.03 times as long otherwise."""
    machine = hosts(5, 4)
    request = request_on(machine, "reduce_scatter", SUM, SUM.default_layout(20 * part_bytes // 4))
    builds = [build for name, build in candidate_builds(request, PathFinder(machine)) if name.startswith("rails-by-5-")]
    assert builds and {isinstance(build, PhasedBuild) for build in builds} == {phased}


def test_slices_are_tried_until_more_gain_nothing():
    machine = switch(8)
    request = replace(request_on(machine, "scan", SUM, SUM.default_layout(2 * MIB // 4)), launch_us=1.0)
    tried = {made.algorithm: made.figures.predicted_us for made in every_plan(machine, request)}
    paths = PathFinder(machine)
    chains = {name: build() for name, build in candidate_builds(request, paths) if name.startswith("chain-")}
    kept = [name for name in chains if name in tried]
    assert kept == list(chains)[: len(kept)] and 2 <= len(kept) < len(chains)
    how = {"row_bytes": 4, "port_model": "loggp", "launch_us": 1.0}
    times_us = [Cost(schedule, machine.endpoints, paths, **how).predicted_us for schedule in chains.values()]
    assert min(tried[name] for name in kept) == pytest.approx(min(times_us))


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_slices_are_not_tried_that_others_rule_out(name):
    """Pipelines that a bound keeps behind the plan stay in few slices, and the plan is the best of all."""
    machine = hosts(17, 4)
    request = replace(request_on(machine, name, SUM, SUM.default_layout(64 * MIB // 4)), launch_us=1.0)
    every = {made.algorithm: made.figures.predicted_us for made in every_plan(machine, request)}
    tried = {algorithm: round(cost.predicted_us, TIME_DIGITS) for algorithm, cost in chosen_from(machine, request)}
    assert min(tried, key=tried.__getitem__) == min(every, key=every.__getitem__)
    assert tried.items() < every.items()


def test_up_to_96_hosts_send_to_all_at_once():
    """In 63 pieces for 65 hosts, which as many transfers allow."""
    made = {count: plan(catalog("dgx-h100", hosts=count), payload_bytes=MIB) for count in (64, 65)}
    assert [one.algorithm for one in made.values()] == ["rails-by-64-1", "rails-by-65-1"]
    assert made[65].figures.predicted_us < 1.05 * made[64].figures.predicted_us


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
def test_parts_go_around_the_fastest_links_of_a_host(name):
    """By quads it was 1.66 times the bound on a DGX-1."""
    machine = catalog("dgx-1-v100")
    made = plan(machine, name, payload_bytes=16 * MIB)
    assert made.algorithm.startswith("host-rings") and made.certificate.gap <= 1.05
    check_certificate(machine, made)


@pytest.mark.long
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_parts_of_a_thousand_ranks_go_over_rails(name):
    """By the patterns of short values it was 1.23 times the bound."""
    made = plan(catalog("dgx-h100", hosts=128), name, payload_bytes=64 * MIB)
    assert made.algorithm == "rails-by-16-1" and made.certificate.gap <= 1.1


@pytest.mark.long
@pytest.mark.parametrize(("payload_bytes", "gap"), [(MIB, 2.05), (16 * MIB, 1.15)])
def test_beyond_that_hosts_sum_in_blocks(payload_bytes, gap):
    """128 hosts in 4 blocks of 32: by radices of 16, or by halving, it was 2.82 and 1.37 times the bound."""
    made = plan(catalog("dgx-h100", hosts=128), payload_bytes=payload_bytes)
    assert made.algorithm == "rails-blocks-4-1" and made.certificate.gap <= gap


@pytest.mark.parametrize(("name", "payload_bytes"), [("reduce", 1_479_744), ("allreduce", 4_000_000)])
def test_racks_of_many_rails_send_each_other_short_parts_whole(name, payload_bytes):
    """Of more than a MiB parts went by owners: two messages in a row between racks, 2.11 and 2.20 times the bound."""
    machine = catalog("gb200-nvl72", hosts=3)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith("rails-blocks-3") and made.certificate.gap <= 1.5
    check_certificate(machine, made)


def test_of_many_ranks_there_are_fewer_slices():
    assert offered(catalog("dgx-h100", hosts=16), "reduce", 512 * MIB, "rails-trees") == ["14.32"]
    assert offered(catalog("dgx-h100", hosts=64), "reduce", 512 * MIB, "rails-trees") == ["4.32"]


@pytest.mark.parametrize(
    ("system", "payload_bytes", "gap"),
    [
        ("dgx-h100", MIB, 1.3),
        ("dgx-h100", 16 * MIB, 1.05),
        ("mi300x-8", 16 * MIB, 1.05),
        ("gb200-nvl72", 16 * MIB, 1.15),
    ],
)
@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_trees_of_ranks_fill_the_ports_of_a_host(name, system, payload_bytes, gap):
    """Two binary trees and halving took 1.2 to 2 times the bound."""
    made = plan(catalog(system), name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith("rails-trees") and made.certificate.gap <= gap


@pytest.mark.parametrize(("payload_bytes", "gap"), [(16 * MIB, 1.3), (256 * MIB, 1.2)])
@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_sixteen_hosts_are_as_near_the_bound_as_latencies_let_them(name, payload_bytes, gap):
    """Two binary trees, which waited for each message, took 2.03 and 1.35 times the bound."""
    made = plan(catalog("dgx-h100", hosts=16), name, payload_bytes=payload_bytes)
    assert made.algorithm.startswith("rails-trees") and made.certificate.gap <= gap


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize(
    ("system", "count", "algorithm", "most"),
    [
        ("dgx-h100", 2, "rails-trees", 1.2),
        ("mi300x-8", 5, "rails-trees", 1.3),
        ("rtx4090-pcie-8", 5, "rails-through", 1.15),
        ("cpu-1-socket", 4, "rails-", 1.1),
    ],
)
def test_long_values_to_and_from_one_root_come_near_the_bound(system, count, algorithm, most, name):
    """By halving it was two to three times the bound."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=256 * MIB)
    assert made.algorithm.startswith(algorithm) and made.certificate.gap <= most
    check_certificate(machine, made)


@pytest.mark.parametrize(("payload_bytes", "gap"), [(1024, 2.2), (16 << 10, 2.0)])
def test_short_values_of_many_gpus_behind_one_nic(payload_bytes, gap):
    """In one round over rails, or with parts sent at once inside hosts: it was 3.6 and 3.2 times the bound."""
    made = plan(catalog("rtx4090-pcie-8", hosts=16), payload_bytes=payload_bytes)
    assert made.certificate.gap <= gap


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter"])
def test_an_nvlink_domain_sends_short_values_at_once(name):
    made = plan(catalog("gb200-nvl72"), name, payload_bytes=1024)
    assert made.algorithm == "flat" and made.certificate.gap < 1.2


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("taken", [(8, 4), (3, 8)])
def test_meshes_of_several_sizes_have_no_turns_around_a_ring_of_one(name, taken):
    """The turns of the first host stood for those of all: an index out of bounds."""
    machine = catalog("dgx-1-v100", hosts=2)
    ranks = [end for host, n in enumerate(taken) for end in machine.endpoints[8 * host :][:n]]
    made = plan(machine, name, payload_bytes=16 * MIB, ranks=ranks)
    assert not any(each.algorithm.startswith("rails-around") for each in made.candidates)
    assert made.certificate.gap < 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["broadcast", "reduce", "allreduce"])
def test_ranks_of_one_endpoint_have_turns_without_time(name):
    """No link between them holds a slice: a place in a period was 0 over 0."""
    machine = line(1)
    made = plan(machine, name, payload_bytes=MIB, objective="throughput", ranks=machine.endpoints * 4)
    assert made.figures.predicted_us == 0


def test_short_parts_of_many_hosts_go_by_patterns():
    """By parts over rails, to 15 hosts at once, it was 1.9 times the bound: four messages in a row."""
    made = plan(catalog("dgx-h100-taper2", hosts=123), "allgather", payload_bytes=6060)
    assert made.algorithm.startswith("rails-123") and made.certificate.gap <= 1.15
