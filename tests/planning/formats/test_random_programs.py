"""Programs for GPU runtimes do what any schedule says, also one that no algorithm would make: values sent on late,
results that are the rank's own value, folds of what was folded."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import hosts, switch
from tests.planning.formats import msccl_machine, mscclpp_machine
from tests.planning.schedules import any_schedules
from topocomm import plan
from topocomm.planning.formats import msccl_xml, mscclpp_json
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def contents(schedule):
    """(rank, chunk) -> ranks whose value is in the result, sorted, as often as it is."""
    held = {
        (rank, slot, c): (who,) for rank, slot, who in schedule.inputs.tolist() for c in range(len(schedule.chunks))
    }
    for round_ in range(schedule.rounds):
        moves = [m for m in schedule.transfer_list() if m.round == round_]
        for move, value in [(m, held[m.src, m.src_slot, m.chunk]) for m in moves]:
            held[move.dst, move.dst_slot, move.chunk] = value
        for fold in (f for f in schedule.combine_list() if f.round == round_):
            values = [held[fold.rank, slot, fold.chunk] for slot in fold.operands]
            held[fold.rank, fold.out_slot, fold.chunk] = tuple(sorted(sum(values, ())))
    return {(rank, chunk): held[rank, slot, chunk] for rank, slot, chunk in schedule.outputs.tolist()}


def made_of(schedule, topology):
    return replace(plan(topology, payload_bytes=0), schedule=schedule)


@settings(max_examples=150, deadline=None)
@given(any_schedules(), st.booleans(), st.integers(0, 5), st.sampled_from([0, 1, 1000]))
def test_msccl_xml_does_what_the_schedule_says(drawn, in_place, seed, holds):
    schedule = drawn[0]
    topology = switch(schedule.ranks)
    text = msccl_xml.dumps(made_of(schedule, topology), topology)
    assert int(ET.fromstring(text).get("nchunksperloop")) == len(schedule.chunks)
    assert msccl_machine.run(text, in_place, seed, holds) == contents(schedule)


@settings(max_examples=150, deadline=None)
@given(any_schedules(), st.booleans(), st.integers(0, 5), st.booleans())
def test_mscclpp_json_does_what_the_schedule_says(drawn, in_place, seed, apart):
    schedule = drawn[0]
    topology = hosts(schedule.ranks, 1) if apart else switch(schedule.ranks)
    text = mscclpp_json.dumps(made_of(schedule, topology), topology)
    assert len(json.loads(text)["gpus"]) == schedule.ranks
    assert mscclpp_machine.run(text, in_place, 0, seed) == [contents(schedule)] * 2


def test_a_port_that_copies_late_still_finds_the_own_value():
    """Rank 0 sends its value through a port, and in place overwrites it with the result before the port looks."""
    builder = ScheduleBuilder(3, ((0, 4),))
    sent = builder.send(0, 0, 0, 1)
    arrived = builder.send(0, 2, 0, 0)
    result = builder.fold(0, 0, [0, arrived])
    builder.send(1, 0, result, 1)
    for rank, slot in ((0, result), (1, sent), (2, 0)):
        builder.output(rank, slot)
    schedule, topology = builder.build(), hosts(3, 1)
    text = mscclpp_json.dumps(made_of(schedule, topology), topology)
    for seed in range(30):
        assert mscclpp_machine.run(text, True, 0, seed) == [contents(schedule)] * 2
    hasty = text.replace("pwsf", "pws", 1)
    assert any(not survives(hasty, schedule, seed) for seed in range(30))


def survives(text, schedule, seed):
    try:
        return mscclpp_machine.run(text, True, 0, seed) == [contents(schedule)] * 2
    except mscclpp_machine.Wrong:
        return False
