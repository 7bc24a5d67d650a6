"""What leaves a group goes to all others at first hand, or two messages before the end."""

from dataclasses import replace

import pytest

from tests.machines import line
from topocomm import catalog, check_certificate, plan
from topocomm.planning.bounds.time.leaving_bound import leaving_us

KIB = 1 << 10


def test_the_least_over_the_share_at_first_hand():
    """By trying shares; all at first hand where that takes no longer than a second message."""
    assert leaving_us(5.0, 4.0, 100.0) == 9.0
    assert leaving_us(5.0, 5.0, 100.0) == 10.0
    assert leaving_us(5.0, 1e9, 3.0) == pytest.approx(13.0)  # next to nothing at first hand
    for every_us, late_us in [(6.0, 1.0), (20.0, 3.0), (50.0, 80.0), (7.0, 0.0)]:
        shares = [number / 1e4 for number in range(10_001)]
        tried = min(max(5.0 + share * every_us, 10.0 + (1 - share) * late_us) for share in shares)
        assert leaving_us(5.0, every_us, late_us) == pytest.approx(tried, rel=1e-3)


def test_an_allreduce_of_cores_by_hand():
    """8 hosts of 16 cores of 10 GB/s: 15 values of 16 leave the ports at that, one by the NIC's 12.5, no faster."""
    machine = catalog("cpu-2-socket", hosts=8)
    made = plan(machine, payload_bytes=16 * KIB)
    every_us, late_us = 7 * 16 * KIB / 12.5e3, 16 * KIB / 10e3
    assert made.certificate.witness["kind"] == "leaving"
    assert made.certificate.predicted_lower_bound_us == pytest.approx(leaving_us(5.2, every_us, late_us))
    check_certificate(machine, made)


@pytest.mark.parametrize(
    ("system", "count", "name", "payload_bytes", "most"),
    [
        ("dgx-1-p100", 80, "reduce", 201_068, 1.75),  # was 2.44, 2.10 without the bound
        ("dgx-1-p100", 16, "allreduce", 64 * KIB, 1.65),
        ("cpu-2-socket", 16, "reduce", 64 * KIB, 1.6),
    ],
)
def test_gaps(system, count, name, payload_bytes, most):
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.certificate.gap <= most
    check_certificate(machine, made)


@pytest.mark.filterwarnings("error")
def test_a_root_that_cannot_send():
    """It need not, and what it would take was 0 over 0."""
    whole, rates = line(4), {(0, 1): 50, (0, 2): 450, (2, 0): 450, (2, 3): 50, (3, 2): 50}
    first, ids = whole.links[0], whole.endpoints
    links = [first._replace(src=ids[a], dst=ids[b], gb_per_s=rate, latency_us=5.0) for (a, b), rate in rates.items()]
    machine = replace(whole, links=tuple(links))
    for payload_bytes in (0, KIB):
        made = plan(machine, "reduce", payload_bytes=payload_bytes, root=1)
        check_certificate(machine, made)
