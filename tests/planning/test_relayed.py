"""Machines where ranks have no routes to most others: values are relayed, whatever is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.concatenation import CONCAT
from tests.examples import examples
from tests.machines import line, switch
from tests.planning.replay import part_count
from topocomm import SUM, Device, Link, Topology, check_certificate, plan
from topocomm.planning.collectives import COLLECTIVES, IN_PARTS, ROOTED, Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.relayed import relayed_builds
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder


def request(machine, name, ranks, *, operator=SUM, **fields):
    if name in IN_PARTS:
        fields = {"parts": tuple(rank % 3 for rank in range(part_count(name, len(ranks))))} | fields
    collective = Collective(name, len(ranks), **fields)
    layout = operator.default_layout(sum(collective.parts) if collective.parts else 5)
    return Request(collective, operator, layout, tuple(ranks), "auto", 1, "loggp")


def check(machine, asked):
    paths = PathFinder(machine)
    for _, build in relayed_builds(asked, paths):
        return verify(
            build(),
            asked.collective,
            paths=paths,
            endpoints=asked.endpoints,
            keep_order=not asked.operator.commutative,
        )
    raise AssertionError("no plan over relays")


@st.composite
def graphs(draw):
    """A random tree of direct links between GPUs with some links more, of any latency, and ranks on it."""
    count = draw(st.integers(1, 7))
    pairs = [(draw(st.integers(0, b - 1)), b) for b in range(1, count)]
    pairs += draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3))
    links = tuple(
        Link(f"GPU{a}", f"GPU{b}", "nvlink", 1, 10.0, draw(st.sampled_from([0.0, 0.5, 2.0])))
        for pair in pairs
        for a, b in (pair, pair[::-1])
        if a != b
    )
    machine = Topology("graph", "test", tuple(Device(f"GPU{i}", "gpu") for i in range(count)), links)
    more = draw(st.lists(st.sampled_from(machine.endpoints), max_size=3))
    return machine, draw(st.permutations([*machine.endpoints, *more]))


@examples(40)
@given(graphs(), st.sampled_from(COLLECTIVES), st.sampled_from([SUM, CONCAT]), st.data())
def test_every_collective_is_relayed_on_any_graph(case, name, operator, data):
    machine, ranks = case
    fields = {}
    if name in ROOTED:
        fields["root"] = data.draw(st.integers(0, len(ranks) - 1))
    if name == "allreduce" and data.draw(st.booleans()):
        owned = data.draw(st.lists(st.integers(0, 3), min_size=len(ranks), max_size=len(ranks)))
        starts = [sum(owned[:rank]) for rank in range(len(ranks) + 1)]
        fields["shards"] = tuple(starts) if starts[-1] else tuple(range(len(ranks) + 1))
    check(machine, request(machine, name, ranks, operator=operator, **fields))


@pytest.mark.parametrize("ranks", [*range(1, 18), 64])
def test_any_number_of_ranks(ranks):
    machine = line(ranks)
    for name in COLLECTIVES:
        check(machine, request(machine, name, machine.endpoints, root=0))


def test_an_alltoall_of_one_pair_goes_over_those_between():
    machine = line(4)
    asked = request(machine, "alltoall", machine.endpoints, parts=(*[0] * 12, 3, 0, 0, 0))
    check(machine, asked)
    (build,) = (build for _, build in relayed_builds(asked, PathFinder(machine)))
    assert build().transfers[:, [1, 3]].tolist() == [[3, 2], [2, 1], [1, 0]]


def test_the_cheapest_way_is_taken():
    """A ring of three, one link slow: its ends talk over the third."""
    links = [("a", "b", 9.0), ("b", "c", 1.0), ("a", "c", 1.0)]
    both = tuple(Link(x, y, "k", 1, 1.0, us) for a, b, us in links for x, y in ((a, b), (b, a)))
    machine = Topology("ring", "test", tuple(Device(name, "gpu") for name in "abc"), both)
    asked = request(machine, "broadcast", machine.endpoints)
    (build,) = (build for _, build in relayed_builds(asked, PathFinder(machine)))
    assert build().transfers[:, [1, 3]].tolist() == [[0, 2], [2, 1]]


def test_ranks_without_a_device_between_are_planned_for_any_objective():
    for objective in ("auto", "latency", "rounds", "throughput"):
        for ranks in (None, ["GPU0", "GPU0", "GPU3", "GPU1", "GPU2"]):
            for order in ("any", "canonical"):
                made = plan(line(4), payload_bytes=64, objective=objective, ranks=ranks, order=order)
                check_certificate(line(4), made)
    assert plan(line(4), payload_bytes=64).algorithm == "searched"
    assert plan(line(4), payload_bytes=64, order="canonical").algorithm == "relayed"
    assert plan(switch(4), payload_bytes=64, order="canonical").algorithm != "relayed"
