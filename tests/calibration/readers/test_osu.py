"""Logs of the OSU micro-benchmarks."""

import pytest

from topocomm import TopocommError
from topocomm.calibration.readers import osu

FULL = """\

# OSU MPI-CUDA Allreduce Latency Test v5.7
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      24.32             24.18             24.48        1000
8                      24.62             24.30             24.90        1000
"""
SHORT = """\
# OSU MPI Broadcast Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       0.84
2                       0.81
"""
MULTI_BW = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v5.7
# [ pairs: 4 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1                      16.42       16420000.00
1024                 7359.76        7187265.62
"""


def test_all_columns_on_devices():
    (table,) = osu.read(FULL, "a.txt", ranks=4)
    assert (table.collective, table.memory, table.ranks) == ("allreduce", "device", 4)
    assert table.rows == ((4, 24.32), (8, 24.62))


def test_one_column_on_hosts_without_a_number_of_ranks():
    (table,) = osu.read(SHORT, "a.txt")
    assert (table.collective, table.memory, table.ranks) == ("broadcast", "host", None)
    assert table.rows == ((1, 0.84), (2, 0.81))


def test_messages_between_pairs():
    latency = "# OSU MPI Multi Latency Test v5.7\n# Size          Latency (us)\n0                       0.87\n"
    (table,) = osu.read(latency, "a.txt")
    assert (table.collective, table.ranks, table.rows) == ("message", 2, ((0, 0.87),))
    (table,) = osu.read(MULTI_BW, "a.txt")
    assert (table.collective, table.pairs, table.ranks) == ("stream", 4, 8)
    assert table.rows[1] == (1024, 1024 * 4 / 7359.76)


def test_sizes_of_one_rank_are_counted_for_all():
    text = SHORT.replace("Broadcast", "Allgather")
    assert osu.read(text, "a.txt", ranks=8)[0].rows == ((8, 0.84), (16, 0.81))
    with pytest.raises(TopocommError, match=r"a\.txt: line 1: sizes of allgather are of one rank.*give --ranks"):
        osu.read(text, "a.txt")


def test_barrier_and_alltoall():
    barrier = "# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             3.10\n"
    assert osu.read(barrier, "a.txt", ranks=4)[0].rows == ((0, 3.1),)
    text = SHORT.replace("Broadcast", "All-to-All Personalized Exchange")
    assert osu.read(text, "a.txt", ranks=2)[0].collective == "alltoall"


def test_validation_is_no_figure():
    text = FULL.replace("Iterations", "Iterations  Validation").replace("1000\n", "1000        Pass\n")
    assert osu.read(text, "a.txt", ranks=4)[0].rows == ((4, 24.32), (8, 24.62))


def test_tests_that_are_not_read_are_left_out():
    other = FULL.replace("Allreduce Latency", "Bi-Directional Bandwidth")
    assert [table.collective for table in osu.read(other + SHORT, "a.txt")] == ["broadcast"]


def test_several_runs_in_one_log():
    assert [table.name for table in osu.read(SHORT + FULL, "a.txt")] == ["a:1", "a:7"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FULL[:-30], r"a\.txt: line 5: a row of \d of 5 columns: the log is cut off"),
        (FULL[: FULL.index("# Size")], r"a\.txt: line 2: no line of columns"),
        (FULL[: FULL.index("4  ")], r"a\.txt: line 3: no rows follow"),
        (FULL.replace("24.32 ", " 0.00 "), r"a\.txt: line 4: time 0 us"),
        (SHORT.replace("0.84", "x.84"), r"a\.txt: line 4: .*expected a size and a figure"),
        (SHORT.replace("Broadcast", "Put"), r"a\.txt: line 1: OSU's 'Put Latency' is not read|OSU's 'Put'"),
        (MULTI_BW.replace("16.42 ", " 0.00 "), r"a\.txt: line 4: 0 MB/s"),
    ],
)
def test_a_bad_log_is_named_by_line(text, message):
    with pytest.raises(TopocommError, match=message):
        osu.read(text, "a.txt", ranks=4)
