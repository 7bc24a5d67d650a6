"""Logs of nccl-tests and rccl-tests: old and new columns, debug output between and inside rows, logs cut off."""

import pytest

from topocomm import TopocommError
from topocomm.calibration.readers import nccl_tests_text

NEW = """\
# nccl-tests version 2.17.6 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   9001 on    node-a device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   9002 on    node-a device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   9003 on    node-b device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   9004 on    node-b device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    50.00   20.97   31.46       0    49.00   21.40   32.10       0
     2097152        524288     float     sum      -1    80.00   26.21   39.32     N/A    81.00   25.89   38.84     N/A
     4194304       1048576     float     sum      -1   140.00   29.96   44.94       0   141.00   29.75   44.62       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 38.5
#
"""
OLD = """\
# nThread: 1 nGpus: 2 minBytes: 8 maxBytes: 16 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#   Rank  0 Pid  11111 on     oldbox device  0 [0x06] Tesla V100-SXM2-16GB
#   Rank  1 Pid  11111 on     oldbox device  1 [0x07] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2   float     sum     9.00    0.00    0.00  0e+00     9.10    0.00    0.00  0e+00
          16             4   float     sum     9.50    0.00    0.00  0e+00     9.20    0.00    0.00  0e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.001
"""


def read(text, name="run.log"):
    return nccl_tests_text.read(text, name)


def test_new_columns():
    (table,) = read(NEW)
    assert (table.collective, table.ranks, table.hosts, table.library) == ("allreduce", 4, 2, "NCCL 2.27.3")
    assert [(row.payload_bytes, row.time_us) for row in table.rows] == [
        (1048576, 50.0),
        (2097152, 80.0),
        (4194304, 140.0),
    ]
    assert table.warnings == ()


def test_old_columns_tell_the_collective():
    (table,) = read(OLD)
    assert (table.collective, table.ranks, table.hosts) == ("allreduce", 2, 1)
    assert [row.time_us for row in table.rows] == [9.0, 9.5]


def test_rccl_tests_and_its_version():
    (table,) = read("RCCL version 2.22.3+hip6.4 HEAD:1234\n# Collective test starting: all_reduce_perf\n" + OLD)
    assert table.library == "RCCL 2.22.3+hip6.4"


def test_debug_output_between_and_inside_rows():
    row = "     2097152        524288     float     sum      -1    80.00"
    noisy = NEW.replace(
        row,
        "node-a:9001:9050 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "\n[2025-01-02 03:04:05] node-a:9001:9050 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_reg_mr failed\n"
        "  with error Bad address\n"
        "     2097152        524288     float     sum      -1node-a:9001:9050 [0] NCCL INFO comm 0x5 rank 0\n"
        "node-a:9001:9050 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n    80.00",
    )
    assert noisy != NEW
    assert read(noisy)[0].rows == read(NEW)[0].rows


def test_what_launchers_and_pages_put_before_lines():
    for before in ("[1,0]<stdout>:", "    "):
        tagged = "".join(f"{before}{line}\n" for line in NEW.splitlines())
        assert read(tagged)[0].rows == read(NEW)[0].rows
        assert read(tagged)[0].hosts == 2
    assert read(NEW.replace("all_reduce_perf", "reduce_scatter_perf_mpi"))[0].collective == "reduce_scatter"


def test_timestamps_are_no_columns():
    stamped = NEW.replace("#wrong\n", "#wrong            timestamp\n", 1).replace(
        "       0\n", "       0  2025-01-02 03:04:05\n"
    )
    assert read(stamped)[0].rows == read(NEW)[0].rows


def test_two_runs_in_one_log():
    first, second = read(NEW + NEW.replace("all_reduce_perf", "all_gather_perf"))
    assert (first.collective, second.collective) == ("allreduce", "allgather")
    assert first.name != second.name


def test_the_name_of_the_file_names_the_collective():
    nameless = NEW.replace("# Collective test starting: all_reduce_perf\n", "")
    assert read(nameless, "result_big_all_gather_perf.txt")[0].collective == "allgather"
    assert read(nameless, "h200-reduce-scatter.log")[0].collective == "reduce_scatter"
    with pytest.raises(TopocommError, match=r"run\.log: line 11: the log does not name its collective"):
        read(nameless)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: text.index("29.96")], r"run\.log: line 16: a row of 6 of 13 columns: the log is cut off"),
        (lambda text: text[: text.index("     4194304")], r"ends at 2097152 bytes, its first lines announce 4194304"),
        (lambda text: text[: text.index("     1048576")], r"run\.log: line 12: no rows follow"),
        (lambda text: text.replace(" 80.00 ", "  0.00 "), r"run\.log: line 15: time 0 us: expected a time over 0"),
        (lambda text: text.replace(" 80.00 ", "-80.00 "), r"run\.log: line 15: time -80 us"),
        (lambda text: text.replace("  26.21 ", "  29.21 "), r"run\.log: line 15: algbw 29.21 GB/s disagrees"),
        (lambda text: text.replace("  26.21 ", "  2x.21 "), r"run\.log: line 15: .*expected numbers under"),
    ],
)
def test_a_bad_log_is_named_by_line(change, message):
    with pytest.raises(TopocommError, match=message):
        read(change(NEW))


def test_without_its_last_line_a_log_is_read_with_a_warning():
    (table,) = read(NEW[: NEW.index("# Out of")])
    assert len(table.rows) == 3
    assert "may be cut off" in table.warnings[0]


def test_other_texts_do_not_match():
    assert nccl_tests_text.matches(NEW)
    assert not nccl_tests_text.matches("# OSU MPI Allreduce Latency Test v7.0\n# Size  Avg Latency(us)\n4  1.0\n")
