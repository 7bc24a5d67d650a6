"""Parts over hosts of several sizes: every contribution where it is wanted, near the bound, members receive as much."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.planning.hierarchical.test_long_values import MIB
from tests.planning.replay import replay, word
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import collective_of
from topocomm.planning.hierarchical.uneven_parts import fits_across, uneven_parts
from topocomm.planning.left_out import left_out
from topocomm.planning.proof.verify import verify
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import whole_layout
from topocomm.planning.routing.paths import PathFinder


def some_of(system, *taken):
    """The machine, and the first so many members of each host."""
    machine = catalog(system, hosts=len(taken))
    size = len(machine.endpoints) // len(taken)
    return machine, [end for host, n in enumerate(taken) for end in machine.endpoints[host * size :][:n]]


def asked(machine, ranks, name, rows, **wanted):
    """The request with a rank on each of these endpoints, None: all."""
    ends = tuple(ranks or machine.endpoints)
    collective = collective_of(name, len(ends), rows)
    layout = whole_layout(SUM.default_layout(rows), collective)
    request = request_on(machine, name, SUM, SUM.default_layout(rows))
    return replace(request, endpoints=ends, collective=collective, layout=layout, **wanted)


def builds(machine, ranks, name, rows, **wanted):
    request = asked(machine, ranks, name, rows, **wanted)
    return list(uneven_parts(request, RankPatterns(request, PathFinder(machine))))


@pytest.mark.parametrize(
    ("system", "taken", "ways"),
    [
        ("dgx-h100", (3, 2), {"uneven-parts"}),
        ("dgx-h100", (4, 1, 2), {"uneven-parts"}),
        ("dgx-1-v100", (8, 5, 7), {"uneven-parts-rings", "uneven-parts-trees"}),
        ("rtx4090-pcie-4", (4, 3), {"uneven-parts"}),
    ],
)
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "allreduce"])
def test_values_get_where_they_are_wanted_once(system, taken, ways, name):
    machine, ranks = some_of(system, *taken)
    made = builds(machine, ranks, name, MIB)
    assert {each.rpartition("-")[0] for each, _ in made} <= ways
    assert bool(made) == (name != "allreduce" or ways != {"uneven-parts"})
    request = asked(machine, ranks, name, MIB)
    for _, build in made:
        schedule = build()
        verify(schedule, request.collective)
        whose = None if name == "allgather" else range(len(ranks))
        for (rank, chunk), text in replay(schedule).items():
            of = [schedule.owners[chunk]] if whose is None else whose
            assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, of)), (rank, chunk)


@pytest.mark.parametrize(
    ("system", "taken", "most"),
    [
        ("dgx-h100", (8, 8, 7), 1.14),
        ("dgx-h100", (8, 4), 1.14),
        ("dgx-a100", (7, 8, 8, 8, 6), 1.1),
        ("dgx-2", (16, 15, 16), 1.5),
        ("dgx-1-v100", (7, 8, 8, 8, 6), 1.86),
        ("mi250x", (7, 8, 8, 8, 6), 2.23),
    ],
)
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_long_parts_are_nearer_the_bound(system, taken, most, name):
    """Before, 2.63, 1.46, 1.73, 4.1, 3.5 and 3.1 times."""
    machine, ranks = some_of(system, *taken)
    made = plan(machine, name, payload_bytes=16 * MIB, ranks=ranks)
    assert made.algorithm.startswith("uneven-parts-") and made.certificate.gap <= most
    check_certificate(machine, made)


@pytest.mark.parametrize(("system", "most"), [("dgx-1-v100", 1.93), ("mi250x", 2.25)])
def test_long_sums_on_meshes_are_nearer_the_bound(system, most):
    """Before, 2.03 and 2.82 times. The groups of the machine and its hosts number their sorts otherwise."""
    machine, ranks = some_of(system, 8, 8, 7)
    made = plan(machine, "allreduce", payload_bytes=16 * MIB, ranks=ranks)
    assert made.algorithm.startswith("uneven-parts-trees-") and made.certificate.gap <= most
    check_certificate(machine, made)


def test_racks_are_groups_as_a_whole():
    """Their hosts of four have links to each other: by hosts it took 4.8 times the bound, before 9.1."""
    machine, ranks = some_of("gb200-nvl72", 72, 71)
    made = plan(machine, "allgather", payload_bytes=16 * MIB, ranks=ranks)
    assert made.algorithm.startswith("uneven-parts-") and made.certificate.gap <= 1.45


@pytest.mark.parametrize("taken", [(8, 8, 7), (8, 3), (2, 8, 5)])
def test_all_members_of_a_host_receive_about_as_much_of_the_others(taken):
    machine, ranks = some_of("dgx-h100", *taken)
    ((_, build),) = builds(machine, ranks, "allgather", 8 * MIB)
    schedule = build()
    sizes = np.array([rows for _, rows in schedule.chunks])
    host = np.repeat(np.arange(len(taken)), taken)
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    across = host[src] != host[dst]
    got = np.bincount(dst[across], sizes[chunk[across]], len(ranks))
    for number in range(len(taken)):
        assert got[host == number].max() <= 1.13 * got[host == number].mean()
        assert got[host == number].sum() == sizes[host[np.array(schedule.owners)] != number].sum()


def test_it_is_for_hosts_of_several_sizes_and_parts_of_all_ranks():
    machine, ranks = some_of("dgx-h100", 8, 7)
    assert builds(machine, ranks, "allgather", MIB) and not builds(machine, None, "allgather", MIB)
    assert not builds(machine, ranks, "allreduce", MIB) and not builds(machine, ranks, "allgather", 1 << 8)
    assert not builds(machine, [*ranks[::2], *ranks[1::2]], "allgather", MIB)
    assert not builds(machine, ranks, "allgather", MIB, objective="rounds")
    parts = plan(machine, "allgather", payload_bytes=4 * 14 * 70000, ranks=ranks, parts=[0, *[70000] * 14])
    assert not any(each.algorithm.startswith("uneven") for each in parts.candidates)


def test_beyond_its_messages_it_is_named_as_left_out():
    machine, ranks = some_of("dgx-h100", *[8] * 47, 7)
    request = asked(machine, ranks, "allgather", 4 * MIB)
    names = [name for name, _ in candidate_builds(request, PathFinder(machine))]
    assert not any(name.startswith("uneven") for name in names)
    assert any(each.startswith("uneven-parts: ") for each in left_out(machine, request))
    few, some = some_of("dgx-h100", 8, 7)
    within = asked(few, some, "allgather", 4 * MIB)
    assert not any(each.startswith("uneven-parts: ") for each in left_out(few, within))
    groups = RankPatterns(within, PathFinder(few)).hosts
    assert fits_across(groups, 8) and not fits_across(groups, 1 << 10)
