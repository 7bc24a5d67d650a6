"""Every algorithm for every rank count: proved, and run on threads with an operator that spells out the order."""

from itertools import product

import numpy as np
import pytest

import topocomm
from tests.concatenation import ANY_ORDER, CAPACITY, in_order, spelled, word
from tests.machines import hosts, switch
from tests.plans import every_plan

CASES = [
    *product(("allreduce", "reduce", "broadcast"), range(1, 18)),
    pytest.param("allreduce", 32, marks=pytest.mark.long),
    *(pytest.param(collective, 32, marks=pytest.mark.soak) for collective in ("reduce", "broadcast")),
]
ROWS = 67


def run(plans, topology, ranks, value):
    def body(comm):
        results = []
        for plan in plans:
            x = value(comm.rank)
            call = comm.prepare(plan.collective.name, like=x, operator=ANY_ORDER, root=plan.collective.root, plan=plan)
            results.append(call(x))
        return results

    return topocomm.run_local(body, ranks=ranks, topology=topology)


@pytest.mark.parametrize(("collective", "ranks"), CASES)
def test_spells_the_ranks_in_order(collective, ranks):
    root = ranks // 3
    topology = switch(ranks)
    layout = ANY_ORDER.layout({"text": ((ROWS, CAPACITY), np.uint8), "length": ((ROWS,), np.int32)})
    plans = every_plan(topology, collective, ANY_ORDER, layout, root)
    assert {p.algorithm for p in plans} >= {"binomial", "flat"}
    outcomes = run(plans, topology, ranks, lambda rank: word(rank, ROWS))
    for index, plan in enumerate(plans):
        receivers = plan.collective.receivers
        texts = [spelled(outcomes[rank][index]) for rank in receivers]
        assert all(text == texts[0] for text in texts), f"{plan.algorithm}: ranks differ"
        if collective == "broadcast":
            assert set(texts[0]) == {f"<{root}>"}
        elif plan.proof.order_kept:
            assert set(texts[0]) == {in_order(ranks)}, plan.algorithm
        elif plan.algorithm.startswith(
            ("forest", "rails-halving", "rails-by", "rails-straight")
        ):  # no rotations: every rank once
            assert all(sorted(row.split("<")) == sorted(in_order(ranks).split("<")) for row in texts[0])
        else:
            doubled = in_order(ranks) * 2
            assert all(row in doubled and len(row) == len(in_order(ranks)) for row in texts[0]), plan.algorithm
        for rank in set(range(ranks)) - set(receivers):
            assert outcomes[rank][index] is None


@pytest.mark.parametrize(("count", "gpus"), [(2, 1), (2, 3), (3, 4), (4, 2), (5, 3)])
def test_two_levels_keep_order(count, gpus):
    topology = hosts(count, gpus)
    ranks = count * gpus
    layout = ANY_ORDER.layout({"text": ((2, CAPACITY), np.uint8), "length": ((2,), np.int32)})
    grouped = ("rails", "cyclic", "leaders")
    plans = [p for p in every_plan(topology, "allreduce", ANY_ORDER, layout) if p.algorithm.startswith(grouped)]
    assert {p.algorithm.split("-")[0] for p in plans} >= ({"rails", "leaders"} if gpus > 1 else {"rails"})
    outcomes = run(plans, topology, ranks, lambda rank: word(rank, 2))
    for results in outcomes:
        for result in results:
            assert spelled(result) == [in_order(ranks)] * 2


def test_uneven_groups():
    whole = hosts(3, 3)
    devices = tuple(d for d in whole.devices if d.id != "h1/GPU2")
    links = tuple(link for link in whole.links if "h1/GPU2" not in (link.src, link.dst))
    topology = topocomm.Topology("uneven", "test", devices, links)
    layout = ANY_ORDER.layout({"text": ((1, CAPACITY), np.uint8), "length": ((1,), np.int32)})
    plans = every_plan(topology, "allreduce", ANY_ORDER, layout)
    assert any(p.algorithm == "leaders-3" for p in plans)
    for results in run(plans, topology, 8, lambda rank: word(rank, 1)):
        for plan, result in zip(plans, results, strict=True):
            if plan.proof.order_kept:
                assert spelled(result) == [in_order(8)]


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_fewer_rows_than_ranks(rows):
    topology = switch(4)
    layout = ANY_ORDER.layout({"text": ((rows, CAPACITY), np.uint8), "length": ((rows,), np.int32)})
    plans = every_plan(topology, "allreduce", ANY_ORDER, layout)
    for results in run(plans, topology, 4, lambda rank: word(rank, rows)):
        assert all(len(spelled(result)) == rows for result in results)
