"""The simulated block: short cuts beside whole simulations, changed constants, and a ring worked out by hand."""

import pytest

from tools.paper.simulated_block import (
    CONSTANTS,
    METHODS,
    BlockTimes,
    attention_us,
    block_step,
    constants_text,
    hosts_of_h100,
    sequential_ring_us,
)


@pytest.mark.parametrize("gpus", [8, 16])
@pytest.mark.parametrize("method", METHODS)
def test_one_simulation_gives_all_contexts(gpus, method):
    machine = hosts_of_h100(gpus)
    times = BlockTimes(machine)
    for context in (16_000, 5_120_000):
        assert times.us(method, context) == pytest.approx(block_step(machine, method, context).total_us, rel=1e-6)


def test_attention_takes_its_bytes_over_the_bandwidth():  # 80,000 tokens of 2 x 16 x 128 x 2 bytes at 3,350 GB/s
    assert attention_us(hosts_of_h100(8), 640_000) == pytest.approx(80_000 * 8192 / 3350e3)


def test_a_ring_that_does_not_overlap():  # hop: launch, two links of 0.3 us, bytes at 450 GB/s
    hop_us = 6.6 + 2 * 0.3 + 80_000 * 8192 / 450e3
    expected_us = 8 * 80_000 * 8192 / 3350e3 + 7 * hop_us
    assert sequential_ring_us(hosts_of_h100(8), 640_000) == pytest.approx(expected_us, rel=1e-6)


@pytest.mark.parametrize(
    ("constant", "factor", "slower"),
    [
        ("NVLink rate", 0.5, 1.99),
        ("NVLink rate", 2.0, 0.51),
        ("HBM rate", 0.5, 1.0),  # hidden behind the transfers of all hops but the first
        ("launch of a round", 2.0, 1.0),
        ("NVLink latency", 2.0, 1.0),
        ("network latency", 2.0, 1.0),
    ],
)
def test_constants_change_the_ring_as_they_should(constant, factor, slower):
    before_us, after_us = (
        block_step(machine, "ring", 640_000).total_us
        for machine in (hosts_of_h100(8), hosts_of_h100(8, constant, factor))
    )
    assert after_us / before_us == pytest.approx(slower, rel=0.03)
    assert (after_us == before_us) == (constant == "network latency")  # one host has no network on the way


def test_every_constant_is_one_of_the_machine():
    base = hosts_of_h100(16)
    for constant, where in CONSTANTS.items():
        changed = hosts_of_h100(16, constant, 2.0)
        if where is None:
            assert changed.topology == base.topology
            assert (changed.device, changed.launch_us) != (base.device, base.launch_us)
            continue
        kind, figure = where
        for old, new in zip(base.topology.links, changed.topology.links, strict=True):
            assert getattr(new, figure) == getattr(old, figure) * (2.0 if old.kind == kind else 1.0)


def test_the_text_has_the_figures_of_the_machine():
    assert constants_text() == (
        "NVLink 450 GB/s, 0.3 us a link; GPU to NIC 64 GB/s, 1 us a link; NIC 50 GB/s, 1.5 us a link; "
        "launch 6.6 us a round; HBM 3,350 GB/s"
    )
