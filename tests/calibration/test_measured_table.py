"""Names of collectives and the checks of rows."""

import pytest

from topocomm import TopocommError
from topocomm.calibration.measured_table import (
    MeasuredRow,
    check_bandwidth,
    checked_row,
    collective_named,
    increasing,
)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("all_reduce_perf", "allreduce"),
        ("All-Reduce", "allreduce"),
        ("Reduce_scatter", "reduce_scatter"),
        ("Bcast", "broadcast"),
        ("all_to_all", "alltoall"),
        ("sendrecv_perf", "sendrecv"),
        ("hypercube_perf", None),
    ],
)
def test_collectives_have_one_name(name, ours):
    assert collective_named(name) == ours


@pytest.mark.parametrize("time_us", [0.0, -3.0, float("nan"), float("inf")])
def test_a_time_is_positive_and_finite(time_us):
    with pytest.raises(TopocommError, match=r"a\.log: line 7: time .*expected a time over 0"):
        checked_row("a.log: line 7", 8, time_us)


def test_bandwidth_is_checked_within_its_digits():
    row = MeasuredRow(1 << 20, 100.0)
    check_bandwidth("a", row, "10.49", "100.0")
    check_bandwidth("a", row, "10", "100.0")  # whole GB/s
    check_bandwidth("a", MeasuredRow(8, 13.67), "0.00", "13.67")
    with pytest.raises(TopocommError, match=r"algbw 12.0 GB/s disagrees with 1048576 bytes"):
        check_bandwidth("a", row, "12.0", "100.0")


def test_rows_are_sorted_and_repeats_become_their_median():
    rows = [MeasuredRow(8, 3.0), MeasuredRow(4, 1.0), MeasuredRow(8, 9.0), MeasuredRow(8, 4.0)]
    assert increasing(rows) == (MeasuredRow(4, 1.0), MeasuredRow(8, 4.0))
