"""Slices of pipelined schedules: as many as asked for, but never more than a chunk has rows."""

import pytest

from tests.machines import switch
from tests.planning.forests.machines import forest
from topocomm import Field, Operator, check_certificate, plan
from topocomm.planning.algorithms.flat import flat_allgather
from topocomm.planning.algorithms.two_tree import two_tree_allreduce
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.transforms import most_slices, sliced

LONG_ROWS = Operator("long rows", (Field("x", ("*rows", "n")),), max, {"x": 0}, default_dims={"n": 1 << 16})
"""256 KiB a row."""


def test_slices_are_asked_for_and_cut_to_the_rows():
    assert sliced(forest(switch(4), "allreduce", 64).schedule, 1, 1).repeat is None
    assert sliced(forest(switch(4), "allreduce", 64).schedule, 8, 1).repeat == Repeat(8, 1)
    assert sliced(forest(switch(4), "allreduce", 8).schedule, 8, 1).repeat == Repeat(2, 1)


def test_the_shortest_chunk_counts_and_empty_ones_do_not():
    assert most_slices(flat_allgather([7, 0, 3])) == 3
    assert most_slices(flat_allgather([0, 0])) == 1
    assert two_tree_allreduce(4, 5, 64).repeat == Repeat(2, 4)
    assert two_tree_allreduce(4, 3, 64).repeat is None


@pytest.mark.parametrize("objective", ["throughput", "auto"])
@pytest.mark.parametrize("rows", [8, 31, 100])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter"])
def test_few_long_rows_are_planned(collective, rows, objective):
    """Trees of unequal weight on few rows: the shortest chunk has one or two, the longest many."""
    machine = switch(4, gb_per_s=100.0)
    made = plan(machine, collective, payload_bytes=rows << 18, operator=LONG_ROWS, objective=objective)
    check_certificate(machine, made)


def test_slices_that_come_to_the_same_are_one_candidate():
    from topocomm.planning.report.plan_comparison import ranked

    made = plan(switch(4), payload_bytes=31 << 18, operator=LONG_ROWS)
    names = [rival.algorithm for rival in ranked(made, switch(4), LONG_ROWS)]
    assert {"forest-1", "forest-4", "forest-7", "two-tree-15"} <= set(names)
    assert len(names) == len(set(names))
