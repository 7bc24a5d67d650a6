"""What each method sends: bytes by hand, for 4 ranks on a switch."""

import numpy as np
import pytest

from tests.machines import switch
from topocomm.planning.cost.simulated_work import COMPUTE, SEND
from topocomm.simulation.decode.datasheets import DeviceFigures
from topocomm.simulation.decode.decode_methods import METHODS, helix_groups
from topocomm.simulation.decode.decode_step import simulate_step
from topocomm.simulation.decode.model_shapes import ModelShape

BLOCK = ModelShape("block", 1, 0, 8, 2, 16)
UNIT = DeviceFigures("unit", 1.0, 1e9, 1.0, "test")
"""1 GB/s of memory: 1,000 bytes a microsecond."""
PARTIAL = 8 * 17 * 4


def step(method, ranks=4, shape=BLOCK, **changes):
    return simulate_step(switch(ranks), shape, context=1000, method=method, device=UNIT, launch_us=0.0, **changes)


def sent(method, **changes):
    """Bytes by label."""
    work = step(method, **changes).timeline.work
    messages = work.kind == SEND
    sizes = np.bincount(work.label[messages], work.payload_bytes[messages], minlength=len(work.labels))
    return {name: size for name, size in zip(work.labels, sizes.tolist(), strict=True) if size}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("allgather", {"gather partials": 4 * 3 * PARTIAL}),
        ("ring-partials", {"partials": 4 * 3 * PARTIAL}),
        ("ring", {"keys and values": 4 * 3 * 250 * 2 * 2 * 16 * 2}),
        ("dcp-a2a", {"partials by heads": 4 * 3 * PARTIAL / 4}),
        ("dcp", {"weights": 4 * 3 * 8 * 4, "sum": 4 * 3 * 8 * 16 * 2 / 4}),
        ("helix", {"partials by heads": 4 * (PARTIAL / 2) / 2}),
    ],
)
def test_bytes_on_the_wire(method, expected):
    assert sent(method) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "labels"),
    [
        ("tree", {"merge"}),
        ("max-sum", {"maximum", "sum"}),
        ("three-allreduce", {"maximum", "numerator", "denominator"}),
    ],
)
def test_reductions(method, labels):
    assert set(sent(method)) == labels


def test_tensor_parallel_weights_gather_queries_and_sum_twice():
    shape = ModelShape("layer", 1, 64, 8, 2, 16, 128, 100)
    labels = {"queries", "merge", "sum after output projection", "sum after MLP", "best tokens"}
    assert set(sent("tree", shape=shape)) == labels
    assert set(sent("tree", shape=shape, weights="replicated")) == {"merge"}
    assert "queries" not in sent("helix", shape=shape)
    assert "queries" in sent("dcp", shape=shape)


@pytest.mark.parametrize("method", METHODS)
def test_one_rank_sends_nothing(method):
    one = step(method, ranks=1)
    assert one.timeline.work.sent_bytes == 0
    assert one.total_us == pytest.approx(1000 * 2 * 2 * 16 * 2 / 1e3, rel=0.01)


def test_the_ring_computes_while_it_sends():
    """32 us of attention over a part beside 32,000 B at 450 GB/s: messages hide behind it."""
    ring = step("ring")
    assert (ring.timeline.work.kind == COMPUTE).sum() == 16
    assert ring.total_us == pytest.approx(4 * 250 * 2 * 2 * 16 * 2 / 1e3)
    slow = simulate_step(switch(4, gb_per_s=0.1), BLOCK, context=1000, method="ring", device=UNIT, launch_us=0.0)
    assert slow.total_us == pytest.approx(3 * (32000 / 100 + 0.6) + 32)


def test_a_ring_of_partials_merges_while_it_sends():
    """1,088 B of merging for each of three hops at 1 GB/s, longer than a hop, beside 32 us of attention."""
    hop_us, merge_us = PARTIAL / 450e3 + 0.6, 2 * PARTIAL / 1e3
    assert step("ring-partials").total_us == pytest.approx(32 + hop_us + 3 * merge_us)
    launched = simulate_step(switch(4), BLOCK, context=1000, method="ring-partials", device=UNIT, launch_us=10.0)
    assert launched.total_us == pytest.approx(32 + 3 * (hop_us + 10.0) + merge_us)


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "groups"), [(8, 8, 8), (8, 64, 8), (8, 4, 4), (8, 6, 2), (4, 128, 4), (1, 5, 1)]
)
def test_helix_has_a_group_for_each_key_head(kv_heads, ranks, groups):
    assert helix_groups(kv_heads, ranks) == groups
