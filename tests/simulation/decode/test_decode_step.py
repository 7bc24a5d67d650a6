"""Steps of whole models: layers that add up, orders that are known, and what is refused."""

from dataclasses import replace

import pytest

from tests.machines import switch
from topocomm import PlanError, catalog
from topocomm.simulation.decode import METHODS, device_figures, model_shape, simulate_step

H100 = catalog("dgx-h100")


@pytest.mark.parametrize("method", METHODS)
def test_layers_after_the_second_take_as_long_as_it(method):
    shape = model_shape("llama-3.1-8b")
    whole = simulate_step(H100, shape, context=1 << 17, method=method)
    two = simulate_step(H100, replace(shape, layers=2), context=1 << 17, method=method)
    assert two.total_us == pytest.approx(two.timeline.total_us)
    assert whole.total_us == pytest.approx(two.total_us + 30 * whole.layer_us)
    assert whole.kv_bytes == (128 << 10) * (1 << 17) / 8
    assert whole.tokens_per_s == pytest.approx(1e6 / whole.total_us)


def test_a_step_is_never_shorter_than_what_memory_allows():
    """8 GPUs read 16 GB of weights (without the embedding) and 137 GB of keys and values at 8 x 3.35 TB/s."""
    shape = model_shape("llama-3.1-8b")
    weights = shape.layers * (shape.qkv_weights + shape.output_weights + shape.mlp_weights) + shape.head_weights
    least_us = (2 * weights + shape.layers * shape.kv_token_bytes * (1 << 20)) / (8 * 3350e3)
    for method in METHODS:
        assert simulate_step(H100, shape, context=1 << 20, method=method).total_us > least_us
    free = simulate_step(H100, shape, context=1 << 20, method="helix", launch_us=0.0)
    assert free.total_us == pytest.approx(least_us, rel=0.02)


def test_the_ring_falls_behind_as_the_context_grows():
    near, far = (
        simulate_step(H100, "tree-attention-block", context=context, method="ring").total_us
        / simulate_step(H100, "tree-attention-block", context=context, method="tree").total_us
        for context in (1 << 14, 1 << 20)
    )
    assert 1 < near < far


def test_a_single_reduction_beats_two_and_three():
    times = [
        simulate_step(H100, "tree-attention-block", context=1 << 16, method=method).total_us
        for method in ("tree", "max-sum", "three-allreduce")
    ]
    assert times == sorted(times)


def test_libraries_collectives_take_the_place_of_planned_ones():
    planned, ring = (
        simulate_step(H100, "tree-attention-block", context=1 << 16, collectives=name) for name in ("planned", "ring")
    )
    assert planned.timeline.work.messages != ring.timeline.work.messages
    assert ring.timeline.work.messages == 8 * 14


def test_switches_sum_what_is_summed():
    """MAX and one packed SUM by NVLink SHARP, each with one launch; the methods' other collectives stay planned."""
    summed = simulate_step(H100, "tree-attention-block", context=1 << 16, method="max-sum", collectives="switch-sum")
    partial = 16 * 129 * 4
    carried = sum(summed.timeline.work.payload_bytes.tolist())
    assert carried == 16 * (partial + 16 * 4)
    alone_us = simulate_step(H100, "tree-attention-block", context=1 << 16, ranks=("GPU0",)).total_us / 8
    assert summed.total_us == pytest.approx(alone_us + 2 * 6.6 + 2 * 0.6 + 2 * (partial + 64) / 450e3)


def test_communication_is_what_the_critical_path_does_beside_computing():
    quiet = simulate_step(H100, "tree-attention-block", context=1 << 24, launch_us=0.0)
    loud = simulate_step(H100, "tree-attention-block", context=1 << 10, launch_us=6.6)
    assert 0 < quiet.communication_share < 0.01
    assert loud.communication_share > 0.8
    assert quiet.path.steps[-1].end_us == quiet.timeline.total_us


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "star"}, "method 'star': expected one of tree, allgather"),
        ({"model": "gpt"}, "model 'gpt': expected one of"),
        ({"device": "abacus"}, "device 'abacus': expected one of"),
        ({"weights": "some"}, "weights 'some': expected sharded or replicated"),
        ({"method": "dcp", "weights": "replicated"}, "method dcp: leaves each rank the output of its heads"),
        ({"context": 0}, "expected at least one token"),
        ({"batch": 0}, "expected at least one token"),
        ({"efficiency": 1.5}, "an efficiency in \\(0, 1\\]"),
        ({"launch_us": -1.0}, "times of at least 0 us"),
        ({"collectives": "nope"}, "algorithm 'nope'"),
    ],
)
def test_what_is_refused(changes, why):
    with pytest.raises(PlanError, match=why):
        simulate_step(H100, **({"model": "llama-3.1-8b", "context": 1024} | changes))


def test_a_device_must_be_known_or_named():
    with pytest.raises(PlanError, match="no memory bandwidth is known"):
        simulate_step(switch(2), "tree-attention-block", context=8)
    assert simulate_step(switch(2), "tree-attention-block", context=8, device="h100").total_us > 0
    assert simulate_step(switch(2), "tree-attention-block", context=8, device=device_figures("h100")).batch == 1
