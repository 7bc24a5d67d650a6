"""Orders of ranks: never worse than the given one, found where a good one is known, and the same every time."""

import random

import pytest

from tests.machines import hosts, line, switch
from tests.thinning import alternating
from topocomm import PROD, PlanError, catalog, plan
from topocomm.planning.formats.rank_order_formats import devicemesh, map_by
from topocomm.planning.report.plan_comparison import figure_of
from topocomm.planning.report.rank_order import Order, best_order, candidate_orders


def figure(topology, ranks, **wanted):
    made = plan(topology, ranks=ranks, **wanted)
    return figure_of(made, made.figures)


@pytest.mark.parametrize(("seed", "objective"), alternating(range(3), ["throughput", "auto", "latency"]))
def test_never_worse_than_any_given_order(objective, seed):
    topology = catalog(("dgx-1-v100", "mi250x", "rtx4090-pcie-8")[seed])
    given = [*topology.endpoints[::2], topology.endpoints[1]]
    random.Random(seed).shuffle(given)
    wanted = {"payload_bytes": 65536, "objective": objective}
    found = best_order(topology, ranks=given, **wanted)
    assert sorted(found.ranks) == sorted(given)
    before, after = figure(topology, given, **wanted), figure(topology, found.ranks, **wanted)
    assert after >= before if objective == "throughput" else after <= before
    assert (found.ranks == tuple(given)) == (found.rule == "as given")


def test_round_robin_over_hosts_is_undone():
    topology = catalog("dgx-h100", hosts=4)
    given = [f"h{host}/GPU{gpu}" for gpu in range(8) for host in range(4)]
    found = best_order(topology, payload_bytes=1 << 20, objective="throughput", ranks=given)
    wanted = {"payload_bytes": 1 << 20, "objective": "throughput"}
    natural = figure(topology, topology.endpoints, **wanted)
    reached, before = figure_of(found.plan, found.plan.figures), figure(topology, given, **wanted)
    assert reached >= natural
    if reached > before:
        hosts_in_order = [topology.by_id[end].host for end in found.ranks]
        assert hosts_in_order == [f"h{host}" for host in range(4) for _ in range(8)]
        assert f"{before:.2f} -> {reached:.2f} GB/s, {reached / before:.2f}x better" in found.gain()


def test_a_good_order_stays():
    found = best_order(switch(6), payload_bytes=64)
    assert found.ranks == switch(6).endpoints
    assert "the given order is as good as any found" in found.gain()


@pytest.mark.long
def test_partners_of_a_cube_mesh_get_its_double_links():
    """DGX-1: 25 GB/s where partners have single links, 50 where they have double ones."""
    found = best_order(catalog("dgx-1-v100"), payload_bytes=1 << 20, objective="throughput")
    assert figure_of(found.plan, found.plan.figures) > 49.9


def test_a_line_is_followed():
    """Direct links between neighbours only: few algorithms have routes, and only in the order of the line."""
    given = ["GPU0", "GPU1", "GPU2", "GPU3"]
    topology = line(4)
    found = best_order(topology, "scan", payload_bytes=64, operator=PROD, ranks=given)
    assert found.ranks in (tuple(given), tuple(given[::-1]))


def test_hosts_that_are_near_stand_together():
    topology = hosts(2, 2)
    given = ["h0/GPU0", "h1/GPU0", "h0/GPU1", "h1/GPU1"]
    for _, order in candidate_orders(topology, given):
        assert [topology.by_id[end].host for end in order] == ["h0", "h0", "h1", "h1"]


def test_the_same_order_every_time():
    topology = catalog("mi250x", hosts=2)
    given = topology.endpoints[::-1]
    assert best_order(topology, payload_bytes=4096, ranks=given).ranks == (
        best_order(topology, payload_bytes=4096, ranks=given).ranks
    )


def test_two_ranks_on_one_endpoint_are_refused():
    with pytest.raises(PlanError, match="two ranks on one endpoint"):
        best_order(switch(2), ranks=["GPU0", "GPU0"])


def ordered(topology, ranks, given=None):
    made = plan(topology, payload_bytes=0)
    return Order(tuple(ranks), tuple(given or topology.endpoints), "as given", made, made)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (["h0/GPU0", "h0/GPU1", "h1/GPU0", "h1/GPU1"], "--map-by ppr:2:node --rank-by slot\n"),
        (["h0/GPU0", "h1/GPU0", "h0/GPU1", "h1/GPU1"], "--map-by ppr:2:node --rank-by node\n"),
    ],
)
def test_map_by_says_what_it_can(ranks, said):
    topology = hosts(2, 2)
    assert map_by(ordered(topology, ranks), topology) == said


@pytest.mark.parametrize(
    "ranks",
    [
        ["h0/GPU1", "h0/GPU0", "h1/GPU0", "h1/GPU1"],
        ["h0/GPU0", "h1/GPU0", "h1/GPU1", "h0/GPU1"],
        ["h0/GPU0", "h0/GPU1", "h1/GPU0"],
    ],
)
def test_map_by_refuses_what_only_a_rankfile_says(ranks):
    topology = hosts(2, 2)
    with pytest.raises(PlanError, match="only a rankfile can, use --format rankfile"):
        map_by(ordered(topology, ranks), topology)


def test_a_device_mesh_lists_the_present_ranks():
    topology = hosts(2, 2)
    given = ["h0/GPU0", "h1/GPU0", "h0/GPU1", "h1/GPU1"]
    assert devicemesh(ordered(topology, topology.endpoints, given), topology) == "[0, 2, 1, 3]\n"
