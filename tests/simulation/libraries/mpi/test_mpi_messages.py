"""Costs of MPI's messages, by place and size."""

import pytest

import topocomm
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries.mpi.mpi_messages import RENDEZVOUS_BYTES, Messages


def messages(*, on_device=False, hosts=2):
    return Messages(job_shape(topocomm.catalog("v100-4", hosts=hosts)), DEFAULTS, on_device)


def test_small_messages_cost_their_latency():
    own = messages()
    assert own.near_us(0) == DEFAULTS["mpi.memory_us"]
    assert own.far_us(0) == DEFAULTS["mpi.network_us"]
    assert own.hop_us(0, 1) == DEFAULTS["mpi.call_us"] + DEFAULTS["mpi.memory_us"]
    assert own.hop_us(0, 4) == DEFAULTS["mpi.call_us"] + DEFAULTS["mpi.network_us"]


def test_long_messages_share_the_ports_of_their_host():
    own = messages()
    nbytes = 64 << 20
    alone, beside = own.far_us(nbytes, 1), own.far_us(nbytes, 4)
    assert alone == pytest.approx(nbytes / (25 * DEFAULTS["mpi.efficiency"]) / 1e3, rel=0.01)
    assert beside / alone == pytest.approx(4, rel=0.02)


def test_rendezvous_costs_a_handshake_and_opens_all_ports():
    own = messages()
    assert own.far_us(RENDEZVOUS_BYTES + 1) < own.far_us(RENDEZVOUS_BYTES) + DEFAULTS["mpi.rendezvous_us"]
    assert own.far_us(RENDEZVOUS_BYTES) > RENDEZVOUS_BYTES / DEFAULTS["mpi.eager_gb_per_s"] / 1e3


def test_a_core_that_sends_and_receives_copies_twice():
    own = messages()
    once, both = (own.near_us(1 << 20, both_ways=way) - own.near_us(8192) for way in (False, True))
    assert both / once == pytest.approx(2, rel=0.02)


def test_device_memory_is_slow_to_read_by_the_cpu():
    own = messages(on_device=True)
    assert own.near_us(8 << 10) > own.near_us(32 << 10)  # copied by the device from 16 KiB on
    assert own.far_us(128 << 10) > own.far_us(256 << 10)  # read by the network card from 256 KiB on


def test_a_step_is_the_mean_hop_or_the_slowest_hops_bytes():
    own = messages(hosts=4)
    assert own.step_us(0) == pytest.approx((12 * own.near_us(0) + 3 * own.far_us(0)) / 15)
    assert own.step_us(1 << 20) >= own.near_us(1 << 20, both_ways=True) - own.near_us(0)
    assert messages(hosts=1).far_us(0) == DEFAULTS["mpi.network_us"]  # without a network, no division by zero
