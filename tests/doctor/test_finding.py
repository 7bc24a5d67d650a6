"""Findings of all ranks in one list."""

from topocomm import run_local
from topocomm.doctor.finding import Finding, gather_json, union


def test_the_union_names_ranks_where_they_differ():
    same, first, second = Finding("ok", "a", "fine"), Finding("ok", "b", "x"), Finding("warn", "b", "y", "do")
    merged = union([[same, first], [same, second], [same, second]])
    assert merged == [same, first._replace(text="rank 0: x"), second._replace(text="ranks 1-2: y")]


def test_values_of_all_ranks_are_gathered():
    told = run_local(lambda comm: gather_json(comm, ["x" * comm.rank, comm.rank]), ranks=3)
    assert told[0] == told[2] == [["", 0], ["x", 1], ["xx", 2]]
