"""Rates as commands of tc."""

import pytest

from tools.netlab.traffic import bits_per_s, burst_bytes, limit_commands
from topocomm.errors import TopologyError


@pytest.mark.parametrize(("gb_per_s", "rate"), [(0.0125, 100_000_000), (1e-6, 8_000), (12.5, 100_000_000_000)])
def test_rates_in_bit_per_second(gb_per_s, rate):
    assert bits_per_s(gb_per_s) == rate


@pytest.mark.parametrize("gb_per_s", [0.0, 9e-7, 13.0])
def test_rates_that_tc_cannot_make_are_refused(gb_per_s):
    with pytest.raises(TopologyError, match=r"the lab makes rates from 1e-06 to 12\.5 GB/s"):
        bits_per_s(gb_per_s)


def test_the_bucket_holds_some_packets_and_no_short_message():
    assert burst_bytes(100_000_000) == 6144  # 0.5 ms; 64 KiB take 5
    assert burst_bytes(10_000_000_000) == 25_000  # 20 us


def test_a_device_gets_a_bucket_and_a_delay():
    assert limit_commands("d", None) == []
    (bucket,) = limit_commands("d", 0.0125)
    assert bucket == "qdisc add dev d root handle 1: tbf rate 100000000bit burst 6144 limit 8388608"
    assert limit_commands("d", 0.0125, 250.0) == [
        bucket,
        "qdisc add dev d parent 1:1 handle 2: netem delay 250us limit 10000",
    ]
    assert limit_commands("d", None, 250.0) == ["qdisc add dev d root handle 2: netem delay 250us limit 10000"]


def test_another_rate_replaces_the_bucket_alone():
    (bucket,) = limit_commands("d", 0.00125, 250.0, change=True)
    assert bucket == "qdisc change dev d root handle 1: tbf rate 10000000bit burst 6144 limit 8388608"
