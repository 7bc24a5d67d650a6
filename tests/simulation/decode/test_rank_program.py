"""Programs of ranks: who waits for whom."""

import numpy as np
import pytest

from tests.machines import switch
from topocomm.planning.algorithms.flat import flat_allreduce
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.simulation.decode.rank_program import RankProgram

MACHINE = switch(4)
ENDS = MACHINE.endpoints


def flat(ranks=4, ends=ENDS):
    return of_schedule(flat_allreduce(ranks, 0), ends, 0)


def ends_of(program):
    timeline = simulate(program.builder.build(), MACHINE)
    return timeline.arrival_us[program.last].tolist()


def test_ranks_compute_each_for_itself_until_a_collective():
    program = RankProgram(ENDS)
    program.compute(np.array([1.0, 2.0, 3.0, 10.0]), "attention")
    assert ends_of(program) == [1.0, 2.0, 3.0, 10.0]
    program.collective(flat(), "merge")
    assert ends_of(program) == pytest.approx([10.6] * 3 + [10.0])
    program.compute(5.0, "MLP")
    assert ends_of(program) == pytest.approx([15.6] * 3 + [15.0])


def test_a_rank_folds_only_what_it_has_computed():
    """The slowest rank ends with the collective after its own value, though all others' values came before."""
    program = RankProgram(ENDS)
    program.compute(np.array([0.0, 0.0, 0.0, 10.0]), "attention")
    program.collective(flat(), "merge")
    assert ends_of(program)[3] == pytest.approx(10.0)


def test_groups_go_on_each_for_itself():
    program = RankProgram(ENDS)
    program.compute(np.array([1.0, 2.0, 3.0, 10.0]), "attention")
    program.collective(flat(2, ENDS[:2]), "first")
    program.collective(flat(2, ENDS[2:]), "second")
    assert ends_of(program) == pytest.approx([2.6, 2.0, 10.6, 10.0])


def test_work_on_other_switches_has_no_rank():
    program = RankProgram(ENDS[:2])
    program.follow(np.arange(0), np.arange(0), "nothing")
    assert program.last.tolist() == [-1, -1]
