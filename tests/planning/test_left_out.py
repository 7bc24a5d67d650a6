"""What is said to be left out is what is not tried, and is tried below the limit that is named."""

import pytest

import topocomm
from tests.machines import hosts, joined, switch
from tests.planning.bounds.time.test_weighted_groups import mesh
from topocomm.operators.operator import Field
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import collective_of
from topocomm.planning.left_out import left_out
from topocomm.planning.request import Request, layout_of, whole_layout
from topocomm.planning.routing.paths import PathFinder


def ring_of(count):
    return mesh({tuple(sorted((end, (end + 1) % count))): 25.0 for end in range(count)} | {(0, 2): 50.0})


def request(machine, name, payload_bytes, operator=topocomm.SUM, ranks=None):
    ends = tuple(ranks or machine.endpoints)
    layout = layout_of(operator, payload_bytes)
    asked = collective_of(name, len(ends), layout.rows)
    return Request(asked, operator, whole_layout(layout, asked), ends, "auto", 1, "loggp")


def tried(machine, wanted):
    return {name.rstrip("0123456789.-k") for name, _ in candidate_builds(wanted, PathFinder(machine))}


def named(machine, wanted):
    return {each for line in left_out(machine, wanted) for each in line.split(":")[0].split(", ")}


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allgather", "reduce_scatter", "scan", "exscan"])
@pytest.mark.parametrize("limit", [32, 64, 256])
def test_a_limit_is_where_a_family_ends(name, limit):
    machine = switch(limit + 2)
    below, above = (request(machine, name, 1 << 20, ranks=machine.endpoints[:count]) for count in (limit, limit + 1))
    gone = tried(machine, below) - tried(machine, above)
    assert gone - {"circulant"} <= named(machine, above) - named(machine, below)
    assert not named(machine, above) & tried(machine, above)
    assert named(machine, above) - named(machine, below) <= tried(machine, below) | {"circulant"}


def test_nothing_is_left_out_of_a_small_machine():
    assert left_out(switch(8), request(switch(8), "allreduce", 1 << 20)) == ()
    assert left_out(hosts(2, 4), request(hosts(2, 4), "allreduce", 64)) == ()


def test_overlapped_parts_are_for_few_ranks():
    line = "rails-overlap: for at most 128 ranks"
    many, few = topocomm.catalog("dgx-2", hosts=9), topocomm.catalog("dgx-2", hosts=8)
    for machine, is_left_out in ((many, True), (few, False)):
        asked = request(machine, "allgather", 4 << 20)
        assert (line in left_out(machine, asked)) == is_left_out
        assert ("rails-overlap" in tried(machine, asked)) != is_left_out


def test_operators_that_do_not_commute_have_no_parts_over_rails():
    rows = (Field("x", ("*rows",)),)
    operator = topocomm.Operator("right", rows, lambda a, b: b, {"x": 0}, commutative=False)
    wanted = request(hosts(3, 2), "allreduce", 1 << 20, operator)
    assert "rails-halving, rails-by, rails-blocks: right does not commute" in left_out(hosts(3, 2), wanted)
    assert not {"rails-halving", "rails-by"} & tried(hosts(3, 2), wanted)


def test_relays_are_for_hosts_of_few_ranks():
    machine = hosts(2, 9)
    beyond = request(machine, "scan", 1 << 20, ranks=(*machine.endpoints[:9], machine.endpoints[17]))
    assert not any("relay-chain" in line for line in left_out(machine, beyond))  # ten ranks as if in one host
    wanted = request(machine, "scan", 1 << 20, ranks=machine.endpoints[:17])
    line = "scan-trees, scan-owners, scan-hosts, relay-chain: for at most 16 ranks, or hosts of so many that are alike"
    assert line in left_out(machine, wanted)
    assert "relay-chain" not in tried(machine, wanted)
    assert "relay-chain" in tried(hosts(9, 9), request(hosts(9, 9), "scan", 1 << 20))  # few ranks have trees instead
    assert "relay-chain: for at most 8 ranks of a host" in left_out(machine, request(machine, "reduce", 1 << 20))


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_trees_in_ports_are_for_few_ranks_of_meshes(name):
    line = "port-forest: with one port for at most 16 ranks, and 500 messages a slice"
    machine = topocomm.catalog("dgx-1-v100", hosts=3)
    beyond, within = (request(machine, name, 1 << 20, ranks=machine.endpoints[:count]) for count in (17, 16))
    assert line in left_out(machine, beyond) and "port-forest" not in tried(machine, beyond)
    assert line not in left_out(machine, within) and "port-forest" in tried(machine, within)
    plain = topocomm.catalog("dgx-h100", hosts=3)
    assert line not in left_out(plain, request(plain, name, 1 << 20, ranks=plain.endpoints[:17]))


@pytest.mark.parametrize(("name", "family"), [("reduce", "edge-forest"), ("allgather", "host-trees")])
def test_trees_of_edges_are_for_hosts_of_few_ranks(name, family):
    machine = ring_of(17)
    beyond, within = (request(machine, name, 64 << 10, ranks=machine.endpoints[:count]) for count in (17, 16))
    assert f"{family}: for at most 16 ranks of a host" in left_out(machine, beyond)
    assert family not in tried(machine, beyond)
    assert family in tried(machine, within) and family not in named(machine, within)


def test_what_is_not_pipelined_between_processors():
    machine = joined((2, 2))
    for name in ("reduce", "broadcast"):
        asked = request(machine, name, 1 << 20)
        assert "forest: with objective auto for GPUs only" in left_out(machine, asked)
        assert {"two-tree", "chained-trees"} <= tried(machine, asked) and "forest" not in tried(machine, asked)
    asked = request(machine, "allreduce", 1 << 20)
    assert "forest, two-tree: with objective auto for GPUs only" in left_out(machine, asked)
    many = topocomm.catalog("cpu-2-socket", hosts=9)
    beyond, within = (request(many, "reduce", 1 << 20, ranks=many.endpoints[:count]) for count in (129, 128))
    line = "two-tree: with objective auto for at most 128 ranks on CPUs"
    assert line in left_out(many, beyond) and line not in left_out(many, within)
    assert {"two-tree", "chained-trees"} <= tried(many, within) and "two-tree" not in tried(many, beyond)
    large = topocomm.catalog("cpu-2-socket-64", hosts=9)
    beyond, within = (request(large, "reduce", 1 << 20, ranks=large.endpoints[:count]) for count in (513, 512))
    line = "chained-trees: with objective auto for at most 512 ranks on CPUs"
    assert line in left_out(large, beyond) and line not in left_out(large, within)
    assert "chained-trees" in tried(large, within) and "chained-trees" not in tried(large, beyond)


def test_hosts_tell_all_later_ones_where_they_are_few():
    line = "scan-hosts, rails-hosts: for at most 16 hosts"
    for count, there in ((16, False), (17, True)):
        machine = hosts(count, 2)
        asked = request(machine, "scan", 64 << 10)
        assert (
            (line in left_out(machine, asked)) == there == (not {"scan-hosts", "rails-hosts"} & tried(machine, asked))
        )
        assert line not in left_out(machine, request(machine, "scan", 64 << 20))


def test_no_family_is_named_twice():
    machine = topocomm.catalog("cpu-2-socket-64")
    lines = left_out(machine, request(machine, "scan", 1 << 20))
    assert len(set(lines)) == len(lines)


def test_ranks_without_a_rail_are_named():
    uneven = joined((3, 2))
    assert "rails-halving, rails-by: some rank is on no rail that every host has" in left_out(
        uneven, request(uneven, "allgather", 1 << 20)
    )
    assert not {"rails-halving"} & tried(uneven, request(uneven, "allgather", 1 << 20))
    assert "rails-halving" in tried(uneven, request(uneven, "broadcast", 1 << 20))
    assert "rails-scan" in tried(uneven, request(uneven, "scan", 1 << 20))


@pytest.mark.parametrize("name", ["gather", "scatter", "alltoall"])
def test_collectives_without_a_family_do_not_miss_it(name):
    machine = switch(40)
    assert left_out(machine, request(machine, name, 1 << 20)) == ()


@pytest.mark.parametrize("count", [2, 3, 16, 17])
def test_no_candidate_stands_twice(count):
    machine = hosts(count, 2)
    for name in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "scan"):
        names = [each for each, _ in candidate_builds(request(machine, name, 1 << 22), PathFinder(machine))]
        assert len(names) == len(set(names)), name


@pytest.mark.parametrize("name", ["gather", "scatter", "alltoall"])
def test_ways_of_a_flow_are_for_few_ranks(name):
    machine = topocomm.catalog("v100-4", hosts=17)
    below, above = (request(machine, name, 1 << 20, ranks=machine.endpoints[:count]) for count in (64, 65))
    assert "ways: for at most 64 ranks" in left_out(machine, above) and "ways" not in tried(machine, above)
    assert "ways" not in named(machine, below)
