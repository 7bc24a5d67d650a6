"""Logs of mpiBench."""

import pytest

from topocomm import TopocommError
from topocomm.calibration.readers import mpibench

LINE = (
    "{:20}\tBytes:\t{:8}\tIters:\t   1000\tAvg:\t{:8.4f}\t"
    "Min:\t  1.0000\tMax:\t  9.0000\tComm: MPI_COMM_WORLD\tRanks: {}\n"
)
LOG = "START mpiBench v1.5\n0 : node-a\n" + "".join(
    LINE.format(name, size, time, 4)
    for name, size, time in [
        ("Barrier", 0, 2.5),
        ("Allreduce", 8, 3.0),
        ("Allreduce", 16, 3.5),
        ("Allgather", 8, 4.0),
        ("Allgatherv", 8, 5.0),
    ]
)


def test_a_table_for_each_collective():
    barrier, allreduce, allgather = mpibench.read(LOG, "mpi.out")
    assert (allreduce.collective, allreduce.ranks, allreduce.memory) == ("allreduce", 4, "host")
    assert allreduce.rows == ((8, 3.0), (16, 3.5))
    assert allgather.rows == ((32, 4.0),)  # the whole, not a rank's part
    assert barrier.rows == ((0, 2.5),)


def test_older_lines_have_a_limit():
    text = LOG.replace("Comm:", "Limit:\t  5.0000\tComm:")
    assert mpibench.read(text, "mpi.out") == mpibench.read(LOG, "mpi.out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOG[:-40], r"mpi\.out: line 7: expected Bytes, .*cut off"),
        (LOG.replace("  3.0000", "  0.0000"), r"mpi\.out: line 4: time 0 us"),
        (LOG.replace("Avg:\t  3.0000", "Avg:\t  x.0000"), r"mpi\.out: line 4: Avg 'x.0000'"),
        (LINE.format("Alltoallv", 8, 1.0, 2), r"mpi\.out: no line of a collective that is read"),
    ],
)
def test_a_bad_log_is_named_by_line(text, message):
    with pytest.raises(TopocommError, match=message):
        mpibench.read(text, "mpi.out")
