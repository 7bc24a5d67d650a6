"""The value that every read finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.mutants import rebuilt
from tests.planning.schedules import any_schedules
from topocomm import PlanError
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.dataflow import NOTHING, dataflow
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.schedule import Combine


@examples(100)
@given(any_schedules(), st.data())
def test_what_nothing_wrote_is_nothing(made, data):
    schedule, _ = made
    row = data.draw(st.integers(0, len(schedule.outputs) - 1))
    schedule.outputs[row, 1] = data.draw(st.sampled_from([-1, 10**6, 2**31 - 1, -(2**31)]))
    assert dataflow(schedule).outputs[row] == NOTHING


def test_a_slot_is_written_once():
    schedule = recursive_doubling_allreduce(2, 1)
    doubled = [*schedule.transfer_list(), schedule.transfer_list()[0]]
    with pytest.raises(PlanError, match="rank 1 slot 1 chunk 0 is written twice"):
        verify(rebuilt(schedule, transfers=doubled), Collective("allreduce", 2))


@pytest.mark.parametrize("operands", [(), (0,)])
def test_a_combine_of_less_than_two_is_refused(operands):
    schedule = recursive_doubling_allreduce(4, 1)
    folds = [*schedule.combine_list(), Combine(1, 2, 9, 0, operands)]
    with pytest.raises(PlanError, match="round 1: a combine of rank 2 has fewer than two operands"):
        verify(rebuilt(schedule, combines=folds), Collective("allreduce", 4))


def test_of_several_faults_the_first_is_named():
    """Slots before values, and in the order of events."""
    schedule = recursive_doubling_allreduce(4, 1)
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    folds[0] = folds[0]._replace(operands=(0, 0))  # a value: counted twice
    folds[-1] = folds[-1]._replace(operands=(0, 77))
    moves[-1] = moves[-1]._replace(src_slot=66)
    broken = rebuilt(schedule, moves, folds)
    with pytest.raises(PlanError, match=r"round 1: rank 3 reads slot 66"):
        verify(broken, Collective("allreduce", 4))
    with pytest.raises(PlanError, match=r"round 0: rank 1 slot 1 chunk 0 is written twice"):
        verify(rebuilt(broken, transfers=[*moves, moves[0]]), Collective("allreduce", 4))
