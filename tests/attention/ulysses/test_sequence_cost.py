"""Costs of rings of every size, by hand and by what they must depend on."""

from dataclasses import replace

import pytest
import torch

import topocomm
from attention import Spec, ulysses_attention
from attention.ulysses import sequence_cost
from attention.ulysses.sequence_cost import SequenceShape, best_cost, sequence_costs
from tests.attention.ring_cases import case, check, exact_of, held, run

SHAPE = SequenceShape(8192, 1, 32, 8, 128, 128, torch.bfloat16, "gpu")


@pytest.fixture(scope="module")
def eight():
    topology = topocomm.catalog("dgx-h100")
    return topology, topology.endpoints


def test_the_planners_time_of_what_is_sent(eight):
    """Of 1,024 tokens a rank: 4 query heads, a key head and a value head of 128 in bfloat16, and 4 heads back."""
    topology, ranks = eight
    costs = {cost.ring: cost for cost in sequence_costs(topology, ranks, SHAPE)}
    assert list(costs) == [1, 2, 4, 8]
    there, back = (
        topocomm.plan(topology, "alltoall", payload_bytes=8 * one, ranks=ranks).predicted_us
        for one in (1024 * 6 * 256, 1024 * 4 * 256)
    )
    copies_us = 2 * 2 * 8 * 1024 * (6 + 4) * 256 / 1e6
    assert costs[1].alltoall_us == pytest.approx(there + back + copies_us)
    assert costs[1].hops_us == costs[1].steps_us == costs[8].alltoall_us == 0
    assert costs[8].steps_us == pytest.approx(7 * (20 + 3 * 1024 * 32 * 129 * 4 / 1e6))
    assert costs[1].attention_us == costs[8].attention_us == pytest.approx(2 * 8192**2 / 2 * 4 * 256 / 1e8)


def test_heads_that_do_not_divide_leave_ranks_idle(eight):
    """9 heads on 8 ranks: one has 2, as long as if all had; 3 heads need rings."""
    of = {cost.ring: cost.attention_us for cost in sequence_costs(*eight, replace(SHAPE, heads=9, kv_heads=3))}
    assert of[1] == pytest.approx(of[8] * 16 / 9) and of[2] == pytest.approx(of[8] * 12 / 9)
    long = replace(SHAPE, tokens=1 << 17, heads=3, kv_heads=3)
    best = min(sequence_costs(*eight, long), key=lambda cost: cost.total_us)
    assert best.ring == 8


def test_layouts_that_are_not_balanced_cost_rings_only(eight):
    for cost, uneven in zip(*(sequence_costs(*eight, replace(SHAPE, balanced=x)) for x in (True, False)), strict=True):
        assert uneven.attention_us == pytest.approx(cost.attention_us * (2 - 1 / cost.ring))
    open_costs = [sequence_costs(*eight, replace(SHAPE, causal=False, balanced=x)) for x in (True, False)]
    assert open_costs[0] == open_costs[1]


def test_what_hides_is_the_smaller_one():
    one = sequence_cost.SequenceCost(4, 10.0, 400.0, 100.0, 7.0)
    assert one.total_us == 10 + 400 + 7
    assert replace(one, hops_us=310.0).total_us == 10 + 400 + 7 + 10


def test_lengths_share_plans(eight):
    sequence_costs(*eight, SHAPE)
    before = sequence_cost._exchange_us.cache_info().misses
    sequence_costs(*eight, replace(SHAPE, tokens=8000))
    assert sequence_cost._exchange_us.cache_info().misses == before


def test_all_ranks_choose_alike_and_compute_that():
    tensors, arriving = case(26)
    parts = held("zigzag", 26, 4)
    found = run(tensors, parts, arriving=arriving, attend=ulysses_attention, layout="zigzag", ring="auto")
    check(found, exact_of(tensors, Spec(), arriving))
    shape = SequenceShape(4096, 1, 12, 4, 64, 64, torch.float32, "cpu")
    chosen = topocomm.run_local(lambda comm: best_cost(comm, shape).ring, ranks=4)
    assert chosen == [chosen[0]] * 4 and 4 % chosen[0] == 0
