"""Schedules from sends and folds, and from whole columns."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules
from topocomm.planning.schedule.schedule import Combine, Transfer
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

COLUMNS = ("inputs", "outputs", "transfers", "combines", "operands", "operand_starts")


def test_slots_are_numbered_rank_by_rank():
    builder = ScheduleBuilder(2, ((0, 3),), nodes=([(0, 1), (1, 2)], []))
    arrived = builder.send(1, 0, 1, 1)
    again = builder.send(0, 0, 0, 1)
    assert (arrived, again, builder.slots_used(0), builder.slots_used(1)) == (0, 1, 2, 2)
    assert builder.fold(1, 1, [arrived]) == arrived
    builder.output(1, builder.fold(1, 1, [again, arrived]))
    schedule = builder.build()
    assert schedule.nodes == ((0, 1), (1, 2))
    assert schedule.inputs.tolist() == [[0, 0, 0], [0, 1, 1]]
    assert schedule.transfer_list() == [Transfer(0, 0, 0, 1, 1, 0), Transfer(1, 0, 1, 1, 0, 0)]
    assert schedule.combine_list() == [Combine(1, 1, 2, 0, (1, 0))]
    assert schedule.outputs.tolist() == [[1, 2, 0]]


@examples(100)
@given(any_schedules(), st.integers(0, 2**32))
def test_columns_in_any_order_of_rounds_give_the_same(made, seed):
    """Blocks of combines with as many operands each, in whatever order their rounds come."""
    once, _ = made
    rng = random.Random(seed)
    rounds = rng.sample(range(once.rounds), once.rounds)
    order = np.argsort([rounds.index(round_) for round_ in once.transfers[:, 0].tolist()], kind="stable").astype(int)
    folds = [c for round_ in rounds for c in once.combine_list() if c.round == round_]
    again = schedule_of_columns(
        once.ranks,
        once.chunks,
        inputs=once.inputs.astype(np.int64),
        outputs=once.outputs.astype(np.int64),
        transfers=once.transfers[order],
        combines=np.array([fold[:4] for fold in folds], dtype=np.int64).reshape(-1, 4),
        operands=[np.array([fold.operands]) for fold in folds],
    )
    assert all(np.array_equal(getattr(again, name), getattr(once, name)) for name in COLUMNS)
