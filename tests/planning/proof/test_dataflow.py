"""The value that every read finds."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.mutants import rebuilt
from tests.planning.schedules import any_schedules
from topocomm import PlanError
from topocomm.native._native import trace_values
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.dataflow import NOTHING, _dataflow_compiled, _dataflow_plainly, dataflow
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.place_numbers import number_places
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


@examples(150)
@given(any_schedules(), st.data())
def test_both_ways_find_the_same_values_and_faults(made, data):
    """Some schedules read or write another slot, in another round, and may have a fault by that."""
    schedule, _ = made
    table = data.draw(st.sampled_from([schedule.transfers, schedule.combines, schedule.operands[:, None]]))
    if len(table) and data.draw(st.booleans()):
        row = data.draw(st.integers(0, len(table) - 1))
        column = data.draw(st.sampled_from({7: [2, 4, 5], 4: [2, 3], 1: [0]}[table.shape[1]]))
        table[row, column] = data.draw(st.integers(0, int(table[:, column].max()) + 1))
    places = number_places(schedule)
    try:
        wanted = _dataflow_plainly(schedule, places)
    except PlanError:
        assert _dataflow_compiled(schedule, places) is None
        return
    found = _dataflow_compiled(schedule, places)
    for column in ("inputs", "operands", "outputs"):
        assert getattr(found, column).tolist() == getattr(wanted, column).tolist()
    with patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert dataflow(schedule, places).outputs.tolist() == wanted.outputs.tolist()


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        numbers = ([0, 1], [0, 1], [0, 1], [0], [2], [3], [1, 2], [3], [4], [0, 0], [0])
        made = [np.array(column, dtype=np.int64) for column in numbers]
        return [*made[:2], np.array([0, 2], np.int32), *made[2:]]

    assert trace_values(*(good := columns()))
    assert good[-2].tolist() == [1, 0] and good[-1].tolist() == [2]
    for which in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11):
        wrong = columns()
        wrong[which] = wrong[which][:-1]
        with pytest.raises(ValueError, match="do not fit each other"):
            trace_values(*wrong)
    for which, value in [(0, 1), (1, 1), (2, 1), *((place, 4) for place in range(3, 9)), (3, -1), (9, 3), (9, -1)]:
        wrong = columns()
        wrong[which][0] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            trace_values(*wrong)
