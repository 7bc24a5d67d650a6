"""What a schedule sends, counted from its columns, is what its messages one by one come to."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.traffic import busiest_port, count_messages, rows_sent
from topocomm.planning.schedule.transforms import unrolled

REPEATS = st.builds(Repeat, st.integers(1, 9), st.integers(0, 8))


@examples(200)
@given(any_schedules(), REPEATS, st.integers(1, 5))
def test_figures_of_what_repeats_are_those_of_what_it_unrolls_to(made, repeat, endpoints):
    once, _ = made
    schedule = replace(once, repeat=repeat)
    flat = unrolled(schedule)
    messages = {(t.round, t.src, t.dst, t.path) for t in flat.transfer_list()}
    assert count_messages(schedule) == (len({message[0] for message in messages}), len(messages))
    assert count_messages(flat) == count_messages(schedule)
    assert rows_sent(schedule) == sum(flat.chunks[t.chunk][1] for t in flat.transfer_list())
    ends = [str(rank % endpoints) for rank in range(once.ranks)]
    for places in ((), ends):
        at = places or [str(rank) for rank in range(once.ranks)]
        sides = ([(m[0], at[m[side]]) for m in messages] for side in (1, 2))
        most = max(max(Counter(ports).values(), default=0) for ports in sides)
        assert busiest_port(schedule, places) == busiest_port(flat, places) == most
