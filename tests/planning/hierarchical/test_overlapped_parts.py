"""Parts whose ways out overlap with what hosts send inside: near the bound, right, and offered only where they help."""

import re
from dataclasses import replace

import pytest

from tests.machines import hosts, sharing
from tests.planning.hierarchical.test_long_values import MIB, offered
from tests.planning.replay import replay, word
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.hierarchical.overlapped_parts import overlapped_parts
from topocomm.planning.proof.verify import verify
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.paths import PathFinder

NAMES = ["allreduce", "allgather", "reduce_scatter"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("system", "count", "most"),
    [
        ("dgx-2", 2, 1.1),  # in phases it was 1.32
        ("dgx-2", 5, 1.15),  # 1.42
        ("dgx-1-v100", 5, 1.25),  # 1.33
        ("p3dn", 5, 1.2),  # 1.32
        ("v100-4", 5, 1.25),  # 1.48
    ],
)
def test_hosts_send_inside_while_nics_are_busy(system, count, most, name):
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=16 * MIB)
    assert made.algorithm.startswith(("rails-overlap-", "host-forest-")) and made.certificate.gap <= most
    check_certificate(machine, made)


MESH_OF_SIX = {(a, b): 25.0 for a in range(6) for b in range(a)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("gpus", "nics", "pairs"), [(6, 2, None), (6, 2, MESH_OF_SIX), (12, 4, None), (5, 2, None), (3, 1, None)]
)
def test_hosts_of_other_shapes_too(gpus, nics, pairs, name):
    machine = sharing(3, gpus, nics, pairs)
    made = plan(machine, name, payload_bytes=16 * MIB)
    assert made.algorithm.startswith(("rails-overlap-", "turns-", "host-forest-")) and made.certificate.gap <= 1.3
    check_certificate(machine, made)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("system", "count"), [("dgx-1-v100", 3), ("p3dn", 2), ("v100-4", 2)])
def test_results_are_those_of_the_collective(system, count, scattered, name):
    machine = catalog(system, hosts=count)
    ranks = len(machine.endpoints)
    parts = [4100 + rank % 3 for rank in range(ranks)]
    request = request_on(
        machine, name, SUM, SUM.default_layout(sum(parts)), parts=parts if name != "allreduce" else None
    )
    if scattered:
        ends = [request.endpoints[rank % count * (ranks // count) + rank // count] for rank in range(ranks)]
        request = replace(request, endpoints=tuple(ends))
    builds = list(overlapped_parts(request, RankPatterns(request, PathFinder(machine))))
    assert bool(builds) == (not scattered or name == "allreduce")
    for _, build in builds:
        schedule = build()
        verify(schedule, request.collective)
    for (_, chunk), text in replay(schedule).items() if builds else ():  # of the last
        whose = [schedule.owners[chunk]] if name == "allgather" else range(ranks)
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose))


def test_an_allreduce_gives_parts_to_those_with_fast_ways_out():
    """Four of the eight GPUs of a p3dn reach its NIC past a link of 6 GB/s alone."""
    machine = catalog("p3dn", hosts=2)
    request = request_on(machine, "allreduce", SUM, SUM.default_layout(MIB))
    for _, build in overlapped_parts(request, RankPatterns(request, PathFinder(machine))):
        moves = build().transfer_list()
        assert {move.src % 8 for move in moves if move.src // 8 != move.dst // 8} == {0, 1, 2, 3}
    request = request_on(machine, "allgather", SUM, SUM.default_layout(MIB))
    for _, build in overlapped_parts(request, RankPatterns(request, PathFinder(machine))):
        moves = build().transfer_list()
        assert {move.src % 8 for move in moves if move.src // 8 != move.dst // 8} == {0, 1, 2, 3}


def test_it_is_for_hosts_that_are_alike_and_share_nics():
    assert offered(catalog("dgx-2", hosts=5), "allgather", 64 * MIB, "rails-overlap") == ["1"]
    assert offered(catalog("v100-4", hosts=2), "allgather", 64 * MIB, "rails-overlap") == ["8"]
    assert offered(catalog("p3dn", hosts=2), "allgather", 64 * MIB, "rails-overlap") == ["8", "1"]
    assert offered(catalog("v100-4", hosts=2), "allgather", 48 << 10, "rails-overlap") == []
    assert offered(catalog("dgx-h100", hosts=2), "allreduce", 64 * MIB, "rails-overlap") == []
    assert offered(hosts(2, 4), "allreduce", 64 * MIB, "rails-overlap") == []
    assert offered(catalog("dgx-2"), "allreduce", 64 * MIB, "rails-overlap") == []
    assert offered(catalog("dgx-2", hosts=8), "allgather", 64 * MIB, "rails-overlap") == ["1"]
    assert offered(catalog("dgx-2", hosts=9), "allgather", 64 * MIB, "rails-overlap") == []


def test_it_is_for_one_port_whose_rounds_cost_nothing():
    machine = catalog("v100-4", hosts=2)
    request = request_on(machine, "allgather", SUM, SUM.default_layout(MIB))

    def is_offered(request):
        return any(name.startswith("rails-overlap") for name, _ in candidate_builds(request, PathFinder(machine)))

    assert is_offered(request)
    assert not is_offered(replace(request, ports=2)) and not is_offered(replace(request, launch_us=1.0))
    assert not is_offered(replace(request, port_model="alpha"))
