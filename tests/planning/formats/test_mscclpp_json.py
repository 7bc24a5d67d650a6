"""MSCCL++ plans compute the collective, in place and out of place, call after call, and keep the executor's limits."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, joined, switch
from tests.planning.formats import mscclpp_machine
from tests.planning.formats import mscclpp_machine as machine
from tests.planning.formats.msccl_machine import expected
from tests.planning.formats.test_msccl_steps import contents, made_of
from tests.planning.schedules import any_schedules, plans
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm import MAX, SUM, PlanError, plan
from topocomm.planning.formats import mscclpp_json
from topocomm.planning.formats.gpu_program import KNOWN
from topocomm.planning.formats.mscclpp_json import dumps
from topocomm.planning.schedule.schedule import Repeat
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def computes(text, root=0, seeds=(0,)):
    """Whether every call of every run gives what the collective says."""
    document = json.loads(text)
    gpus = document["gpus"]
    units = max(gpus[0]["input_chunks"], gpus[0]["output_chunks"])
    name = document["collective"].replace("reducescatter", "reduce_scatter")
    wanted = expected(name, len(gpus), units, root)
    runs = [machine.run(text, in_place, root, seed) for in_place in (False, True) for seed in seeds]
    return all(call == wanted for calls in runs for call in calls)


@pytest.mark.parametrize(("name", "ranks"), alternating(KNOWN, range(1, 10)))
def test_every_algorithm_computes_its_collective(name, ranks):
    root = ranks // 3 if name in ("broadcast", "reduce") else 0
    for made in plans((1, ranks), name, 40, root):
        assert computes(dumps(made, switch(ranks)), root, seeds=(0, 1)), made.algorithm


@pytest.mark.parametrize(("count", "gpus"), [(2, 2), (4, 2), (3, 5), (4, 4)])
def test_hosts_are_joined_by_ports(count, gpus):
    topology = hosts(count, gpus)
    for made in plans((count, gpus), "allreduce", 16):
        text = dumps(made, topology)
        assert computes(text, seeds=(0, 1)), made.algorithm
        for rank, gpu in enumerate(json.loads(text)["gpus"]):
            for channel in gpu["channels"]:
                same = [peer // gpus == rank // gpus for peer in channel["connected_to"]]
                assert same == [channel["channel_type"] == "memory"] * len(same)


@pytest.mark.parametrize("name", KNOWN)
def test_one_gpu_a_host(name):
    """All messages go through ports, which copy when they like."""
    topology = hosts(6, 1)
    rows = 36
    for made in every_plan(topology, name, SUM, SUM.default_layout(rows)):
        assert computes(dumps(made, topology), seeds=range(4)), made.algorithm


def test_many_interleavings_agree():
    for name in KNOWN:
        for made in plans((1, 5), name, 40):
            assert computes(dumps(made, switch(5)), seeds=range(6)), made.algorithm


def test_a_long_program_goes_on_in_the_next_thread_block():
    made = next(p for p in plans((1, 17), "allreduce", 40) if p.algorithm == "ring")
    text = dumps(made, switch(17))
    assert len(json.loads(text)["gpus"][0]["threadblocks"]) > 1
    assert computes(text)


def test_a_pipelined_plan_is_written_out():
    made = next(p for p in plans((1, 3), "allreduce", 48) if p.algorithm == "binomial")
    piped = replace(made, schedule=replace(made.schedule, repeat=Repeat(3, 2)))
    document = json.loads(dumps(piped, switch(3)))
    assert document["gpus"][0]["input_chunks"] == 3
    assert computes(json.dumps(document))


def test_limits_of_the_executor_are_kept(monkeypatch):
    made = next(p for p in plans((1, 17), "allreduce", 40) if p.algorithm == "ring")
    monkeypatch.setattr(mscclpp_json, "MOST_SEMAPHORES", 1)
    with pytest.raises(PlanError, match="thread blocks of 64 operations: expected at most 2; choose an algorithm with"):
        dumps(made, switch(17))


def faults(text):
    """(what was done, altered text) for every single change that makes the program wrong."""
    document = json.loads(text)
    for rank, gpu in enumerate(document["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            for index, op in enumerate(block["ops"]):
                altered = deepcopy(document)
                ops = altered["gpus"][rank]["threadblocks"][number]["ops"]
                del ops[index]
                yield f"no {op['name']}", json.dumps(altered)
                for side in ("src_buff", "dst_buff"):
                    if side in op:
                        altered = deepcopy(document)
                        ops = altered["gpus"][rank]["threadblocks"][number]["ops"]
                        ops[index][side][0]["index"] += 1
                        yield f"other {side} of {op['name']}", json.dumps(altered)
                if op["name"] == "pwsf":
                    altered = deepcopy(document)
                    altered["gpus"][rank]["threadblocks"][number]["ops"][index]["name"] = "pws"
                    yield "not flushed", json.dumps(altered)


@pytest.mark.every_case
@pytest.mark.parametrize("algorithm", ["flat", "recursive-doubling", "ring"])
@pytest.mark.parametrize("count", [1, 3])
def test_planted_faults_are_seen(algorithm, count):
    topology = switch(3) if count == 1 else hosts(3, 1)
    made = next(p for p in every_plan(topology, "allreduce", SUM, SUM.default_layout(40)) if p.algorithm == algorithm)
    found, missed = 0, []
    for what, altered in faults(dumps(made, topology)):
        try:
            right = computes(altered, seeds=range(4))
        except (machine.Wrong, KeyError):
            right = False
        found += not right
        missed += [what] * right
    assert found > 20
    # Some waits are met anyway, by another message; a port has to be waited for only if it is slow.
    assert set(missed) <= {"no wait", "not flushed"}
    assert len(missed) <= found // 5


def test_the_head_says_what_the_executor_asks_for():
    made = plan(switch(4), payload_bytes=64)
    document = json.loads(dumps(made, switch(4)))
    assert (document["collective"], document["inplace"], document["buffer_alignment"]) == ("allreduce", True, 16)
    scattered = json.loads(dumps(plan(switch(4), "reduce_scatter", payload_bytes=64), switch(4)))
    assert (scattered["collective"], scattered["inplace"]) == ("reducescatter", False)
    assert [scattered["gpus"][0][f"{side}_chunks"] for side in ("input", "output")] == [4, 1]


def test_the_same_plan_gives_the_same_bytes():
    made = plan(switch(5), payload_bytes=64)
    assert dumps(made, switch(5)) == dumps(made, switch(5))


@pytest.mark.parametrize(
    ("made", "topology", "message"),
    [
        (lambda t: plan(t, payload_bytes=64, operator=MAX), switch(4), "mscclpp-json: operator 'max': expected sum"),
        (lambda t: plan(t, "exscan", payload_bytes=64), switch(4), "exscan: expected one of allreduce"),
        (lambda t: plan(t, "alltoall", payload_bytes=64), switch(4), "alltoall: expected one of allreduce"),
        (lambda t: plan(t, "gather", payload_bytes=64), switch(4), "gather: expected one of allreduce"),
        (lambda t: plan(t, payload_bytes=64), joined([4]), "a cpu: expected GPUs only"),
        (lambda t: plan(t, "allgather", payload_bytes=8), switch(4), "expected equal parts"),
    ],
)
def test_what_the_format_cannot_say_is_refused(made, topology, message):
    with pytest.raises(PlanError, match=message):
        dumps(made(topology), topology)


@examples(150)
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
