"""Steps do what any schedule says, also one that no algorithm would make: values sent on late,
results that are the rank's own value, folds of what was folded."""

import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.formats import msccl_machine
from tests.planning.formats.test_msccl_xml import computes, flat
from tests.planning.schedules import any_schedules
from topocomm import plan
from topocomm.planning.formats import msccl_xml
from topocomm.planning.formats.msccl_xml import dumps


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


@examples(150)
@given(any_schedules(), st.booleans(), st.integers(0, 5), st.sampled_from([0, 1, 1000]))
def test_msccl_xml_does_what_the_schedule_says(drawn, in_place, seed, holds):
    schedule = drawn[0]
    topology = switch(schedule.ranks)
    text = msccl_xml.dumps(made_of(schedule, topology), topology)
    assert int(ET.fromstring(text).get("nchunksperloop")) == len(schedule.chunks)
    assert msccl_machine.run(text, in_place, seed, holds) == contents(schedule)


def test_neighbouring_chunks_of_a_message_are_one_step():
    text = dumps(flat("allgather", 16, "dissemination"), switch(16))
    sent = [int(step.get("cnt")) for step in ET.fromstring(text).iter("step") if step.get("type") == "s"]
    assert sum(sent) == 16 * 15
    assert max(sent) > 4
    assert len(sent) < 16 * 10
    assert computes(text)


def test_a_fold_of_many_is_cut_where_the_runtime_does_not_check():
    text = dumps(flat(ranks=17, algorithm="flat"), switch(17))
    assert computes(text)
    for tb in ET.fromstring(text).iter("tb"):
        run = 0
        for step in tb:
            fresh = step.get("type") != "re" or step.get("depid") != "-1"
            run = (step.get("type") == "re") if fresh else run + 1
            assert run <= 16
            run = 0 if step.get("hasdep") == "1" else run
