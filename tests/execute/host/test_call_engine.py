"""The work that engines are made for."""

from dataclasses import replace

import numpy as np
import pytest

from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM
from topocomm.execute.host.call_engine import Span, Work

LAYOUT = SUM.layout({"value": ((3, 4), np.float32)})


def work(collective, root=0, parts=None):
    plan = every_plan(switch(3), collective, SUM, LAYOUT, root, parts=parts)[0]
    return Work(plan, plan.schedule, SUM, LAYOUT, 16, 0, Span(0, LAYOUT.leading), Span(0, LAYOUT.leading))


def test_a_span_has_the_rows_of_its_leading_shape():
    assert Span(0, (3, 4)).rows == 12
    assert Span(5, ()).rows == 1
    assert Span(0, (3, 0)).rows == 0


def test_a_span_of_stretches_finds_their_rows():
    """Rows 4 to 6 and 10 to 11 of the payload, and none at 8, one after the other."""
    span = Span(0, (3,), ((4, 0), (8, 2), (10, 2)))
    assert [span.place(row) for row in (4, 5, 10)] == [0, 1, 2]
    assert [Span(3, (4,)).place(row) for row in (3, 6)] == [0, 3]


def test_chunks_are_the_schedules_unless_others_are_given():
    whole = work("allreduce")
    assert sum(whole.chunk_rows(chunk) for chunk in range(len(whole.parts))) == LAYOUT.rows
    sliced = replace(whole, chunks=((2, 5),))
    assert sliced.parts == ((2, 5),) and sliced.chunk_rows(0) == 5 and sliced.chunk_bytes(0) == 20


def test_slots_of_a_value_are_listed_once_in_order():
    assert Work.input_slots([(4, 0), (2, 0), (4, 1), (2, 1)]) == [4, 2]


@pytest.mark.parametrize(
    ("collective", "parts", "synchronises"),
    [
        ("allreduce", None, True),
        ("reduce", None, False),
        ("broadcast", None, False),
        ("scan", None, False),
        ("reduce_scatter", [4, 4, 4], True),
        ("reduce_scatter", [0, 4, 8], False),
    ],
)
def test_a_call_synchronises_where_every_rank_awaits_every_other(collective, parts, synchronises):
    assert work(collective, parts=parts).synchronises == synchronises
