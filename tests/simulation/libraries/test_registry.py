"""Algorithms by name, and what is refused."""

import pytest

from tests.machines import switch
from topocomm import PlanError, catalog
from topocomm.simulation.libraries import names, work_of


def test_names_by_collective():
    assert "ring" in names()
    assert "ring" in names("allreduce")
    assert "ring" not in names("alltoall")


def test_ranks_are_placed_as_in_a_plan():
    work = work_of("ring", switch(4), "allgather", 100, ranks=("GPU3", "GPU1"))
    assert work.devices == ("GPU3", "GPU1")
    assert len(work_of("ring", switch(4), "allgather", 100, ranks=("GPU3",))) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("rnig", switch(2), "allreduce", 8), r"algorithm 'rnig': expected one of ring"),
        (("ring", switch(2), "alltoall", 8), "algorithm ring: expected one of allreduce, .*, got alltoall"),
        (("ring", switch(2), "allreduce", -1), "expected a payload of at least 0 bytes, got -1"),
        (("nccl", catalog("cpu-1-socket"), "allreduce", 8), "NCCL joins GPUs, and 'cpu-1-socket' has ranks on a cpu"),
    ],
)
def test_what_is_refused(arguments, why):
    with pytest.raises(PlanError, match=why):
        work_of(*arguments)
